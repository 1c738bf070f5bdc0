"""A client's session in virtual time: limits, repeated calls, lost watches, and lost paths."""

from __future__ import annotations

import asyncio

import pytest

from fairlead_sdk.cli.running import exit_status_of
from fairlead_sdk.errors import (
    CursorGone,
    FairleadError,
    InvalidArgument,
    NotFound,
    Unavailable,
)
from fairlead_sdk.forwarding import Forwarder
from fairlead_sdk.session_errors import RestartFailed, SessionEnded
from fairlead_sdk.session_records import (
    AnswerCame,
    CandidatesCame,
    RestartAsked,
    SessionClosed,
    SessionServer,
)
from tests.fakes.session_mesh import ID, SessionMesh
from tests.fakes.virtual_time import run, settle
from tests.unit.fairlead_sdk.peer_room import away, failure, refusal, room


def test_it_connects_with_one_batch_and_the_end_of_candidates() -> None:
    async def scenario() -> None:
        async with room() as it:
            assert it.session.session_id == ID
            assert it.session.is_connected
            assert it.mesh.calls[:3] == ["open_session", "watch_session", "send_offer"]
            (batch,) = it.mesh.batches
            assert len(batch[1]) == 2
            assert batch[2]
        assert it.mesh.is_closed
        assert it.session.is_lost

    run(scenario())


def test_servers_and_policy_reach_the_connection() -> None:
    async def scenario() -> None:
        mesh = SessionMesh()
        mesh.servers = (SessionServer(("turn:turn.test:3478",), "name", "secret"),)
        async with room(mesh, ice_policy="relay") as it:
            plan = it.near.plan
            assert plan.policy == "relay"
            assert plan.servers[0].credential == "secret"

    run(scenario())


@pytest.mark.parametrize("is_away", [False, True])
def test_a_restart_asks_for_fresh_credentials_of_relays(is_away: bool) -> None:
    async def scenario() -> None:
        mesh = SessionMesh()
        mesh.servers = (SessionServer(("turn:turn.test:3478",), "name", "old"),)
        mesh.failures["fresh_servers"] = [away()] if is_away else []
        async with room(mesh) as it:
            assert "fresh_servers" not in mesh.calls
            await it.session.restart()
            (server,) = it.near.plan.servers
            assert server.credential == ("old" if is_away else "fresh")
            assert mesh.calls.index("fresh_servers") < mesh.calls.index("restart_session")
            assert it.session.round == 2

    run(scenario())


@pytest.mark.parametrize("call", ["open_session", "send_offer", "watch_session", "add_candidates"])
def test_a_call_that_may_pass_is_repeated_with_growing_pauses(call: str) -> None:
    async def scenario() -> None:
        mesh = SessionMesh()
        mesh.failures[call] = [away(), refusal("gateway_not_ready")]
        mesh.gateway_candidates = 0
        async with room(mesh) as it:
            assert it.session.is_connected
            assert mesh.calls.count(call) == 3
            assert asyncio.get_running_loop().time() == 0.75

    run(scenario())


@pytest.mark.parametrize("call", ["open_session", "send_offer"])
def test_a_call_is_not_repeated_for_ever(call: str) -> None:
    mesh = SessionMesh()
    mesh.failures[call] = [away() for _ in range(20)]
    assert failure(mesh, seconds=7.75) == "unavailable"
    assert mesh.calls.count(call) == 6


@pytest.mark.parametrize("call", ["send_offer", "watch_session"])
@pytest.mark.parametrize("reason", ["gateway_gone", "gateway_busy", "gateway_lost", "drained"])
def test_a_session_whose_gateway_goes_before_it_connects_is_replaced(
    call: str, reason: str
) -> None:
    async def scenario() -> None:
        mesh = SessionMesh()
        mesh.failures[call] = [refusal(reason), refusal(reason)]
        async with room(mesh) as it:
            assert it.session.is_connected
            assert mesh.calls.count("open_session") == 3
            assert [made.closes for made in it.core.made] == [1, 1, 0]
            assert asyncio.get_running_loop().time() == 0.75

    run(scenario())


def test_gateways_that_go_are_not_replaced_for_ever() -> None:
    mesh = SessionMesh()
    mesh.failures["send_offer"] = [refusal("gateway_gone") for _ in range(20)]
    assert failure(mesh, seconds=7.75) == "gateway_gone"
    assert mesh.calls.count("open_session") == 6


def test_a_gateway_that_goes_once_it_is_connected_ends_the_session() -> None:
    async def scenario() -> None:
        mesh = SessionMesh()
        async with room(mesh) as it:
            mesh.tell(SessionClosed("gateway_lost", "", retryable=True))
            await it.session.wait_lost()
        assert mesh.calls.count("open_session") == 1

    run(scenario())


@pytest.mark.parametrize("call", ["open_session", "send_offer", "watch_session"])
def test_what_the_mesh_refuses_is_raised_at_once(call: str) -> None:
    mesh = SessionMesh()
    mesh.failures[call] = [refusal("launch_not_held")]
    assert failure(mesh, seconds=0) == "launch_not_held"
    assert mesh.is_closed is (call != "open_session")


