"""WebSockets that the pump has: given away at either end, whatever happens just then."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable

import pytest
from wsproto.events import Request

pytest.importorskip("fairlead_native", reason="the native core is not built: make native")

from fairlead_tunnel.given_carriers import GivenSocket
from fairlead_tunnel.message_carrier import MessageCarrier
from fairlead_tunnel.websocket_pipe import WebSocketPipe, connect_websocket
from relay_gateway.socket_protocol import SocketProtocol
from relay_gateway.tunnel_socket import Message, Receive, Send, SocketDesk
from tests.contract.tunnel.http_world import attach_socket, http_door
from tests.contract.tunnel.pumped_ends import MakeWorld
from tests.contract.tunnel.socket_hop import echoes, gone, is_given_by
from tests.contract.tunnel.talks import whole
from tests.contract.tunnel.tunnel_world import Hop, World
from tests.eventually import SECONDS, eventually

pytestmark = pytest.mark.asyncio
SIZE = 8 * 1024 * 1024
MASK = bytes(4)
"""A mask that changes nothing."""


class Gateways:
    """The gateway's WebSockets that were given away."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.protocols: list[SocketProtocol] = []
        self.given: list[GivenSocket] = []
        self.on_given: Callable[[SocketProtocol], None] = lambda _: None
        give = SocketProtocol._give

        def noted(protocol: SocketProtocol, messages: list[bytes]) -> GivenSocket | None:
            given = give(protocol, messages)
            if given is not None:
                self.protocols.append(protocol)
                self.given.append(given)
                self.on_given(protocol)
            return given

        monkeypatch.setattr(SocketProtocol, "_give", noted)


@pytest.fixture
def gateways(monkeypatch: pytest.MonkeyPatch) -> Gateways:
    return Gateways(monkeypatch)


async def behind(it: World, url: str) -> tuple[Hop, str]:
    """Serve a hop before a gateway that stops either way when it is told; returns its address."""
    host, _, port = url.removeprefix("http://").partition(":")
    hop = Hop((host, int(port)))
    server = await asyncio.start_server(hop.talk, "127.0.0.1", 0)
    it.servers.append(server)
    it.hops.append(hop)
    return hop, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def over(it: World, pipe: WebSocketPipe) -> MessageCarrier:
    """Return a carrier over a WebSocket that is about to say hello."""
    number, handshake = it.ticket.handshake()
    return MessageCarrier(driver=it.client.driver, number=number, handshake=handshake, pipe=pipe)


async def test_both_ends_give_a_websocket_to_their_pumps_and_keep_nothing(
    any_world: MakeWorld, gateways: Gateways, request: pytest.FixtureRequest
) -> None:
    async with asyncio.timeout(SECONDS), any_world() as it, http_door(it) as url:
        carrier = await attach_socket(it, url)
        assert carrier.stream.is_given is is_given_by("client", request)
        assert len(gateways.given) == is_given_by("gateway", request)
        assert await echoes(it)
        for protocol in gateways.protocols:

            async def kept(protocol: SocketProtocol = protocol) -> int:
                return len(protocol.connections) + len(protocol.tasks)

            await eventually(kept, lambda count: count == 0)
        await it.settled()


async def test_what_comes_with_the_answer_is_not_lost(any_world: MakeWorld) -> None:
    """The target speaks first, so that records stand behind the answer when the client reads it."""
    content = secrets.token_bytes(SIZE)

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(content)
        await writer.drain()
        writer.close()

    async with asyncio.timeout(SECONDS), any_world() as it, http_door(it) as url:
        port = await it.listen(f"127.0.0.1:{await it.serve(speak)}")
        hop, near = await behind(it, url)
        asking = asyncio.ensure_future(whole(port, b""))

        async def opened() -> int:
            return it.client.driver.channels

        await eventually(opened, lambda count: count == 1)
        hop.to_client.clear()
        pipe = asyncio.ensure_future(connect_websocket(near))

        async def heard() -> int:
            return len(hop.answered)

        await eventually(heard, lambda count: count > 0)
        hop.to_client.set()
        await pipe
        hop.to_client.clear()
        carrier = over(it, pipe.result())
        carrier.begin()
        await eventually(heard, lambda count: count > 128 * 1024)
        hop.to_client.set()
        it.ticket.keep(await carrier.ready)
        assert await asking == content


async def test_a_carrier_that_is_left_ends_a_while_later_and_loses_nothing(
    any_world: MakeWorld,
) -> None:
    async with asyncio.timeout(SECONDS), any_world() as it, http_door(it) as url:
        first = await attach_socket(it, url)
        asking = asyncio.ensure_future(echoes(it))
        await asyncio.sleep(0.02)  # some of it is under way
        second = await attach_socket(it, url)
        first.retire()
        assert not first.gone.done()
        await gone(first)
        assert await asking
        assert not second.gone.done()
        await it.settled()


