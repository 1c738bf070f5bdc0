"""Frames that a hostile child writes by itself: the caller gets a typed error and a fresh child."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import membrane
from membrane.frames import CALL, ERROR, GET, REGION, REPLY, REQUEST
from membrane.proxies import close
from tests.contract.membrane.conftest import ROOT, SHOP

pack = msgspec.msgpack.encode

FRAMES: list[tuple[str, bytes]] = [
    ("nothing", b""),
    ("no MessagePack", b"\xc1\xc1"),
    ("half of a list", pack([REPLY, 1, None])[:-1]),
    ("text", pack("reply")),
    ("a map", pack({"kind": REPLY})),
    ("an empty list", pack([])),
    ("a kind of the future", pack([99, 1, None, None, []])),
    ("a kind that is text", pack(["reply", 1, None, None, []])),
    ("a reply to another request", pack([REPLY, 10**6, None, None, []])),
    ("a reply that is short", pack([REPLY, 1])),
    ("a reply that is long", pack([REPLY, 1, None, None, [], []])),
    ("an error to another request", pack([ERROR, 10**6, None, [], []])),
    ("a request that is short", pack([REQUEST, 1, CALL])),
    ("a request with a policy of the future", pack([REQUEST, 1, CALL, None, 1, "", None, 64, []])),
    ("a request with values that are none", pack([REQUEST, 1, CALL, None, 1, "", None, 0, 7])),
    ("releases of what was never sent", pack([REQUEST, 1, GET, [77, 1], 1, "a", None, 0, []])),
    ("releases of less than none", pack([REQUEST, 1, GET, [1, -5], 1, "a", None, 0, []])),
    ("releases that are text", pack([REQUEST, 1, GET, "all", 1, "a", None, 0, []])),
    ("memory of less than none", pack([REGION, -1, []])),
    ("memory without end", pack([REGION, 1 << 60, []])),
    ("lists without end", b"\x91" * 200_000),
    ("a list that says it is long", b"\xdd\xff\xff\xff\xff"),
    ("an extension of the future", pack([REPLY, 1, None, None, [msgspec.msgpack.Ext(99, b"x")]])),
]

# In the child: write this frame where the caller waits for an answer.
CODE = """
import threading
link = object.__getattribute__(cb, '_membrane_bond').link
lane = link._serving[threading.get_ident()]
lane.write_frame(frame)
"""

LENGTHS = [b"\xff\xff\xff\xff", b"\x00\x00\x00\x80", b"\x01"]


def hostile() -> Any:
    return membrane.isolate(f"{SHOP}:Shop", paths=[str(ROOT)])


@pytest.mark.parametrize(("label", "frame"), FRAMES, ids=[label for label, _ in FRAMES])
def test_a_frame_of_another_form_is_a_protocol_error(label: str, frame: bytes) -> None:
    kind = hostile()
    shop = kind()
    before = kind.__membrane__.pid
    with pytest.raises((membrane.ProtocolError, membrane.ChildLost)):
        shop.run(CODE, cb=print, frame=frame)
    assert kind().ping() == 1
    assert kind.__membrane__.pid != before
    with pytest.raises(membrane.ChildLost):
        shop.ping()
    close(kind)


@pytest.mark.parametrize("length", LENGTHS)
def test_a_length_that_lies_is_refused(length: bytes) -> None:
    kind = hostile()
    shop = kind()
    code = "import os, threading\n" + CODE.replace(
        "lane.write_frame(frame)", "lane._end.sendall(frame)\nos._exit(0)"
    )
    with pytest.raises((membrane.ProtocolError, membrane.ChildLost)):
        shop.run(code, cb=print, frame=length)
    assert kind().ping() == 1
    close(kind)
