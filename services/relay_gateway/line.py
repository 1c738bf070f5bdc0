"""The line to signalling as sessions and channels see it: there, or away for a while."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import replace

from chassis.errors import FairleadError, Unavailable
from relay_gateway.message import PortGranted, PortWanted, Report
from relay_gateway.ports import Conversation
from relay_gateway.session import PortNotGranted, PortTimeout

GRANT_SECONDS = 10.0
ASKED_AT_ONCE = 64
"""Signalling looks at 128 requests of one gateway at once and refuses more."""


class LineLost(Unavailable):
    """The stream to signalling broke while something was asked."""

    def __init__(self) -> None:
        super().__init__("Signalling is away.", reason="signalling_unavailable")


class Line:
    """Passes reports on, and matches port requests with their answers."""

    def __init__(
        self, *, traceparent: Callable[[], str], grant_seconds: float = GRANT_SECONDS
    ) -> None:
        self._traceparent = traceparent
        self._grant_seconds = grant_seconds
        self._conversation: Conversation | None = None
        self._up = asyncio.Event()
        self._numbers = itertools.count(1)
        self._turns = asyncio.Semaphore(ASKED_AT_ONCE)
        self._asked: dict[int, asyncio.Future[None]] = {}

    @property
    def is_up(self) -> bool:
        """Say whether signalling has welcomed this gateway and the stream holds."""
        return self._up.is_set()

    def connect(self, conversation: Conversation) -> None:
        """Use a conversation from now on."""
        self._conversation = conversation
        self._up.set()

    def disconnect(self) -> None:
        """Have no conversation; who waits for a port asks again on the next one."""
        self._conversation = None
        self._up.clear()
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(LineLost())
        self._asked.clear()

    def tell(self, report: Report) -> None:
        """Pass a report on; dropped while signalling is away: the next hello states all anew."""
        if self._conversation is not None:
            self._conversation.tell(report)

    async def ask_port(
        self, session_id: str, port: int, ticket: bytes, execution_id: str = ""
    ) -> None:
        """Ask for a connection into a session's sandbox, through reconnects, for a bounded time;
        the worker brings it with the ticket. With `execution_id` it is to that terminal.

        Raises PortNotGranted with signalling's reason, or PortTimeout.
        """
        try:
            async with asyncio.timeout(self._grant_seconds), self._turns:
                while True:
                    await self._up.wait()
                    try:
                        return await self._ask(
                            PortWanted(0, session_id, port, "", ticket, execution_id)
                        )
                    except LineLost:
                        continue
        except TimeoutError:
            raise PortTimeout(port) from None

    def granted(self, grant: PortGranted) -> None:
        """Give an answer to who asked; one that nobody waits for any more is dropped."""
        asked = self._asked.pop(grant.request_id, None)
        if asked is None or asked.done():
            return
        if grant.refusal is None:
            asked.set_result(None)
        else:
            asked.set_exception(_refused(grant.refusal.reason, grant.refusal.message))

    async def _ask(self, wanted: PortWanted) -> None:
        number = next(self._numbers)
        asked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            self._asked[number] = asked
            self.tell(replace(wanted, request_id=number, traceparent=self._traceparent()))
            await asked
        finally:
            self._asked.pop(number, None)


def _refused(reason: str, message: str) -> FairleadError:
    return PortNotGranted(reason or "port_not_granted", message)
