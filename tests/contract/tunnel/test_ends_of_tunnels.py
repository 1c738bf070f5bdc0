"""How the end of a tunnel, or of a carrier, gets to the other side, whatever the carrier is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from fairlead_tunnel.driver_sides import OrderedCarrier
from fairlead_tunnel.endpoints import Endpoint
from fairlead_tunnel.outbox import SMALLEST_BATCH
from tests.contract.tunnel.http_world import attach_socket, http_door, polling
from tests.contract.tunnel.pumped_ends import MakeWorld
from tests.contract.tunnel.talks import SECONDS, echo, whole
from tests.contract.tunnel.tunnel_world import World
from tests.eventually import eventually
from tests.fakes.buffering_hop import buffering_hop

pytestmark = pytest.mark.asyncio


async def over_tcp(it: World, url: str) -> OrderedCarrier:
    return (await it.attach()).stream


async def over_websocket(it: World, url: str) -> OrderedCarrier:
    return (await attach_socket(it, url)).stream


async def gateway_over(it: World) -> str:
    return it.gateways[0].over_reason


async def client_over(it: World) -> str:
    return it.client.over_reason


@pytest.mark.parametrize("attach", [over_tcp, over_websocket])
async def test_who_closes_a_tunnel_and_then_its_carrier_has_told_why(
    any_world: MakeWorld, attach: Callable[[World, str], Awaitable[OrderedCarrier]]
) -> None:
    async with asyncio.timeout(SECONDS), any_world() as it, http_door(it) as url:
        stream = await attach(it, url)
        it.client.driver.close("session_closed", "Enough.")
        stream.close()
        assert await eventually(lambda: gateway_over(it), bool) == "session_closed"
        assert await eventually(lambda: client_over(it), bool) == "session_closed"
        assert it.client.driver.is_over


async def test_who_polls_after_the_end_is_told_why(any_world: MakeWorld) -> None:
    async with (
        asyncio.timeout(SECONDS),
        any_world() as it,
        http_door(it) as url,
        buffering_hop(url) as hop,
        polling(it, Endpoint(hop.url)) as carrier,
    ):
        hop.cut()
        it.gateways[0].driver.close("expired", "It was too old.")
        await eventually(lambda: gateway_over(it), bool)
        await carrier.gone
        await it.ends("expired")


async def test_a_carrier_that_the_client_has_lost_is_dropped_by_the_gateway(
    any_world: MakeWorld,
) -> None:
    async def carriers() -> int:
        return it.gateways[0].driver.carriers

    async with asyncio.timeout(SECONDS), any_world() as it, http_door(it) as url:
        await it.attach()
        await attach_socket(it, url)
        it.client.driver.detach(2)
        await attach_socket(it, url)
        await eventually(carriers, lambda count: count == 2)
        port = await it.listen(f"127.0.0.1:{await it.serve(echo)}")
        assert await whole(port, b"hello") == b"hello"
        it.client.driver.detach(3)


async def test_a_batch_that_is_restated_says_what_came(any_world: MakeWorld) -> None:
    async with asyncio.timeout(SECONDS), any_world() as it, http_door(it) as url:
        await attach_socket(it, url)
        port = await it.listen(f"127.0.0.1:{await it.serve(echo)}")
        assert await whole(port, b"hello") == b"hello"
        driver = it.gateways[0].driver
        assert driver.answer_batch(100, SMALLEST_BATCH, restate=True)
        driver.detach(100)
