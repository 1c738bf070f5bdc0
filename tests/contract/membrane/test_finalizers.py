"""What is collected where a lock of the sessions is held: a finalizer that closes a class, or uses
one, has to get through.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import threading
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, cast

import pytest

import membrane
from membrane import isolating
from membrane.regions import LaneRegions
from membrane.session import Session
from membrane.sessions import sessions
from tests.contract.membrane.conftest import Isolate
from tests.contract.membrane.plain_sessions import spec_of, watched
from tests.eventually import SECONDS

Act = Callable[[], object]


class Dropped:
    """Garbage that is found by a collection alone, and acts then."""

    def __init__(self, *, act: Act, done: list[str]) -> None:
        self._itself = self
        self._act = act
        self._done = done

    def __del__(self) -> None:
        self._done.append("begun")
        self._act()
        self._done.append("done")


class Entered:
    """A lock under which a collection comes, once."""

    def __init__(self, *, lock: object, act: Act, done: list[str]) -> None:
        self._lock = cast("AbstractContextManager[object]", lock)
        self._act: Act | None = act
        self._done = done

    def __enter__(self) -> None:
        self._lock.__enter__()
        act, self._act = self._act, None
        if act is not None:
            Dropped(act=act, done=self._done)
            gc.collect()

    def __exit__(self, *error: Any) -> None:
        self._lock.__exit__(*error)


def in_time(act: Act) -> None:
    """Act in a thread; fails where that does not end."""
    faults: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as fault:
            faults.append(fault)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(SECONDS)
    assert not thread.is_alive(), "it waits for itself"
    if faults:
        raise faults[0]


def use(made: Any) -> None:
    """Use an object whose child may have been killed just now."""
    with contextlib.suppress(membrane.ChildLost):
        made.door()


def session_of(kind: Any) -> Session:
    return cast("Session", kind._membrane_classes.session)


def holder(where: str, kind: Any) -> tuple[object, str]:
    """Say whose lock it is, and what it is called there."""
    held, session = sessions(), session_of(kind)
    return {
        "isolating": (isolating, "_lock"),
        "sessions": (held, "_lock"),
        "pool": (held.pool, "_lock"),
        "kind": (held.pool._kinds[spec_of(session)], "lock"),
        "session": (session, "_lock"),
        "link": (session.link(), "_lock"),
        "classes": (kind._membrane_classes, "_lock"),
    }[where]


def use_all(isolate: Isolate, kind: Any, key: str) -> None:
    """Take all of the locks: of a session, of a second lane, of a class that is new, of a child
    that is replaced, and of what the service does about that.
    """
    isolate("Item", share_key=key)
    made = kind()
    made.apply(lambda: in_time(made.ping))
    assert made.item("screw").label() == "item screw"
    pid = kind.__membrane__.pid
    with watched(pid) as is_gone:
        os.kill(pid, signal.SIGKILL)
        assert is_gone()
    assert kind().ping() == 1
    seen = threading.Event()
    sessions().service.soon(seen.set)
    assert seen.wait(SECONDS), "the service waits for itself"


@pytest.mark.parametrize(
    "where",
    ["isolating", "sessions", "pool", "kind", "session", "link", "classes"],
)
@pytest.mark.parametrize("what", ["close", "use"])
@pytest.mark.parametrize("isolation", ["process"], indirect=True)
def test_a_finalizer_gets_through(
    isolate: Isolate, where: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = uuid.uuid4().hex
    kind, other = isolate("Shop", share_key=key), isolate("Shop")
    own = kind()
    act: Act = other.close if what == "close" else lambda: use(own)
    done: list[str] = []
    owner, name = holder(where, kind)
    lock = getattr(owner, name)
    monkeypatch.setattr(owner, name, Entered(lock=lock, act=act, done=done))
    in_time(lambda: use_all(isolate, kind, key))
    assert done == ["begun", "done"]


LARGE = [bytes([number]) * 100_000 for number in range(4)]


def collect_while_placing(monkeypatch: pytest.MonkeyPatch, act: Act) -> list[str]:
    """Have a collection come while a message is encoded, behind its first large buffer."""
    done: list[str] = []
    place = LaneRegions.place

    def place_and_collect(regions: LaneRegions, buffer: bytes) -> tuple[int, int, int]:
        placed = place(regions, buffer)
        if not done:
            Dropped(act=act, done=done)
            gc.collect()
        return placed

    monkeypatch.setattr(LaneRegions, "place", place_and_collect)
    return done


@pytest.mark.parametrize("isolation", ["process"], indirect=True)
def test_a_finalizer_asks_while_an_answer_is_encoded(
    shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = collect_while_placing(monkeypatch, lambda: shop.keep([*LARGE, print]))
    assert shop.apply(lambda: list(LARGE)) == LARGE
    assert done == ["begun", "done"]


@pytest.mark.parametrize("isolation", ["process"], indirect=True)
def test_a_finalizer_asks_while_a_question_is_encoded(
    shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = collect_while_placing(monkeypatch, lambda: shop.keep([*LARGE, print]))

    class Own:
        pass

    with pytest.raises(membrane.UnsupportedUse):
        shop.keep([*LARGE, Own(), sys._getframe()])
    assert done == ["begun", "done"]
    own = Own()
    shop.keep([*LARGE, own])
    assert shop.given()[-1] is own


@pytest.mark.parametrize("isolation", ["process"], indirect=True)
def test_a_finalizer_lets_no_answer_go_by_handle(
    shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = collect_while_placing(monkeypatch, shop.ping)
    secret = Dropped(act=list, done=[])
    with pytest.raises(membrane.AccessRefused):
        shop.apply(lambda: [LARGE[0], secret])
    assert done == ["begun", "done"]
    secret._itself = None  # type: ignore[assignment]


LONG = "long" * 1_000_000


@pytest.mark.parametrize("isolation", ["process"], indirect=True)
def test_a_finalizer_of_the_child_asks_in_the_middle_of_a_frame_that_it_reads(shop: Any) -> None:
    asked: list[str] = []
    shop.keep(asked.append)
    shop.run(
        "link = object.__getattribute__(shop.kept, '_membrane_bond').link\n"
        "lane = link._serving[__import__('_thread').get_ident()]\n"
        "receive = lane._receive\n"
        "def receive_and_collect(rest):\n"
        "    if lane.is_amid:\n"
        "        lane._receive = receive\n"
        "        shop.kept('collected')\n"
        "    return receive(rest)\n"
        "lane._receive = receive_and_collect\n"
    )
    assert shop.echo(LONG) == LONG
    assert asked == ["collected"]


@pytest.mark.parametrize("isolation", ["process"], indirect=True)
def test_a_finalizer_asks_in_the_middle_of_a_frame_that_is_written(shop: Any) -> None:
    link = session_of(type(shop)).link()
    asked: list[object] = []

    def echoed() -> object:
        lane = link._serving[threading.get_ident()]
        send = lane._send
        sent: list[int] = []

        def send_and_collect(rest: Any, flags: int) -> int:
            if sent and not asked:
                asked.append(shop.ping())
            sent.append(send(rest, flags))
            return sent[-1]

        lane._send = send_and_collect  # type: ignore[assignment]
        return shop.echo(LONG)

    assert shop.apply.with_options(deadline=SECONDS)(echoed) == LONG
    assert asked == [1]


@pytest.mark.parametrize("isolation", ["process"], indirect=True)
def test_a_finalizer_on_the_thread_that_a_child_is_told_on_asks_nobody(shop: Any) -> None:
    asked: list[str] = []
    shop.keep(asked.append)
    shop.run(
        "link = object.__getattribute__(shop.kept, '_membrane_bond').link\n"
        "lock = link._lock\n"
        "class Entered:\n"
        "    def __enter__(self):\n"
        "        lock.acquire()\n"
        "        if link._lock is self and __import__('_thread').get_ident() == link._watcher:\n"
        "            link._lock = lock\n"
        "            try:\n"
        "                shop.kept('asked')\n"
        "            except Exception as error:\n"
        "                shop.name = type(error).__name__\n"
        "    def __exit__(self, *error):\n"
        "        lock.release()\n"
        "link._lock = Entered()\n"
    )
    shop.apply(lambda: in_time(shop.ping))
    assert shop.name == "UnsupportedUse"
    assert asked == []


@pytest.mark.parametrize("isolation", ["process"], indirect=True)
def test_proxies_die_between_a_request_and_its_reply(shop: Any) -> None:
    link = session_of(type(shop)).link()
    kept = [shop.item(str(number)) for number in range(20)]
    held = "len(object.__getattribute__(cb, '_membrane_bond').exports)"
    before = shop.see(held, cb=print)
    lane = link._free[-1]
    receive = lane._receive

    def receive_and_collect(*rest: Any) -> int:
        kept.clear()
        gc.collect()
        return receive(*rest)

    lane._receive = receive_and_collect  # type: ignore[assignment]
    assert shop.echo("sent") == "sent"
    assert not kept
    assert shop.see(held, cb=print) == before - 20
    assert shop.add(1) == 3


@pytest.mark.parametrize("isolation", ["process"], indirect=True)
def test_a_finalizer_of_the_child_asks_as_it_is_given_shared_memory(shop: Any) -> None:
    asked: list[str] = []
    shop.keep(asked.append)
    shop.run(
        "from membrane.framing import FramedEnd\n"
        "usual = FramedEnd.take_descriptor\n"
        "def collected(self):\n"
        "    FramedEnd.take_descriptor = usual\n"
        "    shop.kept('collected')\n"
        "    return usual(self)\n"
        "FramedEnd.take_descriptor = collected\n"
    )
    assert shop.echo(LARGE) == LARGE
    assert asked == ["collected"]
