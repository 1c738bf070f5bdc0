"""Sessions of tunnels: who comes with a ticket, when, and what ends them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

import pytest

from chassis.errors import FairleadError
from relay_gateway.line import Line
from relay_gateway.message import Answered, Candidates, Changed, Heartbeat, Refusal
from relay_gateway.session import CloseReason, WantedSession
from relay_gateway.switchboard import Switchboard
from relay_gateway.tunnel_session import TunnelSession
from tests.fakes.gateway_ports import CarrierFake, ConversationFake
from tests.fakes.virtual_time import VirtualClock, run

CLOCK = VirtualClock()


class TunnelFake:
    """A tunnel whose carriers and channels a test counts."""

    def __init__(self, session: TunnelSession) -> None:
        self.session = session
        self.channels = 0
        self.carriers = 1
        self.closes = 0

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.closes += 1


@dataclass
class Room:
    board: Switchboard
    said: ConversationFake

    @property
    def changes(self) -> list[Changed]:
        return [each for each in self.said.told if isinstance(each, Changed)]

    def attach(self, session_id: str = "ses_a") -> TunnelFake:
        session = self.board.carry(wanted(session_id))
        tunnel = TunnelFake(session)
        session.carry(tunnel)
        return tunnel


@asynccontextmanager
async def room(capacity: int = 4) -> AsyncIterator[Room]:
    said, line = ConversationFake(), Line(traceparent=lambda: "")
    line.connect(said)
    board = Switchboard(carrier=CarrierFake(), line=line, clock=CLOCK, capacity=capacity)
    async with board:
        yield Room(board, said)
    assert board.session_ids == []


def wanted(session_id: str = "ses_a", *, seconds: float = 45.0) -> WantedSession:
    expires = CLOCK.now() + timedelta(seconds=seconds)
    return WantedSession(session_id, "", expires, is_tunnel=True)


def up(session_id: str = "ses_a") -> Changed:
    return Changed(session_id, True, round=1)


def down(reason: str, session_id: str = "ses_a") -> Changed:
    return Changed(session_id, False, reason)


async def turns() -> None:
    for _ in range(12):
        await asyncio.sleep(0)


def refused(it: Room, session_id: str = "ses_a") -> str:
    """Come with a ticket that is refused, and return why."""
    with pytest.raises(FairleadError) as error:
        it.attach(session_id)
    return error.value.reason


def test_it_is_connected_when_its_client_comes_and_closed_when_that_leaves() -> None:
    async def story() -> None:
        async with room() as it:
            it.board.want(wanted())
            await turns()
            assert it.changes == []
            tunnel = it.attach()
            tunnel.channels = 3
            assert it.changes == [up()]
            assert it.board.heartbeat() == Heartbeat(1, 3, False)
            it.board.want(wanted())
            assert it.changes == [up(), up()]
            it.board.given(Candidates("ses_a", 1, 0, ("candidate",), False))
            tunnel.session.over(CloseReason.PEER_CLOSED)
            await turns()
            assert it.changes[-1] == down("peer_closed")
            assert tunnel.closes == 1

    run(story())


def test_nobody_came_in_its_time() -> None:
    async def story() -> None:
        async with room() as it:
            it.board.want(wanted(seconds=45))
            await asyncio.sleep(44)
            assert it.changes == []
            await asyncio.sleep(2)
            assert it.changes == [down("connection_failed")]

    run(story())


def test_a_tunnel_without_carriers_is_kept_for_a_minute() -> None:
    async def story() -> None:
        async with room() as it:
            tunnel = it.attach()
            await asyncio.sleep(3600)
            tunnel.carriers = 0
            await asyncio.sleep(50)
            tunnel.carriers = 1
            await asyncio.sleep(30)
            tunnel.carriers = 0
            await asyncio.sleep(59)
            assert it.changes == [up()]
            await asyncio.sleep(31)
            assert it.changes == [up(), down("connection_failed")]
            assert tunnel.closes == 1

    run(story())


def test_a_ticket_attaches_one_tunnel() -> None:
    async def story() -> None:
        async with room() as it:
            it.attach()
            assert refused(it) == "session_closed"

    run(story())


@pytest.mark.parametrize("is_over", [False, True])
def test_a_session_that_ends_takes_no_ticket(is_over: bool) -> None:
    async def story() -> None:
        async with room() as it:
            it.board.want(wanted())
            await turns()
            it.board.unwant("ses_a")
            if is_over:
                await turns()
                assert it.changes == [down("requested")]
            assert refused(it) == "session_closed"

    run(story())


def test_a_session_that_is_closed_as_its_client_comes_is_closed() -> None:
    async def story() -> None:
        async with room() as it:
            it.board.want(wanted())
            await turns()
            session = it.board.carry(wanted())
            it.board.unwant("ses_a")
            tunnel = TunnelFake(session)
            session.carry(tunnel)
            await turns()
            assert it.changes[-1] == down("requested")
            assert tunnel.closes == 1

    run(story())


def test_a_welcome_spares_a_tunnel_that_came_after_the_hello() -> None:
    async def story() -> None:
        async with room() as it:
            assert it.board.state() == []
            it.attach()
            it.board.reconcile([])
            await turns()
            assert it.board.session_ids == ["ses_a"]
            assert it.changes == [up(), up()]  # the first one may have been said to nobody
            assert it.board.state() == ["ses_a"]
            it.board.reconcile([])
            await turns()
            assert it.changes[-1] == down("requested")

    run(story())


def test_a_welcome_spares_no_tunnel_that_was_wanted_before() -> None:
    async def story() -> None:
        async with room() as it:
            it.attach()
            it.board.want(wanted())
            it.board.reconcile([])
            await turns()
            assert it.changes[-1] == down("requested")

    run(story())


def test_a_full_gateway_refuses_both_the_wish_and_the_ticket() -> None:
    async def story() -> None:
        async with room(capacity=1) as it:
            it.attach()
            it.board.want(wanted("ses_b"))
            (said,) = [each for each in it.said.told if isinstance(each, Answered)]
            assert isinstance(said.outcome, Refusal)
            assert said.outcome.reason == "gateway_full"
            assert refused(it, "ses_c") == "gateway_full"

    run(story())


def test_a_drain_takes_no_ticket_and_closes_as_drained() -> None:
    async def story() -> None:
        async with room() as it:
            tunnel = it.attach()
            it.board.drain()
            assert refused(it, "ses_b") == "gateway_draining"
            assert tunnel.closes == 0
        assert it.changes[-1] == down("drained")
        assert tunnel.closes == 1

    run(story())
