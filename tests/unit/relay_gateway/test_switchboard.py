"""Sessions from the offer to their end, whatever ends them and whenever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

import pytest

from relay_gateway.held_session import Patience
from relay_gateway.line import Line
from relay_gateway.message import Answered, Changed, Heartbeat, Refusal
from relay_gateway.session import SdpInvalid, WantedSession
from relay_gateway.switchboard import Switchboard
from tests.fakes.clock import FakeClock
from tests.fakes.gateway_ports import CarrierFake, ConversationFake

CLOCK = FakeClock()


@dataclass
class Room:
    board: Switchboard
    carrier: CarrierFake
    line: Line
    said: ConversationFake


@asynccontextmanager
async def room(capacity: int = 4, answer_seconds: float = 5.0) -> AsyncIterator[Room]:
    carrier, said, line = CarrierFake(), ConversationFake(), Line(traceparent=lambda: "")
    line.connect(said)
    board = Switchboard(
        carrier=carrier,
        line=line,
        clock=CLOCK,
        capacity=capacity,
        patience=Patience(answer=answer_seconds),
    )
    async with board:
        yield Room(board, carrier, line, said)
    assert board.session_ids == []


def wanted(
    session_id: str = "ses_a", offer: str = "v=0 offer", seconds: float = 60
) -> WantedSession:
    return WantedSession(session_id, offer, CLOCK.now() + timedelta(seconds=seconds))


async def turns(count: int = 12) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.asyncio
async def test_a_session_is_answered_connected_and_ended_once() -> None:
    async with room() as it:
        it.board.want(wanted())
        await turns()
        made = it.carrier.made["ses_a"]
        assert it.said.told == [Answered("ses_a", "v=0 answer")]
        made.connect()
        await turns()
        assert it.said.told[-1] == Changed("ses_a", True, round=1)
        made.channels = 3
        assert it.board.heartbeat() == Heartbeat(1, 3, False)
        made.end()
        await turns()
        assert it.said.told[-1] == Changed("ses_a", False, "peer_closed")
        assert made.closes == 1
        assert it.board.session_ids == []


@pytest.mark.asyncio
async def test_a_session_wanted_again_is_told_again_and_not_made_twice() -> None:
    async with room() as it:
        it.board.want(wanted())
        await turns()
        it.board.want(wanted())
        it.carrier.made["ses_a"].connect()
        await turns()
        it.board.want(wanted())
        assert it.said.told == [
            Answered("ses_a", "v=0 answer"),
            Answered("ses_a", "v=0 answer"),
            Changed("ses_a", True, round=1),
            Answered("ses_a", "v=0 answer"),
            Changed("ses_a", True, round=1),
        ]


@pytest.mark.asyncio
async def test_a_session_without_an_offer_waits_for_one() -> None:
    async with room() as it:
        it.board.want(wanted(offer=""))
        await turns()
        assert it.board.session_ids == []
        assert it.said.told == []


@pytest.mark.asyncio
@pytest.mark.parametrize("moment", ["before it runs", "while answering", "answered", "connected"])
async def test_a_session_can_be_unwanted_at_any_moment(moment: str) -> None:
    async with room() as it:
        it.carrier.may_answer.clear()
        it.board.want(wanted())
        if moment != "before it runs":
            await turns()
        if moment in ("answered", "connected"):
            it.carrier.may_answer.set()
            await turns()
        if moment == "connected":
            it.carrier.made["ses_a"].connect()
            await turns()
        it.board.unwant("ses_a")
        await turns()
        assert it.board.session_ids == []
        assert it.said.told[-1] == Changed("ses_a", False, "requested")
        assert [made.closes for made in it.carrier.made.values()] in ([], [1])
        it.board.unwant("ses_a")
        await turns()


@pytest.mark.asyncio
async def test_a_session_that_is_unwanted_while_it_ends_is_freed_once() -> None:
    async with room() as it:
        it.board.want(wanted())
        await turns()
        made = it.carrier.made["ses_a"]
        made.may_close.clear()
        made.connect()
        made.end()
        await turns()
        it.board.unwant("ses_a")
        await turns()
        assert it.board.session_ids == ["ses_a"]
        made.may_close.set()
        await turns()
        assert made.closes == 1
        assert it.board.session_ids == []
        assert it.said.told[-1] == Changed("ses_a", False, "peer_closed")


@pytest.mark.asyncio
async def test_the_welcome_closes_what_is_not_wanted_and_answers_what_is_lacking() -> None:
    async with room() as it:
        it.board.want(wanted("ses_a"))
        it.board.want(wanted("ses_b"))
        await turns()
        it.said.told.clear()
        it.board.reconcile([wanted("ses_b"), wanted("ses_c")])
        await turns()
        assert sorted(it.board.session_ids) == ["ses_b", "ses_c"]
        assert set(it.said.told) == {
            Changed("ses_a", False, "requested"),
            Answered("ses_b", "v=0 answer"),
            Answered("ses_c", "v=0 answer"),
        }


@pytest.mark.asyncio
async def test_an_end_that_signalling_missed_is_told_again_instead_of_answering_again() -> None:
    async with room() as it:
        it.board.want(wanted())
        await turns()
        it.line.disconnect()
        it.carrier.made["ses_a"].end()
        await turns()
        again = ConversationFake()
        it.line.connect(again)
        it.board.reconcile([wanted()])
        await turns()
        assert again.told == [Changed("ses_a", False, "peer_closed")]
        assert it.board.session_ids == []


@pytest.mark.asyncio
async def test_an_offer_that_cannot_be_answered_is_refused_and_may_come_again() -> None:
    async with room() as it:
        it.carrier.error = SdpInvalid("it is nonsense")
        it.board.want(wanted())
        await turns()
        (told,) = it.said.told
        assert isinstance(told, Answered)
        assert isinstance(told.outcome, Refusal)
        assert told.outcome.reason == "sdp_invalid"
        assert it.board.session_ids == []
        it.carrier.error = None
        it.board.want(wanted())
        await turns()
        assert it.said.told[-1] == Answered("ses_a", "v=0 answer")


@pytest.mark.asyncio
async def test_a_fault_while_answering_is_refused_and_harms_no_other_session() -> None:
    async with room() as it:
        it.board.want(wanted("ses_a"))
        await turns()
        it.carrier.error = ZeroDivisionError()
        it.board.want(wanted("ses_b"))
        await turns()
        assert it.board.session_ids == ["ses_a"]
        told = it.said.told[-1]
        assert isinstance(told, Answered)
        assert isinstance(told.outcome, Refusal)
        assert told.outcome.reason == "gateway_failed"


@pytest.mark.asyncio
async def test_an_answer_that_takes_too_long_is_refused() -> None:
    async with room(answer_seconds=0.01) as it:
        it.carrier.may_answer.clear()
        it.board.want(wanted())
        async with asyncio.timeout(5):
            while not it.said.told:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        (told,) = it.said.told
        assert isinstance(told, Answered)
        assert isinstance(told.outcome, Refusal)
        assert told.outcome.reason == "offer_timeout"


@pytest.mark.asyncio
async def test_a_session_that_does_not_connect_in_its_time_is_given_up() -> None:
    async with room() as it:
        it.board.want(wanted(seconds=-1))
        await turns(30)
        assert it.said.told[-1] == Changed("ses_a", False, "connection_failed")
        assert it.carrier.made["ses_a"].closes == 1


@pytest.mark.asyncio
async def test_no_more_sessions_than_the_capacity_and_none_while_draining() -> None:
    async with room(capacity=1) as it:
        it.board.want(wanted("ses_a"))
        it.board.want(wanted("ses_b"))
        await turns()
        it.board.drain()
        assert it.said.told[-1] == Heartbeat(1, 0, True)
        it.board.unwant("ses_a")
        await turns()
        it.board.want(wanted("ses_c"))
        refusals = [
            told.outcome.reason
            for told in it.said.told
            if isinstance(told, Answered) and isinstance(told.outcome, Refusal)
        ]
        assert refusals == ["gateway_full", "gateway_draining"]


@pytest.mark.asyncio
async def test_leaving_closes_every_session_as_drained() -> None:
    async with room() as it:
        it.board.want(wanted("ses_a"))
        it.board.want(wanted("ses_b"))
        await turns()
        made = it.carrier.made
        it.carrier.may_answer.clear()
        it.board.want(wanted("ses_c"))
        await turns()
    assert [association.closes for association in made.values()] == [1, 1]
    ended = [told for told in it.said.told if isinstance(told, Changed)]
    assert sorted((told.session_id, told.close_reason) for told in ended) == [
        ("ses_a", "drained"),
        ("ses_b", "drained"),
        ("ses_c", "drained"),
    ]
