"""What a gateway's use cases stand on, in memory: associations, a carrier, and signalling."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from chassis.errors import FairleadError, Unavailable
from relay_gateway.message import Hello, Order, Report
from relay_gateway.session import CloseReason, WantedSession


class AssociationFake:
    """An association that a test connects and ends."""

    def __init__(self) -> None:
        self.answer = "v=0 answer"
        self.channels = 0
        self.closes = 0
        self.is_connected = asyncio.Event()
        self.is_ended = asyncio.Event()
        self.reason = CloseReason.PEER_CLOSED
        self.may_close = asyncio.Event()
        self.may_close.set()

    async def connected(self) -> None:
        await self.is_connected.wait()

    async def ended(self) -> CloseReason:
        await self.is_ended.wait()
        return self.reason

    async def close(self) -> None:
        await self.may_close.wait()
        self.closes += 1


class CarrierFake:
    """Makes association fakes; raises `error` when it is set, waits while `may_answer` is clear."""

    def __init__(self) -> None:
        self.made: dict[str, AssociationFake] = {}
        self.error: Exception | None = None
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def answer(self, wanted: WantedSession) -> AssociationFake:
        await self.may_answer.wait()
        if self.error is not None:
            raise self.error
        self.made[wanted.session_id] = AssociationFake()
        return self.made[wanted.session_id]


class ConversationFake:
    """A stream to signalling; `None` among the orders ends it, an error breaks it."""

    def __init__(self, *orders: Order | FairleadError | None) -> None:
        self.told: list[Report] = []
        self.queue: asyncio.Queue[Order | FairleadError | None] = asyncio.Queue()
        for order in orders:
            self.queue.put_nowait(order)

    def tell(self, report: Report) -> None:
        self.told.append(report)

    def finish(self) -> None:
        self.queue.put_nowait(None)

    async def orders(self) -> AsyncIterator[Order]:
        while (order := await self.queue.get()) is not None:
            if isinstance(order, FairleadError):
                raise order
            yield order


class SignallingFake:
    """Gives the scripted conversations, one after the other, and is away when there are no more."""

    def __init__(self, *conversations: ConversationFake) -> None:
        self.conversations = list(conversations)
        self.hellos: list[Hello] = []
        self.dials = 0

    @asynccontextmanager
    async def converse(self, hello: Hello) -> AsyncIterator[ConversationFake]:
        self.dials += 1
        if not self.conversations:
            raise Unavailable("Away.", reason="signalling_unavailable")
        self.hellos.append(hello)
        yield self.conversations.pop(0)
