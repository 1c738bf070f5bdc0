"""A lane against a peer that keeps to nothing: every fault is typed, bounded, and ends the lane."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Iterator
from typing import cast

import msgspec
import pytest

from membrane.errors import ProtocolError, UnsupportedUse
from membrane.fittings import Fittings
from membrane.frames import (
    CALL,
    DEEPEST,
    ERROR,
    LARGEST_FRAME,
    MOST_SHARED,
    REGION,
    REPLY,
    REQUEST,
)
from membrane.framing import LaneLost
from membrane.lane import Lane
from tests.contract.membrane.plain_fittings import PlainFittings


class Peer:
    """A lane of a parent, and the bare socket of its other side."""

    def __init__(self, *, is_child: bool = False) -> None:
        near, self.far = socket.socketpair()
        self.far.settimeout(10)
        self.mapped: list[int] = []
        self.is_short = False
        self.lane = Lane(
            number=0,
            end=near,
            fittings=cast("Fittings", PlainFittings({"one": lambda: 1})),
            serving={},
            is_child=is_child,
            may_map=self.may_map,
        )

    def may_map(self, size: int) -> bool:
        self.mapped.append(size)
        return len(self.mapped) < 2

    def send(self, *message: object) -> None:
        frame = msgspec.msgpack.encode(message)
        self.far.sendall(struct.pack("<I", len(frame)) + frame)

    def read(self) -> list[object]:
        (size,) = struct.unpack("<I", self.far.recv(4, socket.MSG_WAITALL))
        return cast("list[object]", msgspec.msgpack.decode(self.far.recv(size, socket.MSG_WAITALL)))

    def ask(self, *values: object) -> object:
        if self.is_short:
            return self.lane.call(0, "name", values)
        return self.lane.exchange(CALL, 0, "name", None, values, 0, 0)[1]


@pytest.fixture(params=["call", "exchange"])
def peer(request: pytest.FixtureRequest) -> Iterator[Peer]:
    made = Peer()
    made.is_short = request.param == "call"
    yield made
    made.lane.close()
    made.far.close()


def test_a_reply_is_matched_by_its_id(peer: Peer) -> None:
    peer.send(REPLY, 1, None, "extra", [5])
    assert peer.ask() == [5]
    assert peer.lane.is_whole
    assert peer.read() == [REQUEST, 1, CALL, None, 0, "name", None, 0, []]
    peer.send(REPLY, 1, None, None, [5])
    with pytest.raises(ProtocolError, match="request 2"):
        peer.ask()
    assert not peer.lane.is_whole


@pytest.mark.parametrize(
    "message",
    [
        (),
        (9, 1, None, None, []),
        ("0", 1, None, None, []),
        (REPLY, "1", None, None, []),
        (REPLY, True, None, None, []),
        (ERROR, 2, None, ["ValueError", ""], []),
        (REQUEST, 1, CALL, None, 0, "one", None, 0),
        (REQUEST, 1, CALL, None, 0, "one", None, 8, []),
        (REQUEST, 1, CALL, None, 0, "one", None, True, []),
        (REQUEST, 1, CALL, [1, 1], 0, "one", None, 0, []),
        (REGION, 0, []),
        (REGION, "1", []),
        (REGION, MOST_SHARED + 1, []),
        (REGION, 1),
    ],
)
def test_a_message_that_is_none_breaks_the_lane(peer: Peer, message: tuple[object, ...]) -> None:
    peer.send(*message)
    with pytest.raises((ProtocolError, ValueError)):
        peer.ask()
    assert not peer.lane.is_whole


@pytest.mark.parametrize(
    "content",
    [
        struct.pack("<I", LARGEST_FRAME + 1),
        struct.pack("<I", 0xFFFF_FFFF),
        struct.pack("<I", 1) + b"\xc1",
        struct.pack("<I", 0) + b"more",
        struct.pack("<I", 2) + b"\x91\x01" + b"out of turn",
    ],
)
def test_bytes_that_are_no_frame_break_the_lane(peer: Peer, content: bytes) -> None:
    peer.far.sendall(content)
    with pytest.raises(ProtocolError):
        peer.ask()


@pytest.mark.parametrize("count", [0, 2, 4, 7])
def test_an_end_inside_of_a_frame_is_the_loss_of_the_lane(peer: Peer, count: int) -> None:
    peer.far.sendall((struct.pack("<I", 9) + b"\x95\x01\x01\xc0")[:count])
    peer.far.shutdown(socket.SHUT_WR)
    with pytest.raises(LaneLost):
        peer.ask()


def test_a_frame_that_comes_byte_by_byte_is_read(peer: Peer) -> None:
    frame = msgspec.msgpack.encode([REPLY, 1, None, None, ["x" * 100_000]])
    packet = struct.pack("<I", len(frame)) + frame
    for at in range(6):
        peer.far.sendall(packet[at : at + 1])
    peer.far.sendall(packet[6:])
    assert peer.ask() == ["x" * 100_000]


def test_requests_are_answered_while_a_reply_is_awaited(peer: Peer) -> None:
    peer.send(REQUEST, 77, CALL, None, 0, "one", None, 0, [])

    def answer() -> None:
        assert peer.read()[0] == REQUEST
        assert peer.read() == [REPLY, 77, None, None, [1]]
        peer.send(REPLY, 1, None, None, ["done"])

    thread = threading.Thread(target=answer)
    thread.start()
    assert peer.ask() == ["done"]
    thread.join()


def test_shared_memory_is_given_while_the_child_may_have_more(peer: Peer) -> None:
    peer.send(REGION, 8192, [])
    peer.far.shutdown(socket.SHUT_WR)
    with pytest.raises(LaneLost):
        peer.ask()
    assert peer.mapped == [8192]
    assert peer.read()[0] == REQUEST
    _, descriptors, _, _ = socket.recv_fds(peer.far, 1, 1)
    assert os.fstat(descriptors[0]).st_size == 8192
    os.close(descriptors[0])


def test_shared_memory_beyond_that_is_refused_and_the_lane_goes_on(peer: Peer) -> None:
    peer.mapped.append(0)
    peer.send(REGION, 8192, [])
    peer.far.shutdown(socket.SHUT_WR)
    with pytest.raises(LaneLost):
        peer.ask()
    assert peer.read()[0] == REQUEST
    content, descriptors, _, _ = socket.recv_fds(peer.far, 1, 1)
    assert (content, descriptors) == (b"n", [])


def test_a_child_that_is_refused_memory_can_go_on() -> None:
    peer = Peer(is_child=True)
    peer.far.sendall(b"n")
    with pytest.raises(UnsupportedUse, match="shared memory"):
        peer.lane.share(1 << 20)
    assert peer.lane.is_whole
    assert peer.read() == [REGION, 1 << 20, []]
    with pytest.raises(UnsupportedUse, match="several calls"):
        peer.lane.share(MOST_SHARED + 1)
    assert peer.lane.is_whole
    peer.lane.close()
    peer.far.close()


def test_what_is_too_large_to_send_leaves_the_lane_whole(peer: Peer) -> None:
    with pytest.raises(UnsupportedUse, match="shared memory"):
        peer.ask("x" * LARGEST_FRAME)
    assert peer.lane.is_whole
    peer.send(REPLY, 2, None, None, [5])
    assert peer.ask() == [5]


def test_requests_inside_of_too_many_requests_are_refused(peer: Peer) -> None:
    peer.lane.depth = DEEPEST
    peer.send(REQUEST, 1, CALL, None, 0, "one", None, 0, [])
    peer.far.shutdown(socket.SHUT_WR)
    with pytest.raises(LaneLost):
        peer.ask()
    assert peer.read()[0] == REQUEST
    refusal = peer.read()
    assert refusal[0] == ERROR
    assert cast("list[str]", refusal[3])[0] == "RecursionError"