@pytest.mark.parametrize(
    ("extra", "lasts"),
    [
        (b"\x89\x84" + MASK + b"ping", True),
        (b"\x8a\x80" + MASK, True),
        (b"\x88\x82" + MASK + b"\x03\xe8", False),
        (b"\x82\x85" + MASK + b"wrong", False),
        (b"\x82\x05wrong", False),
        (b"\x81\x81" + MASK + b"a", False),
    ],
    ids=["ping", "pong", "end", "no record", "unmasked", "text"],
)
async def test_what_stands_behind_the_hello_is_read(
    any_world: MakeWorld, gateways: Gateways, extra: bytes, lasts: bool
) -> None:
    async with asyncio.timeout(SECONDS), any_world() as it, http_door(it) as url:
        await attach_socket(it, url)  # the ticket's, whose answer must not be lost
        hop, near = await behind(it, url)
        pipe = await connect_websocket(near)
        carrier = over(it, pipe)
        hop.to_gateway.clear()
        carrier.begin()
        transport = pipe._transport
        assert transport is not None
        transport.write(extra)
        length = len(hop.said)

        async def said() -> int:
            return len(hop.said) - length

        await eventually(said, lambda count: count > len(extra))
        hop.to_gateway.set()
        if lasts:
            await carrier.ready
            assert not carrier.gone.done()
        else:
            await gone(carrier)
        if len(gateways.given) > 1:
            assert gateways.given[-1].received == extra
        assert await echoes(it)


@pytest.mark.parametrize("cut", [1, 3, 7])
async def test_a_frame_of_which_only_a_part_stands_behind_the_hello_goes_on(
    any_world: MakeWorld, gateways: Gateways, cut: int
) -> None:
    frame = b"\x89\x84" + MASK + b"ping"
    async with asyncio.timeout(SECONDS), any_world() as it, http_door(it) as url:
        hop, near = await behind(it, url)
        pipe = await connect_websocket(near)
        carrier = over(it, pipe)
        hop.to_gateway.clear()
        hop.to_client.clear()
        carrier.begin()
        transport = pipe._transport
        assert transport is not None
        transport.write(frame[:cut])
        hop.to_gateway.set()

        async def answered() -> int:
            return hop.answered.count(b"\x82")

        await eventually(answered, lambda count: count > 0)
        transport.write(frame[cut:])  # before the client has the answer, and gives it away

        async def ponged() -> bool:
            return b"\x8a\x04ping" in hop.answered

        await eventually(ponged, lambda found: found)
        hop.to_client.set()
        it.ticket.keep(await carrier.ready)
        assert await echoes(it)
        assert [each.received for each in gateways.given] in ([], [frame[:cut]])


async def test_frames_before_the_upgrade_is_answered_leave_it_where_it_is(
    any_world: MakeWorld, gateways: Gateways, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows where the last of those ends."""
    connect = SocketProtocol.handle_connect

    def hasty(protocol: SocketProtocol, event: Request) -> None:
        connect(protocol, event)
        asyncio.get_running_loop().call_soon(protocol.data_received, b"\x8a\x80" + MASK)

    async with asyncio.timeout(SECONDS), any_world() as it, http_door(it) as url:
        monkeypatch.setattr(SocketProtocol, "handle_connect", hasty)
        accept = SocketDesk._first

        async def late(desk: SocketDesk, receive: Receive, send: Send) -> Message:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            return await accept(desk, receive, send)

        monkeypatch.setattr(SocketDesk, "_first", late)
        await attach_socket(it, url)
        assert not gateways.given
        assert await echoes(it)


async def test_a_connection_that_is_reset_as_it_is_given_away_is_only_lost(
    any_world: MakeWorld, gateways: Gateways
) -> None:
    async with asyncio.timeout(SECONDS), any_world() as it, http_door(it) as url:
        await attach_socket(it, url)
        hop, near = await behind(it, url)
        gateways.on_given = lambda _: hop.cut()
        carrier = over(it, await connect_websocket(near))
        carrier.begin()
        if len(gateways.given) == 0:
            await asyncio.wait((carrier.ready, carrier.gone), return_when="FIRST_COMPLETED")
        hop.cut()
        await gone(carrier)
        assert await echoes(it)


async def test_a_server_that_stops_as_a_connection_is_given_away_leaves_it_whole(
    any_world: MakeWorld, gateways: Gateways
) -> None:
    async with asyncio.timeout(SECONDS), any_world() as it:
        async with http_door(it) as url:
            gateways.on_given = lambda protocol: protocol.shutdown()
            carrier = await attach_socket(it, url)
            assert await echoes(it)
        await gone(carrier)


async def test_without_a_descriptor_more_it_stays_where_it_is(
    any_world: MakeWorld, gateways: Gateways, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> int:
        raise OSError(24, os.strerror(24))

    async with asyncio.timeout(SECONDS), any_world() as it, http_door(it) as url:
        with monkeypatch.context() as patched:
            patched.setattr("fairlead_tunnel.given_carriers.os.dup", full)
            carrier = await attach_socket(it, url)
        assert not carrier.stream.is_given
        assert not gateways.given
        assert await echoes(it)


async def test_a_pump_that_ends_is_told_to_its_websockets(any_world: MakeWorld) -> None:
    async with asyncio.timeout(SECONDS), any_world() as it, http_door(it) as url:
        carrier = await attach_socket(it, url)
        driver = it.client.driver
        tell = getattr(driver, "failed", None)
        if tell is None:
            return  # it is on no pump
        tell("A fault of the test.")
        await gone(carrier)
        assert it.client.over_reason == "client_failed"
        assert not carrier.stream.is_open
