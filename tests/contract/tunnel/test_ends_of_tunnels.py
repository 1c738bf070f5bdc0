"""How the end of a tunnel, or of a carrier, gets to the other side, whatever the carrier is."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import Awaitable, Callable

import pytest

from fairlead_tunnel.driver_sides import OPEN_UNSENT, OrderedCarrier
from fairlead_tunnel.endpoints import Endpoint
from fairlead_tunnel.outbox import SMALLEST_BATCH, Batch
from fairlead_tunnel.tunnel import CHANNEL_WINDOW
from tests.contract.tunnel.http_world import attach_socket, http_door, polling
from tests.contract.tunnel.pumped_ends import MakeWorld
from tests.contract.tunnel.talks import echo, whole
from tests.contract.tunnel.tunnel_world import ClientEnd, World, world
from tests.eventually import SECONDS, eventually
from tests.fakes.buffering_hop import buffering_hop

pytestmark = pytest.mark.asyncio


async def over_tcp(it: World, url: str) -> OrderedCarrier:
    return (await it.attach(it.hops[0] if it.hops else None)).stream


async def over_websocket(it: World, url: str) -> OrderedCarrier:
    return (await attach_socket(it, url)).stream


async def gateway_over(it: World) -> str:
    return it.gateways[0].over_reason


async def wants(it: World) -> list[str]:
    return it.gateways[0].wants


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


async def test_what_has_come_whole_is_passed_on_when_the_tunnel_ends(
    any_world: MakeWorld,
) -> None:
    content = secrets.token_bytes(CHANNEL_WINDOW)

    async def source(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.write(content)
        writer.close()

    async def left() -> int:
        return it.gateways[0].left

    async with asyncio.timeout(SECONDS), any_world() as it:
        await it.attach()
        port = await it.listen(f"127.0.0.1:{await it.serve(source)}")
        plug = socket.socket()
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        plug.connect(("127.0.0.1", port))
        plug.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=plug, limit=4096)
        writer.write_eof()
        await eventually(lambda: wants(it), bool)
        await eventually(left, lambda count: count == 0)  # all has come to the client
        it.gateways[0].driver.close("drained", "The gateway stops.")
        await it.ends("drained")
        assert await reader.read() == content
        writer.close()
        await it.settled()
        assert await it.reasons() == []


async def test_what_was_under_way_when_the_gateway_ended_is_known_not_to_have_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with asyncio.timeout(SECONDS), world() as it:
        client = it.client
        assert isinstance(client, ClientEnd)
        stream = (await it.attach()).stream
        send = stream.send

        def sent(batch: Batch) -> None:
            monkeypatch.setattr(stream, "send", send)
            send(batch)  # which the gateway has not read when it ends
            it.gateways[0].driver.close("drained", "The gateway stops.")
            asyncio.get_running_loop().call_soon(send_more)

        def send_more() -> None:
            if not client.driver.is_over:  # uvloop reads how the gateway has ended before
                client.driver.open("127.0.0.1:9")
                client.driver._flush()

        monkeypatch.setattr(stream, "send", sent)
        client.driver.open("127.0.0.1:9")
        await it.ends("drained")
        assert {reason for _, reason in client.endings} == {OPEN_UNSENT}


@pytest.mark.parametrize("attach", [over_tcp, over_websocket])
async def test_who_leaves_while_its_carriers_are_full_has_told_so(
    any_world: MakeWorld,
    attach: Callable[[World, str], Awaitable[OrderedCarrier]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in ("record_stream", "websocket_pipe"):
        monkeypatch.setattr(f"fairlead_tunnel.{module}.LINGER_SECONDS", SECONDS)

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while await reader.read(65536):
                pass
        writer.transport.abort()
        swallowed.set()

    async def looks_without_news() -> int:
        seen.append(it.client.written)
        return seen.count(seen[-1]) if seen[-1] else 0

    seen: list[int] = []
    swallowed = asyncio.Event()
    async with asyncio.timeout(SECONDS), any_world() as it, http_door(it) as url:
        if attach is over_tcp:
            hop = await it.hop()
        else:
            hop = await it.hop(("127.0.0.1", int(url.rpartition(":")[2])))
        stream = await attach(it, f"http://127.0.0.1:{hop.address[1]}")
        port = await it.listen(f"127.0.0.1:{await it.serve(swallow)}")
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        hop.to_gateway.clear()
        writer.write(bytes(4 * CHANNEL_WINDOW))
        await eventually(looks_without_news, lambda count: count == 50)
        it.client.driver.close("normal", "The client has ended.")
        stream.close()
        hop.to_gateway.set()
        assert await eventually(lambda: gateway_over(it), bool) == "normal"
        await swallowed.wait()
        writer.transport.abort()
