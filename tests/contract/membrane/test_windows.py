"""Two threads at one state of sessions: what one does between two looks of the other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any, cast

import pytest

from membrane import sessions as held
from membrane.errors import ChildLost
from membrane.parent_link import ParentLink
from membrane.pool import IDLE_SECONDS, Pool, _Kind
from membrane.service import Service, service
from membrane.session import Session
from membrane.sessions import Sessions, sessions
from membrane.spawning import Child, Uids
from tests.contract.membrane.plain_fittings import call
from tests.contract.membrane.plain_sessions import open_plain, spec_of, watched
from tests.eventually import SECONDS
from tests.fakes.locks import SeenLock


def test_a_session_that_is_closed_as_it_gets_its_child_ends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opening = Session._open
    with ExitStack() as stack:
        seen: list[Callable[[], bool]] = []

        def open_as_another_closes(session: Session) -> ParentLink:
            link = opening(session)
            # While it lives: a child that has ended before its birth is told has no process id.
            seen.append(stack.enter_context(watched(link.pid)))
            sessions().close(session)
            return link

        session = open_plain()
        monkeypatch.setattr(Session, "_open", open_as_another_closes)
        link = session.link()
        with pytest.raises(ChildLost, match="closed"):
            call(link, "echo", "a")
        (gone,) = seen
        assert gone()


class Slipping:
    """The lock of a kind: when it is let go of for the first time, another thread comes for it, and
    gets it when that is said.
    """

    def __init__(self, *, come: threading.Thread) -> None:
        self._come = come
        self._lock = threading.Lock()
        self._is_there = threading.Event()
        self.may_have_it = threading.Event()

    def __enter__(self) -> None:
        if threading.current_thread() is self._come:
            self._is_there.set()
            assert self.may_have_it.wait(SECONDS)
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        if self._come.ident is None:
            self._come.start()
            assert self._is_there.wait(SECONDS)


@contextmanager
def own_pool() -> Iterator[Pool]:
    pool = Pool(service=service(), uids=Uids(first=0, count=1))
    try:
        yield pool
    finally:
        pool.close()


def test_a_kind_that_is_taken_while_it_is_found_idle_is_not_forgotten() -> None:
    session = open_plain()
    spec = spec_of(session)
    sessions().close(session)
    with own_pool() as pool:
        found: list[Child] = []
        taking = threading.Thread(target=lambda: found.append(pool.take(spec)))
        pool._kinds[spec] = kind = _Kind()
        kind.is_refilling = True  # nobody else comes
        kind.used_at -= 2 * IDLE_SECONDS
        slipping = Slipping(come=taking)
        kind.lock = cast("Any", slipping)
        pool._tidy(spec, kind)
        slipping.may_have_it.set()
        taking.join(SECONDS)
        (child,) = found
        zygotes = pool.pids(spec)
        assert len(zygotes) == 1
        with watched(child.pid, *zygotes) as gone:
            pool.close()
            assert gone()
        child.close()


def test_threads_that_come_first_at_one_time_have_the_same_sessions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lock = SeenLock()
    found: list[Sessions] = []
    beside: list[threading.Thread] = []

    def find() -> None:
        found.append(held.sessions())

    def service_as_another_comes() -> Service:
        if not beside:
            beside.append(threading.Thread())
            beside[0] = lock.beside(find)
        return service()

    monkeypatch.setattr(held, "_making", lock)
    monkeypatch.setattr(held, "_sessions", cache(held._sessions.__wrapped__))
    monkeypatch.setattr(held, "service", service_as_another_comes)
    find()
    beside[0].join(SECONDS)
    assert found[0] is found[1]


def test_a_thread_that_begins_while_another_does_is_waited_for() -> None:
    own = Service()
    end = threading.Event()
    ended: list[str] = []

    class Window:
        """A thread that runs; while it is looked at, another one begins."""

        def locked(self) -> bool:
            if not ended:
                ended.append("begun")
                own.run(lambda: ended.append(str(end.wait(SECONDS))))
            return True

    own._threads.append(cast("threading.Lock", Window()))
    own.run(lambda: None)
    assert len(own._threads) == 3
    end.set()
    assert own._threads[1].acquire(timeout=SECONDS)
    assert ended == ["begun", "True"]
