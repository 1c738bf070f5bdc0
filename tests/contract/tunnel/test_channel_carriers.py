"""Tunnels over WebRTC data channels, of either core: bytes both ways, losses, and live moves."""

from __future__ import annotations

import asyncio
import importlib.util
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from fairlead_tunnel.aiortc_core import AiortcCore
from fairlead_tunnel.channel_pipe import TUNNEL_LABEL, TUNNEL_PROTOCOL, ChannelPipe
from fairlead_tunnel.channel_way import ChannelWays
from fairlead_tunnel.handshake import AttachRefused
from fairlead_tunnel.native_core import NativeCore
from fairlead_tunnel.peer_connection import PeerCore
from tests.contract.tunnel.channel_world import Meeting, attach_channel
from tests.contract.tunnel.pumped_ends import MakeWorld
from tests.contract.tunnel.talks import echo, whole
from tests.contract.tunnel.tunnel_world import World
from tests.eventually import SECONDS, eventually

pytestmark = pytest.mark.asyncio
CORES: dict[str, Callable[[], PeerCore]] = {"aiortc": AiortcCore}
if importlib.util.find_spec("fairlead_native"):
    CORES["native"] = NativeCore


@pytest.fixture(params=CORES)
def core(request: pytest.FixtureRequest) -> str:
    """What makes the sessions."""
    return str(request.param)


@pytest.fixture
def size(core: str) -> int:
    """So many bytes take a second or so."""
    return 8 * 1024 * 1024 if core == "native" else 1024 * 1024


@asynccontextmanager
async def meeting(it: World, core: str) -> AsyncIterator[tuple[Meeting, ChannelWays]]:
    """The gateway's WebRTC side and the client's ways to it; at the end no session is left."""
    met = Meeting(CORES[core](), lambda: it.desk)
    ways = ChannelWays(met.meet)
    try:
        yield met, ways
    finally:
        await ways.close()
    assert met.sessions == []


async def test_bytes_go_both_ways_and_both_ends_end(
    any_world: MakeWorld, core: str, size: int
) -> None:
    async with asyncio.timeout(SECONDS), any_world() as it, meeting(it, core) as (_, ways):
        await attach_channel(it, ways)
        port = await it.listen(f"127.0.0.1:{await it.serve(echo)}")
        content = secrets.token_bytes(size)
        assert await whole(port, content) == content
        await it.settled()
        assert await it.fates() == await it.reasons() == []


async def test_a_transfer_moves_to_tcp_and_back_without_losing_a_byte(
    any_world: MakeWorld, core: str, size: int
) -> None:
    async with asyncio.timeout(SECONDS), any_world() as it, meeting(it, core) as (met, ways):
        channel = await attach_channel(it, ways)
        port = await it.listen(f"127.0.0.1:{await it.serve(echo)}")
        content = secrets.token_bytes(size)
        asking = asyncio.ensure_future(whole(port, content))
        for _ in range(2):
            await asyncio.sleep(0.02)  # some of it is under way
            tcp = await it.attach()
            channel.retire()
            await asyncio.sleep(0.02)
            channel = await attach_channel(it, ways)
            tcp.stream.close()
        assert await asking == content
        await it.settled()
        channel.stream.close()
        await eventually(met.open, lambda count: count == 0)


async def test_a_channel_that_is_lost_under_way_loses_nothing(
    any_world: MakeWorld, core: str, size: int
) -> None:
    async with asyncio.timeout(SECONDS), any_world() as it, meeting(it, core) as (met, ways):
        await attach_channel(it, ways)
        port = await it.listen(f"127.0.0.1:{await it.serve(echo)}")
        content = secrets.token_bytes(size)
        asking = asyncio.ensure_future(whole(port, content))
        await asyncio.sleep(0.02)  # some of it is under way
        await met.lose()
        tcp = await it.attach()
        await asyncio.sleep(0.02)
        tcp.stream.abort()
        channel = await attach_channel(it, ways)
        await asyncio.sleep(0.02)
        channel.pipe.abort()
        await attach_channel(it, ways)
        assert await asking == content
        await it.settled()
        assert len(it.gateways) == 1


