"""A tunnel through a whole stack: opened at the front door, attached at its gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import urlsplit

import pytest

from fairlead_sdk import AsyncFairlead, Fairlead
from fairlead_tunnel.carriers import ClientCarrier, TunnelTicket
from fairlead_tunnel.pumps import PumpChoice
from fairlead_tunnel.records import Suite
from tests.contract.tunnel.tunnel_world import ClientEnd
from tests.e2e.running_stack import RunningStack, places, running_stack
from tests.e2e.test_sessions import serving as started
from tests.eventually import eventually


@pytest.fixture(params=PumpChoice)
def stack(request: pytest.FixtureRequest) -> Iterator[RunningStack]:
    """A running stack whose gateway runs tunnels on this."""
    if request.param is PumpChoice.AUTO:
        yield request.getfixturevalue("stack")
        return
    extra = {"FAIRLEAD_TUNNEL_PUMP": request.param.value}
    with places() as where, running_stack(replace(where, extra=extra)) as running:
        yield running


@pytest.fixture
def serving(stack: RunningStack) -> Iterator[tuple[str, int]]:
    """A sandbox and the port of an echo in it."""
    with Fairlead(url=stack.url, api_key=stack.api_key) as fairlead:
        sandbox = fairlead.sandboxes.create()
        try:
            yield sandbox.sandbox_id, started(sandbox)
        finally:
            sandbox.release()


@pytest.mark.asyncio
async def test_a_tunnel_reaches_a_port_of_the_sandbox(
    stack: RunningStack, serving: tuple[str, int]
) -> None:
    sandbox_id, port = serving
    async with AsyncFairlead(url=stack.url, api_key=stack.api_key) as fairlead:
        opened = await fairlead.sessions.create(sandbox_id, mode="tunnel")
        found = opened.tunnel
        assert found is not None
        end = ClientEnd()
        ticket = TunnelTicket(
            tunnel_id=bytes.fromhex(found.tunnel_id),
            ticket=found.ticket,
            psk=found.secret,
            gateway_key=found.gateway_key,
            suite=Suite.AES_256_GCM,
        )
        place = urlsplit(found.urls[0])
        number, handshake = ticket.handshake()
        carrier = ClientCarrier(driver=end.driver, number=number, handshake=handshake)
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: carrier.stream, str(place.hostname), place.port or 0)
        carrier.begin()
        ticket.keep(await carrier.ready)
        server = await loop.create_server(lambda: end.port_for(f"tcp:{port}"), "127.0.0.1", 0)
        async with server:
            local = server.sockets[0].getsockname()[1]
            reader, writer = await asyncio.open_connection("127.0.0.1", local)
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            writer.close()
        session_id = opened.session.session_id

        async def state() -> str:
            return (await fairlead.sessions.get(session_id)).state

        await eventually(state, lambda found: found == "connected")
        await fairlead.sessions.close(session_id)
        await carrier.gone
        assert end.over_reason == "session_closed"
        assert (await fairlead.sessions.get(session_id)).close_reason == "requested"
