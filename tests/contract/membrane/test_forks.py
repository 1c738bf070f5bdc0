"""Forks of the calling process, made while another thread is in the middle of something."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

import membrane
from membrane import isolating
from membrane.sessions import sessions
from tests.contract.membrane.conftest import ROOT, SHOP, Isolate
from tests.eventually import SECONDS


def isolated() -> Any:
    return membrane.isolate(f"{SHOP}:Shop", isolation="process", paths=[str(ROOT)])


def in_fork(act: Callable[[], object]) -> str:
    """Act in a fork of this process; returns what that gives, or raises, as text."""
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            answer = str(act())
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(tell, answer.encode())
        os._exit(0)
    os.close(tell)
    with os.fdopen(told, "rb") as file:
        if not select.select([file], [], [], SECONDS)[0]:
            os.kill(pid, signal.SIGKILL)
        answer = file.read().decode()
    os.waitpid(pid, 0)
    return answer


class Held:
    """Another thread that has a lock, until a fork begins or the end of this."""

    def __init__(self, lock: AbstractContextManager[object], *, until_fork: bool) -> None:
        self._lock = lock
        self._is_there, self._leave = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._hold)
        if until_fork:
            os.register_at_fork(before=self._leave.set)

    def __enter__(self) -> None:
        self._thread.start()
        assert self._is_there.wait(SECONDS)

    def __exit__(self, *_: object) -> None:
        self._leave.set()
        self._thread.join(SECONDS)

    def _hold(self) -> None:
        with self._lock:
            self._is_there.set()
            assert self._leave.wait(SECONDS)


def ping_of_another_class() -> object:
    kind = isolated()
    try:
        return kind().ping()
    finally:
        kind.close()


def test_a_fork_isolates_though_another_thread_did_just_then() -> None:
    with Held(isolating._lock, until_fork=True):
        assert in_fork(ping_of_another_class) == "1"


@pytest.mark.parametrize("isolation", ["process"], indirect=True)
def test_a_fork_isolates_whatever_lock_of_the_sessions_is_held(isolate: Isolate) -> None:
    isolate("Shop")().ping()
    held = sessions()
    (kind, *_) = held.pool._kinds.values()
    for lock in (held._lock, held.service._lock, held.pool._lock, kind.lock):
        with Held(lock, until_fork=False):
            assert in_fork(ping_of_another_class) == "1"


@pytest.mark.parametrize("isolation", ["process"], indirect=True)
@pytest.mark.parametrize("where", ["session", "link"])
def test_a_fork_does_not_wait_for_what_another_thread_opened(isolate: Isolate, where: str) -> None:
    kind = isolate("Shop")
    made = kind()
    session = kind._membrane_classes.session
    lock = session._lock if where == "session" else session.link()._lock
    with Held(lock, until_fork=False):
        assert in_fork(kind).startswith("ChildLost: ")
        assert in_fork(made.ping).startswith("ChildLost: ")
        assert in_fork(kind.close) == "None"
    assert made.ping() == 1


@pytest.mark.parametrize("isolation", ["process"], indirect=True)
def test_a_fork_of_a_fork_lets_go_of_nothing_twice(isolate: Isolate) -> None:
    made = isolate("Shop")()

    def fork_again() -> str:
        # These have the numbers of what the first fork has let go of.
        opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(64)]
        return in_fork(lambda: [os.fstat(each).st_size for each in opened] and "all open")

    assert in_fork(fork_again) == "all open"
    assert made.ping() == 1