async def test_a_path_that_is_down_for_a_while_ends_the_carrier(
    any_world: MakeWorld, core: str
) -> None:
    async with asyncio.timeout(SECONDS), any_world() as it, meeting(it, core) as (met, ways):
        channel = await attach_channel(it, ways)
        met.sessions[0][0].down.set()
        await channel.gone
        await eventually(met.open, lambda count: count == 0)
        await attach_channel(it, ways)


async def test_a_tunnel_that_ends_while_it_moves_ends_everything(
    any_world: MakeWorld, core: str
) -> None:
    async with asyncio.timeout(SECONDS), any_world() as it, meeting(it, core) as (met, ways):
        channel = await attach_channel(it, ways)
        port = await it.listen(f"127.0.0.1:{await it.serve(echo)}")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"some of it")
        await reader.readexactly(4)
        await it.attach()
        channel.retire()
        it.client.driver.close("normal", "The client has ended.")
        with pytest.raises((OSError, EOFError)):
            await reader.readexactly(100)
        writer.close()
        await it.ends("normal", by_gateway=True)
        await eventually(met.open, lambda count: count == 0)


async def test_a_connection_that_ends_while_the_tunnel_moves_is_whole(
    any_world: MakeWorld, core: str
) -> None:
    async with asyncio.timeout(SECONDS), any_world() as it, meeting(it, core) as (_, ways):
        channel = await attach_channel(it, ways)
        port = await it.listen(f"127.0.0.1:{await it.serve(echo)}")
        content = secrets.token_bytes(100_000)
        asking = asyncio.ensure_future(whole(port, content))
        await it.attach()
        channel.retire()
        assert await asking == content
        await it.settled()


async def test_a_tunnel_that_the_gateway_has_lost_is_refused_with_its_reason(
    any_world: MakeWorld, core: str
) -> None:
    async with asyncio.timeout(SECONDS), any_world() as it, meeting(it, core) as (met, ways):
        await attach_channel(it, ways)
        it.desk.forget(it.ticket.tunnel_id)
        with pytest.raises(AttachRefused) as refused:
            await attach_channel(it, ways)
        assert refused.value.reason == "tunnel_unknown"
        await eventually(met.open, lambda count: count < 2)


async def test_who_says_no_hello_or_text_is_dropped(
    any_world: MakeWorld, core: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay_gateway.tunnel_channel._HELLO_SECONDS", 0.2)
    async with asyncio.timeout(SECONDS), any_world() as it, meeting(it, core) as (met, ways):
        await attach_channel(it, ways)
        session = met.sessions[0][0]
        silent = ChannelPipe(session.open_port(TUNNEL_LABEL, TUNNEL_PROTOCOL))
        await silent.ended
        port = session.open_port(TUNNEL_LABEL, TUNNEL_PROTOCOL)
        talker = ChannelPipe(port)
        await talker.wait_open()
        port.send("hello")
        await talker.ended
        stranger = ChannelPipe(session.open_port("else", TUNNEL_PROTOCOL))
        await stranger.ended
        assert it.client.driver.carriers == 1


async def test_a_session_carries_no_more_than_a_few(any_world: MakeWorld, core: str) -> None:
    async with asyncio.timeout(SECONDS), any_world() as it, meeting(it, core) as (met, ways):
        await attach_channel(it, ways)
        session, association = met.sessions[0]
        waiting = ChannelPipe(session.open_port(TUNNEL_LABEL, TUNNEL_PROTOCOL))
        refused = ChannelPipe(session.open_port(TUNNEL_LABEL, TUNNEL_PROTOCOL))
        await refused.ended
        assert not waiting.ended.done()
        assert association.channels == 0
