"""Sessions that trickle: candidates, rounds, lost paths and limits, over virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest

from relay_gateway.happening import AllFound, Found
from relay_gateway.line import Line
from relay_gateway.message import Answered, Candidates, Changed, Refusal, RestartWanted
from relay_gateway.session import CloseReason, SdpInvalid, WantedSession
from relay_gateway.switchboard import Switchboard
from tests.fakes.gateway_ports import AssociationFake, CarrierFake, ConversationFake
from tests.fakes.virtual_time import EPOCH, VirtualClock, run, settle

ID = "ses_a"
WANTED = WantedSession(ID, "offer 1", EPOCH + timedelta(seconds=60), trickles=True)
SECOND = replace(WANTED, offer="offer 2", round=2)


@dataclass
class Room:
    board: Switchboard
    carrier: CarrierFake
    line: Line
    said: ConversationFake

    @property
    def made(self) -> AssociationFake:
        return self.carrier.made[ID]

    def heard(self) -> list[object]:
        """Return what was said since the last call."""
        said = list(self.said.told)
        self.said.told.clear()
        return list(said)


@asynccontextmanager
async def room(*, connected: bool = True, wanted: WantedSession = WANTED) -> AsyncIterator[Room]:
    carrier, said, line = CarrierFake(), ConversationFake(), Line(traceparent=lambda: "")
    line.connect(said)
    board = Switchboard(carrier=carrier, line=line, clock=VirtualClock(), capacity=4)
    async with board:
        it = Room(board, carrier, line, said)
        board.want(wanted)
        await settle()
        if connected:
            it.made.connect()
            await settle()
            assert it.heard() == [Answered(ID, "v=0 answer", 1), Changed(ID, True, round=1)]
        yield it
    assert [made.closes for made in carrier.made.values()] == [1]


def test_candidates_reach_the_connection_once_and_in_order() -> None:
    async def scenario() -> None:
        async with room(connected=False, wanted=replace(WANTED, candidates=("a",))) as it:
            it.board.given(Candidates(ID, 1, 0, ("a", "b"), False))
            it.board.given(Candidates(ID, 1, 2, ("c",), True))
            it.board.given(Candidates("ses_other", 1, 0, ("x",), True))
            await settle()
            it.board.want(replace(WANTED, candidates=("a", "b", "c"), ended=True))
            await settle()
            assert it.made.applied == ["a", "b", "c"]
            assert it.made.has_all

    run(scenario())


def test_local_candidates_are_told_at_once_and_all_of_them_after_a_reconnect() -> None:
    async def scenario() -> None:
        async with room() as it:
            it.made.happen(Found("x"))
            it.made.happen(Found("y"))
            it.line.disconnect()
            it.made.happen(Found("relay"))
            it.made.happen(AllFound())
            assert it.heard() == [
                Candidates(ID, 1, 0, ("x",), False),
                Candidates(ID, 1, 1, ("y",), False),
            ]
            it.line.connect(it.said)
            it.board.reconcile([WANTED])
            assert it.heard() == [
                Answered(ID, "v=0 answer", 1),
                Candidates(ID, 1, 0, ("x", "y", "relay"), True),
                Changed(ID, True, round=1),
            ]

    run(scenario())


def test_a_lost_path_asks_for_a_restart_and_a_restart_brings_it_back() -> None:
    async def scenario() -> None:
        async with room() as it:
            it.made.lose_path()
            it.made.lose_path()
            assert it.heard() == [RestartWanted(ID, 1)]
            it.board.want(replace(SECOND, candidates=("r",)))
            await settle()
            assert it.made.offers == ["offer 2"]
            assert it.made.applied == ["r"]
            assert it.heard()[-1] == Answered(ID, "answer to offer 2", 2)
            await asyncio.sleep(45)
            assert it.board.session_ids == [ID]
            it.made.connect()
            assert it.heard() == [Changed(ID, True, round=2)]
            await asyncio.sleep(3600)
            assert it.board.session_ids == [ID]

    run(scenario())


def test_a_line_that_is_lost_in_mid_restart_states_the_old_path_as_the_old_rounds() -> None:
    async def scenario() -> None:
        async with room() as it:
            it.board.want(SECOND)
            await settle()
            it.line.disconnect()
            it.heard()
            it.line.connect(it.said)
            it.board.reconcile([replace(SECOND, candidates=("a",))])
            it.board.given(Candidates(ID, 2, 0, ("a", "b"), True))
            await settle()
            assert it.heard() == [
                Answered(ID, "answer to offer 2", 2),
                Changed(ID, True, round=1),
            ]
            assert it.made.applied == ["a", "b"]
            it.made.connect()
            it.board.want(SECOND)
            assert it.heard()[-1] == Changed(ID, True, round=2)

    run(scenario())


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_path_that_comes_up_is_of_the_last_round_that_was_answered(is_refused: bool) -> None:
    async def scenario() -> None:
        async with room() as it:
            it.made.lose_path()
            it.made.may_restart.clear()
            it.made.error = SdpInvalid("it is nonsense") if is_refused else None
            it.board.want(SECOND)
            await settle()
            if is_refused:
                it.made.may_restart.set()
                await settle()
            it.made.connect()
            assert it.heard()[-1] == Changed(ID, True, round=1)

    run(scenario())


def test_a_path_that_comes_back_needs_no_restart() -> None:
    async def scenario() -> None:
        async with room() as it:
            it.made.lose_path()
            await asyncio.sleep(29)
            it.made.connect()
            assert it.heard() == [RestartWanted(ID, 1), Changed(ID, True, round=1)]
            await asyncio.sleep(3600)
            assert it.board.session_ids == [ID]

    run(scenario())


@pytest.mark.parametrize(("is_restarting", "seconds"), [(False, 31), (True, 61)])
def test_a_path_that_does_not_come_back_is_given_up(is_restarting: bool, seconds: float) -> None:
    async def scenario() -> None:
        async with room() as it:
            it.made.lose_path()
            if is_restarting:
                it.board.want(SECOND)
            await asyncio.sleep(seconds - 2)
            assert it.board.session_ids == [ID]
            await asyncio.sleep(2)
            assert it.board.session_ids == []
            assert it.heard()[-1] == Changed(ID, False, "connection_failed")

    run(scenario())


def test_the_wish_for_a_restart_is_stated_again_until_there_is_one() -> None:
    async def scenario() -> None:
        async with room() as it:
            it.line.disconnect()
            it.made.lose_path()
            it.line.connect(it.said)
            it.board.reconcile([WANTED])
            assert it.heard() == [Answered(ID, "v=0 answer", 1), RestartWanted(ID, 1)]
            it.board.want(SECOND)
            assert RestartWanted(ID, 1) not in it.heard()
            await settle()

    run(scenario())


def test_a_restart_offer_that_repeats_is_answered_with_the_same_answer() -> None:
    async def scenario() -> None:
        async with room() as it:
            for _ in range(3):
                it.board.want(SECOND)
                await settle()
            assert it.made.offers == ["offer 2"]
            assert it.heard().count(Answered(ID, "answer to offer 2", 2)) == 3
            it.board.want(WANTED)
            await settle()
            assert it.made.offers == ["offer 2"]

    run(scenario())


def test_a_refused_restart_leaves_the_path_that_carries() -> None:
    async def scenario() -> None:
        async with room() as it:
            it.made.error = SdpInvalid("it is nonsense")
            it.board.want(SECOND)
            await settle()
            (told,) = [each for each in it.heard() if isinstance(each, Answered)][1:]
            assert isinstance(told.outcome, Refusal)
            assert (told.outcome.reason, told.round) == ("sdp_invalid", 2)
            assert it.board.session_ids == [ID]
            it.made.error = None
            it.board.want(replace(SECOND, offer="offer 3", round=3))
            await settle()
            assert it.heard()[-1] == Answered(ID, "answer to offer 3", 3)

    run(scenario())


def test_a_restart_that_takes_too_long_is_refused() -> None:
    async def scenario() -> None:
        async with room() as it:
            it.made.may_restart.clear()
            it.board.want(SECOND)
            await asyncio.sleep(11)
            told = it.heard()[-1]
            assert isinstance(told, Answered)
            assert isinstance(told.outcome, Refusal)
            assert told.outcome.reason == "offer_timeout"

    run(scenario())


@pytest.mark.parametrize("ending", ["peer", "unwanted", "left"])
def test_an_end_during_a_restart_frees_everything_once(ending: str) -> None:
    async def scenario() -> None:
        async with room() as it:
            it.made.may_restart.clear()
            it.board.want(SECOND)
            await settle()
            if ending == "peer":
                it.made.end()
            elif ending == "unwanted":
                it.board.unwant(ID)
            if ending != "left":
                await settle()
                reason = "peer_closed" if ending == "peer" else "requested"
                assert it.heard()[-1] == Changed(ID, False, reason)
                assert it.board.session_ids == []

    run(scenario())


def test_a_peer_that_ends_without_notice_closes_at_once() -> None:
    async def scenario() -> None:
        async with room() as it:
            it.made.end(CloseReason.CONNECTION_FAILED)
            it.made.end(CloseReason.PEER_CLOSED)
            await settle()
            assert it.heard() == [Changed(ID, False, "connection_failed")]

    run(scenario())


def test_a_fault_in_a_step_ends_the_session_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with room() as it:

            async def fail(candidate: str) -> None:
                raise ZeroDivisionError

            it.made.add_candidate = fail  # type: ignore[method-assign]
            it.board.given(Candidates(ID, 1, 0, ("a",), False))
            await settle()
            assert it.heard() == [Changed(ID, False, "connection_failed")]

    run(scenario())
    assert "session failed" in caplog.text
