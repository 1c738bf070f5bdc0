"""Ends leases and removes what was kept long enough, every second."""

from __future__ import annotations

import asyncio
import logging
from typing import Self

from chassis.errors import FairleadError
from sandbox_worker.executions import Executions
from sandbox_worker.sandboxes import Sandboxes

log = logging.getLogger(__name__)

_PERIOD_SECONDS = 1.0


class Janitor:
    """Goes round while in its block."""

    def __init__(self, *, sandboxes: Sandboxes, executions: Executions) -> None:
        self._sandboxes = sandboxes
        self._executions = executions
        self._rounds: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._rounds = asyncio.create_task(self._go_round(), name="janitor")
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._rounds is not None:
            self._rounds.cancel()
            await asyncio.wait([self._rounds])

    async def sweep(self) -> None:
        """Go round once."""
        await self._sandboxes.tidy()
        await self._sandboxes.release_expired()
        await self._executions.tidy()

    async def _go_round(self) -> None:
        """A round that fails is followed by the next one."""
        while True:
            await asyncio.sleep(_PERIOD_SECONDS)
            try:
                await self.sweep()
            except (OSError, FairleadError):
                log.exception("a sweep failed")
