"""Tunnels over polls, through a hop that buffers whole bodies: bytes, slots, moves and ends."""

from __future__ import annotations

import asyncio
import secrets

import pytest

from fairlead_tunnel.endpoints import IDLE_SLOTS, Endpoint
from fairlead_tunnel.handshake import AttachRefused
from tests.contract.tunnel.http_world import attach_socket, http_door, polling
from tests.contract.tunnel.pumped_ends import MakeWorld
from tests.contract.tunnel.talks import digest, echo, whole
from tests.eventually import SECONDS, eventually
from tests.fakes.buffering_hop import Fate, buffering_hop

pytestmark = pytest.mark.asyncio
SIZE = 16 * 1024 * 1024


async def test_bytes_go_both_ways_through_a_hop_that_buffers(any_world: MakeWorld) -> None:
    async with (
        asyncio.timeout(SECONDS),
        any_world() as it,
        http_door(it) as url,
        buffering_hop(url) as hop,
        polling(it, Endpoint(hop.url)),
    ):
        port = await it.listen(f"127.0.0.1:{await it.serve(echo)}")
        content = secrets.token_bytes(SIZE)
        assert await whole(port, content) == content
        await it.settled()
        assert await it.fates() == await it.reasons() == []


async def test_what_is_opened_before_there_is_a_carrier_rides_with_the_first_poll(
    any_world: MakeWorld,
) -> None:
    async with (
        asyncio.timeout(SECONDS),
        any_world() as it,
        http_door(it) as url,
        buffering_hop(url) as hop,
    ):
        port = await it.listen(f"127.0.0.1:{await it.serve(digest)}")
        asking = asyncio.ensure_future(whole(port, b"early"))

        async def opened() -> int:
            return it.client.driver.channels

        await eventually(opened, lambda count: count == 1)
        async with polling(it, Endpoint(hop.url)):
            assert len(await asking) == 32


