"""Tunnels over two requests, a long answer down and a long body up: bytes, cuts, moves and ends."""

from __future__ import annotations

import asyncio
import secrets

import pytest

from fairlead_tunnel.handshake import AttachRefused
from fairlead_tunnel.stream_halves import StreamRefused
from fairlead_tunnel.stream_pipe import connect_stream
from fairlead_tunnel.stream_wire import STREAM_PATH
from tests.contract.tunnel.http_world import attach_socket, attach_stream, http_door
from tests.contract.tunnel.pumped_ends import MakeWorld
from tests.contract.tunnel.talks import digest, echo, whole
from tests.contract.tunnel.tunnel_world import World
from tests.eventually import SECONDS, eventually
from tests.fakes.buffering_hop import buffering_hop

pytestmark = pytest.mark.asyncio
SIZE = 16 * 1024 * 1024
NAME = "0" * 32


async def test_bytes_go_both_ways_and_both_ends_end(any_world: MakeWorld) -> None:
    async with asyncio.timeout(SECONDS), any_world() as it, http_door(it) as url:
        await attach_stream(it, url)
        port = await it.listen(f"127.0.0.1:{await it.serve(echo)}")
        content = secrets.token_bytes(SIZE)
        assert await whole(port, content) == content
        await it.settled()
        assert await it.fates() == await it.reasons() == []


@pytest.mark.parametrize("half", ["down", "up"])
async def test_either_request_that_is_cut_under_way_loses_nothing(
    any_world: MakeWorld, half: str
) -> None:
    async with asyncio.timeout(SECONDS), any_world() as it, http_door(it) as url:
        carrier = await attach_stream(it, url)
        port = await it.listen(f"127.0.0.1:{await it.serve(echo)}")
        content = secrets.token_bytes(SIZE)
        asking = asyncio.ensure_future(whole(port, content))
        for share in range(1, 4):
            await _echoed(it, share * SIZE // 5)
            transport = getattr(carrier.pipe, half).transport
            transport.abort()
            await carrier.gone
            carrier = await attach_stream(it, url)
        assert await asking == content
        await it.settled()
        assert len(it.gateways) == 1


async def _echoed(it: World, size: int) -> None:
    """Wait until so many bytes came back."""

    async def count() -> int:
        return it.client.came

    await eventually(count, lambda found: found >= size)


async def test_a_transfer_moves_to_a_websocket_and_back_without_losing_a_byte(
    any_world: MakeWorld,
) -> None:
    async with asyncio.timeout(SECONDS), any_world() as it, http_door(it) as url:
        stream = await attach_stream(it, url)
        port = await it.listen(f"127.0.0.1:{await it.serve(echo)}")
        content = secrets.token_bytes(SIZE)
        asking = asyncio.ensure_future(whole(port, content))
        await _echoed(it, SIZE // 4)
        socket = await attach_socket(it, url)
        stream.stream.close()
        await _echoed(it, SIZE // 2)
        stream = await attach_stream(it, url)
        socket.stream.close()
        assert await asking == content
        await it.settled()


async def test_what_is_opened_before_there_is_a_carrier_rides_with_its_hello(
    any_world: MakeWorld,
) -> None:
    async with asyncio.timeout(SECONDS), any_world() as it, http_door(it) as url:
        port = await it.listen(f"127.0.0.1:{await it.serve(digest)}")
        asking = asyncio.ensure_future(whole(port, b"early"))

        async def opened() -> int:
            return it.client.left

        await eventually(opened, lambda count: count > 0)
        await attach_stream(it, url)
        assert len(await asking) == 32


async def test_a_tunnel_that_the_gateway_has_lost_is_refused_with_its_reason(
    any_world: MakeWorld,
) -> None:
    async with asyncio.timeout(SECONDS), any_world() as it, http_door(it) as url:
        await attach_stream(it, url)
        it.desk.forget(it.ticket._tunnel_id)
        with pytest.raises(AttachRefused) as refused:
            await attach_stream(it, url)
        assert refused.value.reason == "tunnel_unknown"


async def test_a_gateway_that_stops_ends_the_carrier(any_world: MakeWorld) -> None:
    async with asyncio.timeout(SECONDS), any_world() as it:
        async with http_door(it) as url:
            carrier = await attach_stream(it, url)
        await carrier.gone


async def test_a_client_that_leaves_ends_both_requests(any_world: MakeWorld) -> None:
    async with asyncio.timeout(SECONDS), any_world() as it, http_door(it) as url:
        carrier = await attach_stream(it, url)
        carrier.stream.close()
        await carrier.gone

        async def carriers() -> int:
            return it.gateways[0].driver.carriers

        await eventually(carriers, lambda count: count == 0)


async def test_who_answers_without_a_stream_is_no_carrier(any_world: MakeWorld) -> None:
    async with asyncio.timeout(SECONDS), any_world() as it, http_door(it) as url:
        with pytest.raises(StreamRefused) as refused:
            await connect_stream(url + "/elsewhere")
        assert refused.value.status == 404


@pytest.mark.parametrize("passes_requests", [False, True])
async def test_nobody_says_hello_through_a_hop_that_holds_bodies_back(
    any_world: MakeWorld,
    passes_requests: bool,
) -> None:
    async with (
        asyncio.timeout(SECONDS),
        any_world() as it,
        http_door(it) as url,
        buffering_hop(url) as hop,
    ):
        hop.passes_requests = passes_requests
        connecting = asyncio.ensure_future(connect_stream(hop.url))

        async def requests() -> int:
            return hop.requests

        await eventually(requests, lambda count: count == 1 + passes_requests)
        assert not connecting.done()
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
        assert it.gateways == []


async def _status(url: str, request: str) -> bytes:
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    method, _, name = request.partition(" ")
    writer.write(f"{method} {STREAM_PATH}{name} HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
    try:
        return (await reader.readline()).split()[1]
    finally:
        writer.close()


async def test_other_requests_are_refused(any_world: MakeWorld) -> None:
    async with asyncio.timeout(SECONDS), any_world() as it, http_door(it) as url:
        assert await _status(url, f"PUT {NAME}") == b"405"
        assert await _status(url, "GET abc") == b"404"
        pipe = await connect_stream(url, random=bytes)
        assert await _status(url, f"GET {NAME}") == b"409"
        assert await _status(url, f"POST {NAME}") == b"409"
        pipe.abort()
