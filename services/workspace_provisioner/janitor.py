"""Clears up off the call path: ended leases, old tombstones, the trash, the directory's entries."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from workspace_provisioner.importer import Importer
from workspace_provisioner.ports import Trees
from workspace_provisioner.provisioner import Provisioner

log = logging.getLogger(__name__)

_PERIOD_SECONDS = 5.0
_REPUBLISH_SECONDS = 600.0


class Janitor:
    """Runs beside the calls; `hurry` lets it empty the trash at once."""

    def __init__(self, *, trees: Trees, importer: Importer) -> None:
        self._trees = trees
        self._importer = importer
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
                tasks.create_task(self._every(_REPUBLISH_SECONDS, self._importer.republish)),
                tasks.create_task(self._empty_trash()),
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

    async def _empty_trash(self) -> None:
        while True:
            self._trash_is_full.clear()
            await _attempt(self._trees.empty_trash)
            try:
                async with asyncio.timeout(_PERIOD_SECONDS):
                    await self._trash_is_full.wait()
            except TimeoutError:
                continue


async def _attempt(work: Callable[[], Awaitable[None]]) -> None:
    """Do a piece of work; what fails is logged and tried again the next time."""
    try:
        await work()
    except Exception:
        log.exception("clearing up failed")
