"""Paths that are lost and restarted, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from fairlead_sdk.session_errors import RestartFailed
from fairlead_sdk.session_records import SessionServer
from fairlead_tunnel.peer_connection import PeerState
from tests.fakes.session_mesh import SessionMesh
from tests.fakes.virtual_time import run
from tests.unit.fairlead_sdk.peer_room import away, room


def test_a_lost_path_is_restarted_until_it_is_back() -> None:
    async def scenario() -> None:
        async with room() as it:
            it.mesh.network.is_blocked = True
            it.near.lose_path()
            await asyncio.sleep(40)
            assert not it.session.is_connected
            assert it.session.round == 4
            it.mesh.network.is_blocked = False
            await asyncio.sleep(10)
            assert it.session.is_connected
            rounds = it.session.round
            await asyncio.sleep(3600)
            assert it.session.round == rounds
            assert not it.session.is_lost

    run(scenario())


def test_a_path_that_does_not_come_back_is_given_up_after_a_minute() -> None:
    async def scenario() -> None:
        async with room() as it:
            it.mesh.network.is_blocked = True
            started = asyncio.get_running_loop().time()
            it.near.lose_path()
            await it.session.wait_lost()
            assert 60 <= asyncio.get_running_loop().time() - started < 61

    run(scenario())


def test_a_lost_path_waits_for_a_mesh_that_is_away() -> None:
    async def scenario() -> None:
        async with room() as it:
            it.mesh.failures["restart_session"] = [away() for _ in range(4)]
            it.near.lose_path()
            await asyncio.sleep(20)
            assert it.session.is_connected
            assert it.session.round == 2

    run(scenario())


def test_without_restarts_a_silent_path_may_still_come_back() -> None:
    async def scenario() -> None:
        async with room(mode="complete") as it:
            it.near.lose_path()
            await asyncio.sleep(20)
            assert it.mesh.calls.count("restart_session") == 0
            it.near._tell_state(PeerState.CONNECTED)
            await asyncio.sleep(3600)
            assert it.session.is_connected

    run(scenario())


def test_a_restart_that_the_caller_limits_fails_in_time_and_leaves_the_path() -> None:
    async def scenario() -> None:
        async with room() as it:
            it.mesh.hangs.add("restart_session")
            with pytest.raises(RestartFailed) as caught:
                await it.session.restart(5)
            assert caught.value.fields["cause"] == "timeout"
            assert it.session.is_connected

    run(scenario())


def test_what_is_gathered_while_servers_are_asked_for_is_of_the_round_before() -> None:
    async def scenario() -> None:
        mesh = SessionMesh()
        mesh.servers = (SessionServer(("turn:turn.test:3478",), "name", "secret"),)
        async with room(mesh) as it:
            mesh.hangs.add("fresh_servers")
            mesh.network.is_blocked = True
            restarting = asyncio.ensure_future(it.session.restart())
            await asyncio.sleep(1)
            it.near.found("candidate:late")
            it.near.gathered()
            await asyncio.sleep(10)
            given = [each for number, batch, _ in mesh.batches if number == 2 for each in batch]
            assert len(given) == 2
            assert "candidate:late" not in given
            mesh.network.is_blocked = False
            restarting.cancel()

    run(scenario())
