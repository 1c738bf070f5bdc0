"""Clears up off the call path: ended leases, old tombstones, strays, the trash, the directory's
entries.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

from workspace_provisioner.importer import Importer
from workspace_provisioner.ports import Trees
from workspace_provisioner.provisioner import Provisioner
from workspace_provisioner.upkeep import Upkeep

T = TypeVar("T")

log = logging.getLogger(__name__)

_PERIOD_SECONDS = 5.0
_REPUBLISH_SECONDS = 600.0
_UPKEEP_SECONDS = 600.0
# Deleting slows down what follows a release, which is often the next launch: a build took 30 ms
# instead of 16 ms beside it (100 files, 2 cores, measured).
_BEFORE_DELETING_SECONDS = 1.0
_BETWEEN_SLICES_SECONDS = 0.05
_LONGEST_WAIT_SECONDS = 1.0


class Janitor:
    """Runs beside the calls; `hurry` lets it empty the trash soon."""

    def __init__(self, *, trees: Trees, importer: Importer, upkeep: Upkeep) -> None:
        self._trees = trees
        self._importer = importer
        self._upkeep = upkeep
        self._trash_is_full = asyncio.Event()

    def hurry(self) -> None:
        """Say that there is something in the trash."""
        self._trash_is_full.set()

    @asynccontextmanager
    async def running(self, provisioner: Provisioner) -> AsyncIterator[None]:
        """Clear up while the block runs; at its end nothing is begun any more."""
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(self._every(_PERIOD_SECONDS, provisioner.expire)),
                tasks.create_task(self._every(_PERIOD_SECONDS, provisioner.take_away_strays)),
                tasks.create_task(self._every(_REPUBLISH_SECONDS, self._importer.republish)),
                tasks.create_task(self._every(_UPKEEP_SECONDS, self._upkeep.tend)),
                tasks.create_task(self._empty_trash(provisioner)),
            ]
            try:
                yield
            finally:
                for task in running:
                    task.cancel()

    async def _every(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await _attempt(work)
            await asyncio.sleep(seconds)

    async def _empty_trash(self, provisioner: Provisioner) -> None:
        while True:
            self._trash_is_full.clear()
            while await _attempt(self._trees.empty_trash) is False:
                await _let_builds_go_first(provisioner)
            with suppress(TimeoutError):
                async with asyncio.timeout(_PERIOD_SECONDS):
                    await self._trash_is_full.wait()
            await asyncio.sleep(_BEFORE_DELETING_SECONDS)
            await _let_builds_go_first(provisioner)


async def _let_builds_go_first(provisioner: Provisioner) -> None:
    """Wait for a moment without builds; not for ever, or the trash would fill the disk."""
    for _ in range(round(_LONGEST_WAIT_SECONDS / _BETWEEN_SLICES_SECONDS)):
        await asyncio.sleep(_BETWEEN_SLICES_SECONDS)
        if not provisioner.is_building:
            return


async def _attempt(work: Callable[[], Awaitable[T]]) -> T | None:
    """Do a piece of work; what fails is logged and tried again the next time."""
    try:
        return await work()
    except Exception:
        log.exception("clearing up failed")
        return None
