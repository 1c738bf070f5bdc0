"""Lines whose gateway is met over WebRTC while no other way to it goes, and no longer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from fairlead_sdk.session_errors import SessionEnded
from fairlead_sdk.session_records import SessionClosed
from fairlead_sdk.tunnel_line import open_line
from fairlead_sdk.tunnel_sessions import TunnelUnreachable
from fairlead_tunnel.ways import Kind
from tests.contract.tunnel.channel_world import Meeting
from tests.contract.tunnel.line_world import Gateway, Mesh, World, world
from tests.contract.tunnel.test_channel_carriers import CORES
from tests.contract.tunnel.test_lines import CONTENT, echoed, listening
from tests.contract.tunnel.test_ways import Talk, kind_of
from tests.eventually import SECONDS, eventually

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("runs_on"), pytest.mark.slow]
SIZE = 512 * 1024


@pytest.fixture(params=CORES)
def core(request: pytest.FixtureRequest) -> str:
    """What makes the sessions."""
    return str(request.param)


@asynccontextmanager
async def met_gateway(core: str) -> AsyncIterator[tuple[Gateway, Meeting]]:
    """A gateway whose TCP port is closed, and where it is met; at the end no session is left."""
    gateway = Gateway()
    await gateway.start()
    await gateway.stop()
    met = Meeting(CORES[core](), lambda: gateway.desk)
    yield gateway, met
    assert met.sessions == []


async def is_over(it: World, talk: Talk, kind: Kind) -> None:
    """Wait until the line's carrier is of a kind, and has carried something."""

    async def seen() -> tuple[Kind | None, int]:
        return kind_of(it), talk.rounds

    await eventually(seen, lambda found: found[0] is kind)
    before = talk.rounds
    await eventually(seen, lambda found: found[1] > before)


async def test_a_line_starts_on_a_data_channel_and_ends_its_session(core: str) -> None:
    async with asyncio.timeout(SECONDS), met_gateway(core) as (gateway, met):
        async with world(gateway=gateway, meet=met.meet) as it:
            assert await echoed(await listening(it), CONTENT[:SIZE]) == CONTENT[:SIZE]
            assert kind_of(it) is Kind.DATA_CHANNEL
            assert len(met.sessions) == 1
            assert met.asked == it.mesh.opened == ["ses_0"]
        assert met.sessions == []


async def test_a_line_moves_to_tcp_and_back_without_losing_a_byte(core: str) -> None:
    async with (
        asyncio.timeout(SECONDS),
        met_gateway(core) as (gateway, met),
        world(gateway=gateway, meet=met.meet, uniform=lambda least, most: most / 100) as it,
    ):
        talk = Talk(await listening(it), size=SIZE)
        talking = asyncio.ensure_future(talk.run())
        await is_over(it, talk, Kind.DATA_CHANNEL)
        await gateway.listen()
        await is_over(it, talk, Kind.TCP)
        await eventually(met.open, lambda count: count == 0)
        assert it.said == ["the tunnel goes over tcp now, and no longer over webrtc."]
        await gateway.stop()
        await is_over(it, talk, Kind.DATA_CHANNEL)
        await met.lose()
        await is_over(it, talk, Kind.DATA_CHANNEL)
        talk.ends = True
        await talking
        assert it.mesh.opened == ["ses_0"]
        told = [each for each in it.said if "goes over" not in each]
        assert told == ["the gateway is away; trying again.", "the gateway is back."] * 2


async def test_a_channel_that_falls_silent_is_left_for_another_one(
    core: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairlead_tunnel.client_carriers.LOOK_SECONDS", 0.02)
    monkeypatch.setattr("fairlead_tunnel.path_watch.LEAST_QUIET", 0.3)
    async with (
        asyncio.timeout(SECONDS),
        met_gateway(core) as (gateway, met),
        world(gateway=gateway, meet=met.meet) as it,
    ):
        port = await listening(it)
        asking = asyncio.ensure_future(echoed(port, CONTENT[:SIZE]))
        await eventually(met.open, lambda count: count == 1)
        met.sessions[0][0].fall_silent()
        assert await asking == CONTENT[:SIZE]
        assert met.met > 1
        assert it.mesh.opened == ["ses_0"]


async def test_a_tcp_port_that_is_back_is_taken_while_a_session_is_slow(core: str) -> None:
    async with asyncio.timeout(SECONDS), met_gateway(core) as (gateway, met):
        await gateway.listen()
        async with world(gateway=gateway, meet=met.meet) as it:
            port = await listening(it)
            assert kind_of(it) is Kind.TCP
            met.may_meet.clear()
            await gateway.stop()
            await eventually(lambda: _wanted(met), lambda count: count == 1)
            await gateway.listen()
            assert await echoed(port, CONTENT) == CONTENT
            assert kind_of(it) is Kind.TCP
            assert met.met == 1


async def test_where_nobody_is_met_either_the_error_says_so(core: str) -> None:
    async with asyncio.timeout(SECONDS), met_gateway(core) as (gateway, met):
        met.fault = "no path was found"
        with pytest.raises(TunnelUnreachable, match="a WebRTC data channel: no path was found"):
            async with open_line(Mesh(gateway), "lch_a", attach_seconds=0, meet=met.meet):
                raise AssertionError


async def test_a_tunnel_whose_session_is_closed_is_not_waited_for(core: str) -> None:
    async with (
        asyncio.timeout(SECONDS),
        met_gateway(core) as (gateway, met),
        world(gateway=gateway, meet=met.meet) as it,
    ):
        met.refusal = "tunnel_unknown"
        it.mesh.closed["ses_0"] = SessionClosed("launch_ended")
        await met.lose()
        with pytest.raises(SessionEnded) as ended:
            await it.line.wait_over()
        assert ended.value.reason == "launch_ended"


async def _wanted(met: Meeting) -> int:
    return met.met
