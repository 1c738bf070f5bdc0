"""Who types into a terminal: one attachment at a time, which another one may take from it.

The place becomes free when whoever types has stopped, not when it is told to: what it has typed is
counted before the next one begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

from sandbox_worker.execution_errors import TerminalOwned

Answer = TypeVar("Answer")

MOST_OWNER_BYTES = 128
_SINGLE = "\0"
"""Owner of single pieces, which no attachment can be: it is told apart by its text."""


class Seat:
    """The place of whoever types; `resumed` says that nobody else had it since the same owner.

    Whoever gets one leaves it, too.
    """

    def __init__(self, *, owner: str, resumed: bool) -> None:
        self.owner = owner
        self.resumed = resumed
        self.lost = asyncio.Event()
        self.left = asyncio.Event()

    async def until_lost(self, work: Coroutine[object, object, Answer]) -> Answer:
        """Do some work, at most until the place is taken; raises TerminalOwned then."""
        doing = asyncio.ensure_future(work)
        losing = asyncio.ensure_future(self.lost.wait())
        try:
            await asyncio.wait((doing, losing), return_when=asyncio.FIRST_COMPLETED)
            if doing.done():
                return doing.result()
            raise TerminalOwned
        finally:
            doing.cancel()
            losing.cancel()
            await asyncio.gather(doing, losing, return_exceptions=True)


class Terminal:
    """The place in front of one terminal."""

    def __init__(self) -> None:
        self._seat: Seat | None = None
        self._last_owner = ""

    @property
    def is_owned(self) -> bool:
        """Whether somebody has the place."""
        return self._seat is not None

    async def take(self, *, owner: str = "", take_over: bool = False) -> Seat:
        """Take the place, and wait until whoever had it has stopped to type.

        One that is taken is refused (TerminalOwned) unless `take_over`, or for its own `owner` who
        comes back before the loss of the earlier connection was noticed.
        """
        while (holder := self._seat) is not None:
            if not take_over and not (owner and owner == holder.owner):
                raise TerminalOwned
            holder.lost.set()
            await holder.left.wait()
        self._seat = Seat(owner=owner, resumed=bool(owner) and owner == self._last_owner)
        self._last_owner = owner
        return self._seat

    async def typed(self, work: Coroutine[object, object, Answer]) -> Answer:
        """Type a single piece; raises TerminalOwned while somebody is attached.

        The next single piece takes the place of one that waits: it goes on where that one came to.
        """
        try:
            seat = await self.take(owner=_SINGLE)
        except BaseException:
            work.close()
            raise
        try:
            return await seat.until_lost(work)
        finally:
            self.leave(seat)

    def leave(self, seat: Seat) -> None:
        """Free the place; again is harmless."""
        if self._seat is seat:
            self._seat = None
        seat.left.set()
