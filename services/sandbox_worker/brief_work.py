"""Short work on files: on the event loop while the disk is quick, in a thread while it is not.

A thread that makes five system calls takes the interpreter's lock five times from the event loop:
in threads, a create, run and release took 22 ms of the worker's processor time, so 12. A disk that
hangs holds the loop up once in REST_SECONDS.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from chassis.clock import Clock

Answer = TypeVar("Answer")

LONGEST_SECONDS = 0.05
"""What takes longer was waiting for the disk; less may have been other processes' turns."""

REST_SECONDS = 5.0
"""How long nothing runs on the event loop after that."""


class BriefWork:
    """Where short pieces of work on one disk run; long ones always go to `executor`."""

    def __init__(self, *, executor: Executor, clock: Clock) -> None:
        self._executor = executor
        self._clock = clock
        self._slow_until = clock.monotonic()

    async def run(self, work: Callable[[], Answer]) -> Answer:
        """Do work that takes a few system calls; without a pause while the disk is quick."""
        begun = self._clock.monotonic()
        if begun < self._slow_until:
            return await self.run_apart(work)
        try:
            return work()
        finally:
            ended = self._clock.monotonic()
            if ended - begun > LONGEST_SECONDS:
                self._slow_until = ended + REST_SECONDS

    async def run_apart(self, work: Callable[[], Answer]) -> Answer:
        """Do work of any length in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)
