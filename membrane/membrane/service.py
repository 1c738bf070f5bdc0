"""The service thread of an interpreter: watches descriptors and clocks for all sessions.

Nothing on the path of a call waits for it. `threading` does not wait for it either: it ends when
the interpreter's other threads have, at exit. In sub-interpreters, which may have no right to
threads and cannot be destroyed while one runs, there is none: what is due is done by who calls.
"""

from __future__ import annotations

import atexit
import contextlib
import heapq
import importlib
import itertools
import logging
import os
import select
import threading
import time
import weakref
from _thread import start_new_thread
from collections import deque
from functools import cache
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

_END_SECONDS = 1.0
_TURN_SECONDS = 0.02


class Closing(Protocol):
    """What is told that the interpreter ends, or that this is a fork of its process."""

    def on_exit(self) -> None:
        """End all that is below; waits a moment at most."""

    def on_fork(self) -> None:
        """Let go of all descriptors, and leave what is behind them alone."""


class Service:
    """One thread that calls back: when a descriptor can be read, when it is time, or soon.

    `is_threadless` says that there is none, so that who calls has to `pump`.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._watched: dict[int, Callable[[], None]] = {}
        self._soon: deque[Callable[[], None]] = deque()
        # No lock around these: what is collected under one could want those of others.
        self._later: deque[tuple[float, int, Callable[[], None]]] = deque()
        self._times: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._lock = threading.RLock()
        self._closing: weakref.WeakSet[Closing] = weakref.WeakSet()
        self._threads: list[threading.Lock] = []
        self._is_started = False
        self.is_threadless = is_sub_interpreter()
        self._is_over = False
        self._is_abandoned = False

    def watch(self, descriptor: int, readable: Callable[[], None]) -> None:
        """Call `readable` when the descriptor can be read or its other side is gone, again and
        again until it is forgotten. It may be called for nothing.
        """
        self._start()
        self._watched[descriptor] = readable
        self._epoll.register(descriptor, select.EPOLLIN)

    def forget(self, descriptor: int) -> None:
        """Watch it no longer; before it is closed."""
        if self._watched.pop(descriptor, None) is not None:
            with contextlib.suppress(OSError):
                self._epoll.unregister(descriptor)

    def soon(self, call: Callable[[], None]) -> None:
        """Call from the service thread."""
        self._start()
        self._soon.append(call)
        self._wake_up()

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Call from the service thread in so many seconds."""
        self._start()
        self._later.append((time.monotonic() + seconds, next(self._numbers), call))
        self._wake_up()

    def run(self, work: Callable[[], None]) -> None:
        """Run work on a thread of its own, which is waited for a moment at exit."""
        # One by one: a list in its place could lack what another thread has just put in.
        for each in [each for each in self._threads if not each.locked()]:
            with contextlib.suppress(ValueError):
                self._threads.remove(each)
        ended = threading.Lock()
        ended.acquire()

        def begin() -> None:
            try:
                work()
            except Exception:
                log.exception("a thread of a session failed")
            finally:
                ended.release()

        start_new_thread(begin, ())
        self._threads.append(ended)

    def tell(self, closing: Closing) -> None:
        """Tell it when the interpreter ends; it is not kept alive for that."""
        self._closing.add(closing)

    def _start(self) -> None:
        if self._is_started:
            return
        with self._lock:
            if not self._is_started:
                self._is_started = True
                if not self.is_threadless:
                    self.run(self._loop)
                atexit.register(self._on_exit)
                os.register_at_fork(after_in_child=self._on_fork)

    def _wake_up(self) -> None:
        with contextlib.suppress(OSError):
            os.eventfd_write(self._wake, 1)

    def pump(self) -> None:
        """Do what is due, in a sub-interpreter; nothing in the main one."""
        if self.is_threadless:
            self._turn(0.0)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait for an event that the service brings about; returns whether it came."""
        if not self.is_threadless:
            return event.wait(seconds)
        self.turn_while(lambda: not event.is_set(), seconds)
        return event.is_set()

    def turn_while(self, condition: Callable[[], bool], seconds: float) -> None:
        """Do what comes as long as this holds, in a sub-interpreter; nothing in the main one."""
        ends_at = time.monotonic() + seconds
        while self.is_threadless and condition() and time.monotonic() < ends_at:
            self._turn(_TURN_SECONDS)

    def _loop(self) -> None:
        while not self._is_over:
            self._turn(None)

    def _turn(self, most: float | None) -> None:
        """Wait for what comes next, at most so many seconds, and call back."""
        left = self._nap()
        if most is not None:
            left = most if left is None else min(left, most)
        for descriptor, _ in self._epoll.poll(0 if self._soon else left):
            if descriptor == self._wake:
                with contextlib.suppress(OSError):
                    os.eventfd_read(self._wake)
                continue
            readable = self._watched.get(descriptor)
            if readable is not None and not self._call(readable):
                self.forget(descriptor)
        while self._soon:
            self._call(self._soon.popleft())
        for call in self._due():
            self._call(call)

    def _call(self, call: Callable[[], None]) -> bool:
        try:
            call()
        except Exception:
            log.exception("the service of sessions failed in one of them")
            return False
        return True

    def _nap(self) -> float | None:
        while self._later:
            heapq.heappush(self._times, self._later.popleft())
        return max(0.0, self._times[0][0] - time.monotonic()) if self._times else None

    def _due(self) -> list[Callable[[], None]]:
        found = []
        while self._times:
            first = heapq.heappop(self._times)
            if first[0] > time.monotonic():
                heapq.heappush(self._times, first)
                break
            found.append(first[2])
        return found

    def _on_exit(self) -> None:
        for closing in list(self._closing):
            closing.on_exit()
        self._is_over = True
        self._wake_up()
        ends_at = time.monotonic() + _END_SECONDS
        for ended in self._threads:
            if ended.acquire(timeout=max(0.0, ends_at - time.monotonic())):
                ended.release()

    def _on_fork(self) -> None:
        """Be a fork, which has this thread's memory and not this thread."""
        # A fork of the fork is told again, where these descriptors are others already.
        if self._is_abandoned:
            return
        self._is_abandoned = True
        for closing in list(self._closing):
            closing.on_fork()
        self._epoll.close()
        os.close(self._wake)
        service.cache_clear()
        atexit.unregister(self._on_exit)


def is_sub_interpreter() -> bool:
    """Say whether this is not the main interpreter (PEP 554, and its module before it had one)."""
    for name in ("_interpreters", "_xxsubinterpreters"):
        with contextlib.suppress(ImportError):
            interpreters = importlib.import_module(name)
            return bool(interpreters.get_current() != interpreters.get_main())
    return False


@cache
def service() -> Service:
    """Return the service of this interpreter."""
    return Service()
