"""Tunnels over WebSockets: bytes both ways, cuts, refusals, and a move between two carriers."""

from __future__ import annotations

import asyncio
import secrets

import pytest

from chassis.listeners import ConnectionLimits
from fairlead_tunnel.handshake import AttachRefused
from fairlead_tunnel.websocket_pipe import SOCKET_PATH, SocketRefused, connect_websocket
from tests.contract.tunnel.http_world import attach_socket, http_door
from tests.contract.tunnel.pumped_ends import MakeWorld
from tests.contract.tunnel.talks import digest, echo, whole
from tests.eventually import SECONDS, eventually

pytestmark = pytest.mark.asyncio
SIZE = 16 * 1024 * 1024


async def test_bytes_go_both_ways_and_both_ends_end(any_world: MakeWorld) -> None:
    async with asyncio.timeout(SECONDS), any_world() as it, http_door(it) as url:
        await attach_socket(it, url)
        port = await it.listen(f"127.0.0.1:{await it.serve(echo)}")
        content = secrets.token_bytes(SIZE)
        assert await whole(port, content) == content
        await it.settled()
        assert await it.fates() == await it.reasons() == []


async def test_a_carrier_that_is_cut_under_way_loses_nothing(any_world: MakeWorld) -> None:
    async with asyncio.timeout(SECONDS), any_world() as it, http_door(it) as url:
        carrier = await attach_socket(it, url)
        port = await it.listen(f"127.0.0.1:{await it.serve(echo)}")
        content = secrets.token_bytes(SIZE)
        asking = asyncio.ensure_future(whole(port, content))
        for _ in range(4):
            await asyncio.sleep(0.02)  # some of it is under way
            carrier.stream.abort()
            carrier = await attach_socket(it, url)
        assert await asking == content
        await it.settled()
        assert len(it.gateways) == 1


async def test_a_transfer_moves_to_tcp_and_back_without_losing_a_byte(any_world: MakeWorld) -> None:
    async with asyncio.timeout(SECONDS), any_world() as it, http_door(it) as url:
        socket = await attach_socket(it, url)
        port = await it.listen(f"127.0.0.1:{await it.serve(echo)}")
        content = secrets.token_bytes(SIZE)
        asking = asyncio.ensure_future(whole(port, content))
        for _ in range(2):
            await asyncio.sleep(0.02)  # some of it is under way
            tcp = await it.attach()
            socket.stream.close()
            await asyncio.sleep(0.02)
            socket = await attach_socket(it, url)
            tcp.stream.close()
        assert await asking == content
        await it.settled()


async def test_a_tunnel_that_the_gateway_has_lost_is_refused_with_its_reason(
    any_world: MakeWorld,
) -> None:
    async with asyncio.timeout(SECONDS), any_world() as it, http_door(it) as url:
        await attach_socket(it, url)
        it.desk.forget(it.ticket._tunnel_id)
        with pytest.raises(AttachRefused) as refused:
            await attach_socket(it, url)
        assert refused.value.reason == "tunnel_unknown"


async def test_who_says_no_hello_makes_room_for_who_does(any_world: MakeWorld) -> None:
    limits = ConnectionLimits(most=2, trusted=())
    async with asyncio.timeout(SECONDS), any_world() as it, http_door(it, limits) as url:
        silent = [await connect_websocket(url) for _ in range(4)]
        carriers = [await attach_socket(it, url) for _ in range(2)]
        more = [await connect_websocket(url) for _ in range(4)]
        # Who has shown a ticket is not among those that are ended.
        assert not any(carrier.gone.done() for carrier in carriers)
        for each in (*silent, *more):
            each.abort()


async def test_a_gateway_that_stops_ends_the_carrier(any_world: MakeWorld) -> None:
    async with asyncio.timeout(SECONDS), any_world() as it:
        async with http_door(it) as url:
            carrier = await attach_socket(it, url)

        async def is_open() -> bool:
            return carrier.stream.is_open

        await eventually(is_open, lambda found: not found)


async def test_who_answers_without_a_websocket_is_no_carrier(any_world: MakeWorld) -> None:
    async with asyncio.timeout(SECONDS), any_world() as it, http_door(it) as url:
        with pytest.raises(SocketRefused) as refused:
            await attach_socket(it, url + "/elsewhere")
        assert refused.value.status == 403


@pytest.mark.parametrize("origin", ["https://page.example", "null"])
async def test_a_web_page_is_refused(any_world: MakeWorld, origin: str) -> None:
    async with asyncio.timeout(SECONDS), any_world() as it, http_door(it) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            f"GET {SOCKET_PATH} HTTP/1.1\r\nhost: {host}\r\nconnection: upgrade\r\n"
            "upgrade: websocket\r\nsec-websocket-version: 13\r\n"
            f"sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\norigin: {origin}\r\n\r\n".encode()
        )
        assert (await reader.readline()).split()[1] == b"403"
        writer.close()


async def test_what_is_opened_before_there_is_a_carrier_rides_with_its_hello(
    any_world: MakeWorld,
) -> None:
    async with asyncio.timeout(SECONDS), any_world() as it, http_door(it) as url:
        port = await it.listen(f"127.0.0.1:{await it.serve(digest)}")
        asking = asyncio.ensure_future(whole(port, b"early"))

        async def opened() -> int:
            return it.client.driver.channels

        await eventually(opened, lambda count: count == 1)
        await attach_socket(it, url)
        assert len(await asking) == 32
