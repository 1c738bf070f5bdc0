"""Prepares off the call path what launches take: templates after each upload, pool entries by
demand; clears away what nobody takes any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

from chassis.clock import Clock
from workspace_provisioner.ports import CheckoutPlan, ObjectsLacking, Shelves
from workspace_provisioner.sources import ProjectKey

log = logging.getLogger(__name__)

MOST_ENTRIES = 8
"""Pool entries of one commit that are kept ready at most."""
_MEMORY = timedelta(minutes=10)
_MOST_WAITING = 1000
_PERIOD_SECONDS = 300.0
# Behind the first answers, but also where a process only lives as long as one launch.
_FIRST_SECONDS = 1.0
_BREATH_SECONDS = 0.05
_LONGEST_BREATHS = 20

Wanted = tuple[ProjectKey, str]


class Preparations:
    """What is to be prepared, one thing after another, at idle priority."""

    def __init__(self, *, shelves: Shelves, clock: Clock) -> None:
        self._shelves = shelves
        self._clock = clock
        self._waiting: dict[Wanted, None] = {}
        self._takes: dict[Wanted, deque[datetime]] = {}
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def want(self, key: ProjectKey, commit: str) -> None:
        """Let a commit be prepared soon; of very many, the newest."""
        self._waiting.pop((key, commit), None)
        self._waiting[key, commit] = None
        if len(self._waiting) > _MOST_WAITING:
            del self._waiting[next(iter(self._waiting))]
        self._idle.clear()
        self._wake.set()

    def taken(self, plan: CheckoutPlan) -> None:
        """Remember that a pool entry was wanted, and let the next one be made; of very many, the
        newest.
        """
        wanted = plan.key, plan.commit
        takes = self._takes.pop(wanted, None) or deque(maxlen=MOST_ENTRIES)
        takes.append(self._clock.now())
        self._takes[wanted] = takes
        if len(self._takes) > _MOST_WAITING:
            del self._takes[next(iter(self._takes))]
        self.want(plan.key, plan.commit)

    def depth(self, key: ProjectKey, commit: str) -> int:
        """Return how many pool entries a commit should have: as many as were wanted in the last
        ten minutes; one where overlays cannot be mounted.
        """
        takes = self._takes.get((key, commit))
        since = self._clock.now() - _MEMORY
        while takes and takes[0] < since:
            takes.popleft()
        if takes is not None and not takes:
            del self._takes[key, commit]
        return max(len(takes or ()), 0 if self._shelves.can_overlay else 1)

    async def finished(self) -> None:
        """Wait until nothing is left to prepare."""
        await self._idle.wait()

    @asynccontextmanager
    async def running(self, is_busy: Callable[[], bool]) -> AsyncIterator[None]:
        """Prepare while the block runs; what is being prepared at its end is thrown away.

        `is_busy` says whether calls are being served, which go first for a second.
        """
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(self._prepare(is_busy)),
                tasks.create_task(self._collect()),
            ]
            try:
                yield
            finally:
                for task in running:
                    task.cancel()

    async def _prepare(self, is_busy: Callable[[], bool]) -> None:
        while True:
            await self._wake.wait()
            while self._waiting:
                await _let_calls_go_first(is_busy)
                # The newest first: it is what the next launch asks for.
                (key, commit), _ = self._waiting.popitem()
                await self._attempt(key, commit)
            self._wake.clear()
            self._idle.set()

    async def _attempt(self, key: ProjectKey, commit: str) -> None:
        try:
            await self._shelves.prepare(key, commit, depth=self.depth(key, commit))
        except ObjectsLacking:
            log.info("commit gone before it was prepared", extra={"commit": commit})
        except Exception:
            log.exception("preparing failed", extra={"commit": commit})

    async def _collect(self) -> None:
        pause = _FIRST_SECONDS
        while True:
            await asyncio.sleep(pause)
            pause = _PERIOD_SECONDS
            try:
                await self._shelves.collect()
            except Exception:
                log.exception("clearing up failed")


async def _let_calls_go_first(is_busy: Callable[[], bool]) -> None:
    for _ in range(_LONGEST_BREATHS):
        await asyncio.sleep(_BREATH_SECONDS)
        if not is_busy():
            return
