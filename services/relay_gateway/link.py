"""Keeps the line to signalling: dials, says hello, takes orders, and dials again when it breaks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from chassis.errors import FairleadError, Unavailable
from relay_gateway.line import Line
from relay_gateway.message import (
    Candidates,
    Hello,
    Order,
    PortGranted,
    SessionUnwanted,
    TunnelTerms,
    Welcome,
)
from relay_gateway.ports import Conversation, Signalling
from relay_gateway.session import WantedSession
from relay_gateway.switchboard import Switchboard

WELCOME_SECONDS = 5.0
LEAST_DELAY = 0.1
MOST_DELAY = 5.0
GOODBYE_SECONDS = 1.0

log = logging.getLogger(__name__)


class WelcomeMissing(Unavailable):
    """Signalling took the stream and then said something else than welcome, or nothing."""

    def __init__(self) -> None:
        super().__init__(
            "Signalling did not welcome this gateway.", reason="signalling_unavailable"
        )


class Link:
    """Runs for as long as the gateway lives."""

    def __init__(
        self,
        *,
        gateway_id: str,
        capacity: int,
        workers_address: str,
        signalling: Signalling,
        line: Line,
        switchboard: Switchboard,
        jitter: Callable[[float, float], float],
        can_trickle: bool = False,
        tunnel: TunnelTerms | None = None,
    ) -> None:
        self._gateway_id = gateway_id
        self._capacity = capacity
        self._workers_address = workers_address
        self._signalling = signalling
        self._line = line
        self._switchboard = switchboard
        self._jitter = jitter
        self._can_trickle = can_trickle
        self._tunnel = tunnel
        self._failures = 0
        self._conversation: Conversation | None = None
        self._ended = asyncio.Event()
        self._is_stopping = False

    async def run(self) -> None:
        """Hold conversations one after the other until stopped.

        Between two there is a random delay from 0.1 s up to a bound that doubles with each failure
        in a row, to at most 5 s (full jitter), so that many gateways do not come back at once.
        """
        while not self._is_stopping:
            try:
                await self._converse()
            except FairleadError as error:
                # Once for each time that it is away.
                level = logging.DEBUG if self._failures else logging.WARNING
                log.log(level, "signalling lost", extra={"reason": error.reason})
            if self._is_stopping:
                return
            most = min(MOST_DELAY, LEAST_DELAY * 2**self._failures)
            self._failures = min(self._failures + 1, 10)
            await asyncio.sleep(self._jitter(LEAST_DELAY, most))

    async def stop(self) -> None:
        """Say everything that is still to be said, for at most a second, and dial no more."""
        self._is_stopping = True
        if self._conversation is not None:
            self._conversation.finish()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GOODBYE_SECONDS):
                    await self._ended.wait()

    async def _converse(self) -> None:
        hello = Hello(
            self._gateway_id,
            self._switchboard.state(),
            self._capacity,
            self._workers_address,
            self._can_trickle,
            self._switchboard.ended,
            self._tunnel,
        )
        async with self._signalling.converse(hello) as conversation:
            orders = conversation.orders()
            try:
                async with asyncio.timeout(WELCOME_SECONDS):
                    first = await anext(orders, None)
            except TimeoutError:
                raise WelcomeMissing from None
            if not isinstance(first, Welcome):
                raise WelcomeMissing
            self._failures = 0
            self._conversation = conversation
            self._ended.clear()
            self._line.connect(conversation)
            log.info("signalling found", extra={"wanted": len(first.wanted)})
            try:
                self._switchboard.reconcile(first.wanted)
                async with asyncio.TaskGroup() as tasks:
                    beat = tasks.create_task(self._beat(conversation, first.heartbeat_seconds))
                    async for order in orders:
                        self._take(order)
                    beat.cancel()
            except* FairleadError as group:
                raise _first(group) from None
            finally:
                self._line.disconnect()
                self._conversation = None
                self._ended.set()

    async def _beat(self, conversation: Conversation, seconds: float) -> None:
        """Send heartbeats a little more often than is asked."""
        while True:
            conversation.tell(self._switchboard.heartbeat())
            await asyncio.sleep(max(0.1, seconds * 0.8))

    def _take(self, order: Order) -> None:
        match order:
            case WantedSession():
                self._switchboard.want(order)
            case Candidates():
                self._switchboard.given(order)
            case SessionUnwanted(session_id):
                self._switchboard.unwant(session_id)
            case PortGranted():
                self._line.granted(order)
            case Welcome(wanted):
                self._switchboard.reconcile(wanted)


def _first(group: BaseExceptionGroup[FairleadError]) -> FairleadError:
    for error in group.exceptions:
        return error if isinstance(error, FairleadError) else _first(error)
    raise AssertionError("an exception group is never empty")