@pytest.mark.parametrize(("policy", "seconds"), [("all", 24), ("relay", 60), ("direct", 24)])
def test_a_path_that_does_not_come_up_is_given_up(policy: str, seconds: float) -> None:
    mesh = SessionMesh()
    mesh.network.is_blocked = True
    assert failure(mesh, seconds=seconds, ice_policy=policy) == "connect_timeout"
    assert mesh.is_closed


def test_a_mesh_that_never_opens_a_session_is_given_up_in_the_same_time() -> None:
    mesh = SessionMesh()
    mesh.hangs.add("open_session")
    assert failure(mesh, seconds=24) == "open_timeout"


def test_a_watch_that_never_answers_is_given_up_with_the_rest() -> None:
    mesh = SessionMesh()
    mesh.hangs.add("watch_session")
    assert failure(mesh, seconds=24) == "connect_timeout"
    assert "send_offer" not in mesh.calls


def test_the_answer_may_come_by_the_watch_while_the_reply_is_lost() -> None:
    async def scenario() -> None:
        mesh = SessionMesh()
        answered = mesh._answered

        async def lost(offer: str) -> object:
            await answered(offer)
            raise away()

        mesh._answered = lost  # type: ignore[method-assign, assignment]
        async with room(mesh) as it:
            assert it.session.is_connected
            await asyncio.sleep(5)
            assert mesh.calls.count("send_offer") == 1

    run(scenario())


@pytest.mark.parametrize(
    "error",
    [
        CursorGone("Gone.", reason="cursor_gone"),
        InvalidArgument("Lost by the store.", reason="cursor_invalid"),
    ],
)
def test_a_watch_whose_cursor_is_of_no_use_begins_anew(error: FairleadError) -> None:
    async def scenario() -> None:
        async with room() as it:
            it.mesh.lose_watch(error)
            await asyncio.sleep(1)
            assert it.mesh.cursors == [0, 0]
            assert it.session.is_connected
            it.mesh.tell(SessionClosed("admin_closed", "Somebody did."))
            await it.session.wait_lost()

    run(scenario())


def test_a_lost_watch_goes_on_behind_what_was_seen() -> None:
    async def scenario() -> None:
        async with room() as it:
            seen = len(it.mesh.log)
            it.mesh.lose_watch(away())
            await settle()
            it.mesh.tell(RestartAsked(1))
            await asyncio.sleep(1)
            assert it.mesh.cursors == [0, seen]
            assert it.session.round == 2

    run(scenario())


def test_a_mesh_that_forgot_the_session_does_not_end_channels_that_carry() -> None:
    async def scenario() -> None:
        async with room() as it:
            it.mesh.lose_watch(NotFound("Gone.", reason="session_not_found"))
            await asyncio.sleep(60)
            assert it.session.is_connected

    run(scenario())


def test_what_is_late_or_of_another_round_is_ignored() -> None:
    async def scenario() -> None:
        async with room() as it:
            for happening in (
                AnswerCame(1, "late"),
                CandidatesCame(0, ("candidate:old",), True),
                RestartAsked(0),
            ):
                it.mesh.tell(happening)
            await settle()
            assert (it.session.state, it.session.round) == ("connected", 1)
            assert "candidate:old" not in it.near.applied

    run(scenario())


def test_a_session_that_the_mesh_closes_says_why() -> None:
    async def scenario() -> None:
        async with room() as it:
            closed = SessionClosed("admin_closed", "Somebody did.", user_initiated=True)
            it.mesh.tell(closed)
            await it.session.wait_lost()
            assert it.session.closed == closed
            with pytest.raises(RestartFailed):
                await it.session.restart()

    run(scenario())


def test_cancelling_at_any_turn_leaves_nothing() -> None:
    async def scenario() -> None:
        turns, has_opened = 0, False
        while not has_opened:
            mesh = SessionMesh()

            async def hold(mesh: SessionMesh = mesh) -> None:
                nonlocal has_opened
                async with room(mesh):
                    has_opened = True

            task = asyncio.create_task(hold())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait((task,))
            if "send_offer" in mesh.calls:
                assert mesh.is_closed
            turns += 1
        assert turns > 10

    asyncio.run(scenario())


@pytest.mark.parametrize("word_comes", [0.0, 1.0, 60.0])
def test_a_tunnel_says_why_it_ended_where_the_mesh_does(word_comes: float) -> None:
    """The association is cut at once; why comes by the watch, before or after."""
    closed = SessionClosed("admin_closed", "Upkeep.", user_initiated=True)

    async def scenario() -> None:
        async with room() as it:
            telling = asyncio.get_running_loop().call_later(word_comes, it.mesh.tell, closed)
            if word_comes:
                it.mesh.gateway.vanish()
            with pytest.raises(Unavailable) as caught:
                await Forwarder(session=it.session).wait_lost()
            telling.cancel()
            if word_comes < 2:
                assert (caught.value.reason, caught.value.message) == ("admin_closed", "Upkeep.")
                assert isinstance(caught.value, SessionEnded)
                assert caught.value.closed == closed
            else:
                assert caught.value.reason == "tunnel_lost"

    run(scenario())


@pytest.mark.parametrize(
    ("reason", "status"), [("admin_closed", 79), ("ai_closed", 80), ("gateway_lost", 69)]
)
def test_the_ends_of_a_session_have_exit_statuses(reason: str, status: int) -> None:
    assert exit_status_of(SessionEnded(SessionClosed(reason))) == status
