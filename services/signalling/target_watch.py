"""Closes connected sessions whose launch or sandbox is gone: a lease that ends at its host, or a
host that lost what it held, tells nobody.
"""

from __future__ import annotations

import asyncio
import logging

from chassis.errors import FairleadError
from signalling.close_reason import CloseReason
from signalling.session_book import SessionBook
from signalling.session_ports import Targets

PERIOD_SECONDS = 10.0
"""How often each target is asked for; two looks in a row have to miss it."""
_AT_ONCE = 16

log = logging.getLogger(__name__)


class TargetWatch:
    """Looks after the targets of the connected sessions of this process."""

    def __init__(self, *, book: SessionBook, targets: Targets) -> None:
        self._book = book
        self._targets = targets
        self._missed: frozenset[tuple[str, str]] = frozenset()
        self._free = asyncio.Semaphore(_AT_ONCE)

    async def look(self) -> None:
        """Ask for every target once, and close the sessions of those that are missed again: one
        miss may be that of a host which is just coming back.
        """
        wanted = {
            (session.tenant, session.launch_id)
            for session in self._book.live()
            if session.is_connected
        }
        async with asyncio.TaskGroup() as tasks:
            asked = {target: tasks.create_task(self._is_gone(*target)) for target in wanted}
        missed = frozenset(target for target, answer in asked.items() if answer.result())
        gone, self._missed = missed & self._missed, missed
        for session in self._book.live():
            if session.is_connected and (session.tenant, session.launch_id) in gone:
                await self._book.close(
                    session.session_id,
                    CloseReason.LAUNCH_ENDED,
                    "What the session leads to is not there any more.",
                )

    async def watch(self, period_seconds: float = PERIOD_SECONDS) -> None:
        """Look for ever; a store that is away is tried again."""
        while True:
            await asyncio.sleep(period_seconds)
            try:
                await self.look()
            except FairleadError as error:
                log.warning("targets not looked after", extra={"reason": error.reason})

    async def _is_gone(self, tenant: str, launch_id: str) -> bool:
        """Say whether a target is known to be gone; where nobody can say, it is there."""
        async with self._free:
            try:
                return await self._targets.is_gone(tenant, launch_id)
            except FairleadError:
                return False
