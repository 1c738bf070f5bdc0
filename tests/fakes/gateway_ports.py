"""What a gateway's use cases stand on, in memory: associations, a carrier, and signalling."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from chassis.errors import FairleadError, Unavailable
from relay_gateway.happening import Ended, Happening, PathDown, PathUp
from relay_gateway.message import Hello, Order, Report
from relay_gateway.ports import Association
from relay_gateway.session import CloseReason, WantedSession


class AssociationFake:
    """An association to which a test lets things happen; a restart raises `error` when it is set,
    and waits while `may_restart` is clear.
    """

    def __init__(self, take: Callable[[Happening], None], *, can_restart: bool) -> None:
        self.answer = "v=0 answer"
        self.channels = 0
        self.can_restart = can_restart
        self.closes = 0
        self.applied: list[str] = []
        self.has_all = False
        self.offers: list[str] = []
        self.error: FairleadError | None = None
        self.may_restart = asyncio.Event()
        self.may_restart.set()
        self.may_close = asyncio.Event()
        self.may_close.set()
        self.happen = take

    def connect(self) -> None:
        """Let the path come up."""
        self.happen(PathUp())

    def lose_path(self) -> None:
        """Let nothing be heard of the peer."""
        self.happen(PathDown())

    def end(self, reason: CloseReason = CloseReason.PEER_CLOSED) -> None:
        """Let the connection be over."""
        self.happen(Ended(reason))

    async def restart(self, wanted: WantedSession) -> str:
        offer = wanted.offer
        self.offers.append(offer)
        await self.may_restart.wait()
        if self.error is not None:
            raise self.error
        return f"answer to {offer}"

    async def add_candidate(self, candidate: str) -> None:
        await asyncio.sleep(0)
        self.applied.append(candidate)

    async def end_candidates(self) -> None:
        self.has_all = True

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

    async def answer(
        self, wanted: WantedSession, take: Callable[[Happening], None]
    ) -> AssociationFake:
        await self.may_answer.wait()
        if self.error is not None:
            raise self.error
        made = self.made[wanted.session_id] = AssociationFake(take, can_restart=wanted.trickles)
        return made

    async def restart(self, association: Association, wanted: WantedSession) -> str:
        return await association.restart(wanted)


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
