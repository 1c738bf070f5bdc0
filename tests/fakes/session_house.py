"""Sessions of one replica or more, with fakes for all that they need."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from signalling.association import Association, Want
from signalling.broker import Broker
from signalling.close_reason import CloseReason
from signalling.gateway import Gateway
from signalling.gateway_desk import GatewayDesk
from signalling.reservations import Reservations
from signalling.session import Session
from signalling.session_book import SessionBook
from signalling.session_event import SessionState
from signalling.session_name import SessionNames
from signalling.session_ports import Happened, Watched
from signalling.session_timings import SessionTimings
from signalling.switchboard import Switchboard
from signalling.tunnel import TunnelTerms
from tests.fakes.clock import FakeClock
from tests.fakes.sessions import (
    ANSWER,
    NO_SERVERS,
    OFFER,
    FakeGatewayDirectory,
    FakeReachedLaunches,
    FakeSessionStore,
    bare_launch,
    held_launch,
)

GATEWAY = "gtw_" + "a" * 26
OTHER_GATEWAY = "gtw_" + "b" * 26
HELD = held_launch()
BARE = bare_launch()
TRACEPARENT = "00-" + "1" * 32 + "-" + "2" * 16 + "-01"
"""Of whatever is done here."""


@dataclass
class House:
    """One replica."""

    clock: FakeClock
    store: FakeSessionStore
    directory: FakeGatewayDirectory
    launches: FakeReachedLaunches
    book: SessionBook
    switchboard: Switchboard
    broker: Broker
    desk: GatewayDesk

    async def connect(
        self,
        gateway_id: str = GATEWAY,
        held: tuple[str, ...] = (),
        capacity: int = 0,
        *,
        can_trickle: bool = False,
        tunnel: TunnelTerms | None = None,
        ended: Mapping[str, CloseReason] = MappingProxyType({}),
    ) -> tuple[Association, list[str]]:
        gateway = Gateway(
            gateway_id,
            connected_at=self.clock.now(),
            capacity=capacity,
            can_trickle=can_trickle,
            tunnel=tunnel,
        )
        association, wanted = await self.switchboard.connect(gateway, frozenset(held), ended)
        return association, [session.session_id for session in wanted]

    async def answered(self, association: Association) -> Session:
        """Open a session, offer and answer it."""
        session = await self.broker.open("default", HELD.launch_id, "complete", None)
        offering = asyncio.create_task(self.broker.offer("default", session.session_id, OFFER))
        assert isinstance(await association.next_order(), Want)
        await self.desk.take_answer(GATEWAY, session.session_id, ANSWER)
        return await offering

    async def state(self, session: Session) -> tuple[SessionState, CloseReason | None]:
        found = await self.broker.get("default", session.session_id)
        return found.state, found.close_reason

    async def trickling(self, association: Association) -> str:
        """Open a session of mode trickle and offer; the gateway knows of it."""
        opened = await self.broker.open("default", HELD.launch_id, "trickle", None)
        offering = asyncio.create_task(self.broker.offer("default", opened.session_id, OFFER))
        assert isinstance(await association.next_order(), Want)
        await self.desk.take_answer(GATEWAY, opened.session_id, ANSWER)
        await offering
        return opened.session_id

    async def add(
        self, session_id: str, *candidates: str, ended: bool = False, round_number: int = 0
    ) -> list[str]:
        outcomes = await self.broker.add_candidates(
            "default", session_id, candidates, ended=ended, round_number=round_number
        )
        return [outcome.value for outcome in outcomes]

    def watch(self, session_id: str, cursor: int = 0) -> AsyncGenerator[Watched, None]:
        return self.broker.watch("default", session_id, cursor)


def make_house(beside: House | None = None) -> House:
    """Build a replica; `beside` is another one with the same store, directory and launches."""
    clock = beside.clock if beside else FakeClock()
    store = beside.store.replica() if beside else FakeSessionStore(clock)
    directory = beside.directory if beside else FakeGatewayDirectory()
    launches = beside.launches if beside else FakeReachedLaunches()
    launches.put("default", HELD)
    launches.put("default", BARE)
    book = SessionBook(store=store, clock=clock)
    switchboard = Switchboard(
        book=book, directory=directory, clock=clock, heartbeat_seconds=5, grace_seconds=15
    )
    timings = SessionTimings(session_seconds=60, offer_timeout_seconds=0.2)
    names = SessionNames(key=b"secret")
    broker = Broker(
        book=book,
        switchboard=switchboard,
        reservations=Reservations(
            book=book,
            switchboard=switchboard,
            launches=launches,
            names=names,
            clock=clock,
            timings=timings,
            servers=NO_SERVERS,
            traceparent=lambda: TRACEPARENT,
        ),
        names=names,
        clock=clock,
        timings=timings,
        traceparent=lambda: TRACEPARENT,
    )
    desk = GatewayDesk(
        book=book, switchboard=switchboard, launches=launches, clock=clock, timings=timings
    )
    return House(clock, store, directory, launches, book, switchboard, broker, desk)


async def until(watching: AsyncGenerator[Watched, None], kind: str) -> Happened:
    """Read a watch up to an event of a kind."""
    async with asyncio.timeout(60):
        async for watched in watching:
            if isinstance(watched, Happened) and watched.event.kind == kind:
                return watched
    raise AssertionError(f"no {kind}")