async def test_a_pure_download_does_not_multiply_requests(any_world: MakeWorld) -> None:
    content = secrets.token_bytes(SIZE)

    async def source(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        writer.write(content)
        await writer.drain()
        writer.close()

    async with (
        asyncio.timeout(SECONDS),
        any_world() as it,
        http_door(it) as url,
        buffering_hop(url) as hop,
        polling(it, Endpoint(hop.url)),
    ):
        port = await it.listen(f"127.0.0.1:{await it.serve(source)}")
        assert await whole(port, b"!") == content
        await it.settled()
        assert hop.up_bytes < hop.down_bytes // 50


async def test_idle_polls_of_an_account_share_its_slots(any_world: MakeWorld) -> None:
    async with (
        asyncio.timeout(SECONDS),
        any_world() as it,
        http_door(it) as url,
        buffering_hop(url) as one,
        buffering_hop(url) as other,
        polling(it, Endpoint(one.url, "us"), Endpoint(other.url, "us")) as carrier,
    ):
        port = await it.listen(f"127.0.0.1:{await it.serve(echo)}")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(20):
            writer.write(b"x" * 1000)
            await reader.readexactly(1000)

        async def idle() -> int:
            assert carrier.pool.idle <= IDLE_SLOTS
            return one.under_way + other.under_way

        await eventually(idle, lambda count: count == IDLE_SLOTS)
        assert one.requests > 5
        assert other.requests > 5
        writer.close()
        await writer.wait_closed()
        await it.settled()


async def test_a_transfer_moves_between_polls_tcp_and_websockets_without_losing_a_byte(
    any_world: MakeWorld,
) -> None:
    async with (
        asyncio.timeout(SECONDS),
        any_world() as it,
        http_door(it) as url,
        buffering_hop(url) as hop,
    ):
        content = secrets.token_bytes(SIZE)
        async with polling(it, Endpoint(hop.url)):
            port = await it.listen(f"127.0.0.1:{await it.serve(echo)}")
            asking = asyncio.ensure_future(whole(port, content))
            await _requests(hop, 8)
            socket = await attach_socket(it, url)
        tcp = await it.attach()
        socket.stream.close()
        async with polling(it, Endpoint(hop.url)):
            tcp.stream.close()
            assert await asking == content
            await it.settled()
        assert len(it.gateways) == 1


@pytest.mark.parametrize("fate", [Fate.ANSWER_LOST, Fate.REQUEST_LOST, Fate.ANSWER_CUT])
async def test_polls_that_are_left_for_tcp_lose_no_byte_of_what_is_under_way(
    any_world: MakeWorld, fate: Fate
) -> None:
    lost: list[int] = []

    def choose(number: int, body: bytes) -> Fate:
        if is_left and len(lost) < 5:
            lost.append(number)
            return fate
        return Fate.PASSES

    is_left = False
    async with (
        asyncio.timeout(SECONDS),
        any_world() as it,
        http_door(it) as url,
        buffering_hop(url, choose) as hop,
        polling(it, Endpoint(hop.url)) as carrier,
    ):
        content = secrets.token_bytes(SIZE)
        port = await it.listen(f"127.0.0.1:{await it.serve(echo)}")
        asking = asyncio.ensure_future(whole(port, content))
        await _requests(hop, 8)
        await it.attach()
        is_left = True
        carrier.retire()
        assert await asking == content
        await it.settled()
        await carrier.gone
        requests = hop.requests
        assert await whole(port, b"more") == b"more"
        assert hop.requests == requests
        assert len(lost) == 5


async def _requests(hop: object, most: int) -> None:
    async def count() -> int:
        found: int = getattr(hop, "requests")  # noqa: B009
        return found

    await eventually(count, lambda found: found >= most)


async def test_a_gateway_that_was_started_anew_ends_the_tunnel_with_its_reason(
    any_world: MakeWorld,
) -> None:
    async with (
        asyncio.timeout(SECONDS),
        any_world() as it,
        any_world() as another,
        http_door(it) as url,
        http_door(another) as new_url,
        buffering_hop(url) as hop,
    ):
        async with polling(it, Endpoint(hop.url)) as carrier:
            port = await it.listen(f"127.0.0.1:{await it.serve(echo)}")
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"hello")
            await reader.readexactly(5)
            hop.gateway = new_url
            hop.cut()
            with pytest.raises(ConnectionResetError):
                await reader.readexactly(1)
            writer.close()
            await carrier.gone
        await it.ends("tunnel_unknown")


async def test_polls_of_a_tunnel_that_is_closed_end_with_it(any_world: MakeWorld) -> None:
    async with (
        asyncio.timeout(SECONDS),
        any_world() as it,
        http_door(it) as url,
        buffering_hop(url) as hop,
        polling(it, Endpoint(hop.url)) as carrier,
    ):
        it.client.driver.close("closed", "Enough.")
        await carrier.gone

        async def gateway_knows() -> str:
            return it.gateways[0].over_reason

        await eventually(gateway_knows, lambda reason: reason == "closed")


async def test_a_gateway_that_closes_a_tunnel_tells_the_client_in_a_poll(
    any_world: MakeWorld,
) -> None:
    async with (
        asyncio.timeout(SECONDS),
        any_world() as it,
        http_door(it) as url,
        buffering_hop(url) as hop,
        polling(it, Endpoint(hop.url)) as carrier,
    ):
        it.gateways[0].driver.close("expired", "It was too old.")
        await carrier.gone
        await it.ends("expired")


async def test_a_ticket_that_was_used_is_refused(any_world: MakeWorld) -> None:
    async with (
        asyncio.timeout(SECONDS),
        any_world() as it,
        http_door(it) as url,
        buffering_hop(url) as hop,
    ):
        await it.attach()
        it.ticket._secret = b""
        with pytest.raises(AttachRefused) as refused:
            async with polling(it, Endpoint(hop.url)):
                raise AssertionError
        assert refused.value.reason == "ticket_invalid"
