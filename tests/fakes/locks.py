"""A lock that says when somebody waits for it, so that two threads meet in one window."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tests.eventually import SECONDS


class SeenLock:
    """A lock that notes who comes while another thread has it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._is_there = threading.Event()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._is_there.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def beside(self, act: Callable[[], object]) -> threading.Thread:
        """Act in another thread; returns once that has acted, or waits for this lock."""

        def run() -> None:
            try:
                act()
            finally:
                self._is_there.set()

        thread = threading.Thread(target=run)
        thread.start()
        assert self._is_there.wait(SECONDS)
        return thread
