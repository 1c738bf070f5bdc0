"""Tunnels at a real gateway over its HTTP port: WebSockets, and polls through a hop."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from fairlead_tunnel.endpoints import Endpoint
from fairlead_tunnel.websocket_pipe import connect_websocket
from tests.contract.tunnel.http_world import attach_pipe, polls
from tests.contract.tunnel.talks import SIZE
from tests.contract.wire.gateway_mesh import Mesh, mesh, until
from tests.contract.wire.tunnel_client import TunnelClient, tunnel_client, want_tunnel
from tests.eventually import SECONDS
from tests.fakes.buffering_hop import buffering_hop

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("each_pump")]


def url_of(it: Mesh) -> str:
    """Return the gateway's address over HTTP, as it told signalling."""
    (url,) = [each for each in it.signalling.hellos[-1].tunnel.urls if each.startswith("http:")]
    return url


@asynccontextmanager
async def wanted_client(it: Mesh) -> AsyncIterator[TunnelClient]:
    """A client of a tunnel that signalling wants."""
    await until(lambda: it.gateway.is_ready)
    want_tunnel(it, "ses_a")
    async with tunnel_client(it) as client:
        yield client


async def test_ports_of_the_sandbox_are_reached_over_a_websocket() -> None:
    content = secrets.token_bytes(SIZE)
    async with asyncio.timeout(SECONDS), mesh(content) as it:
        async with wanted_client(it) as client:
            pipe = await connect_websocket(url_of(it))
            await attach_pipe(client.end.driver, client.ticket, pipe)
            await it.signalling.until(lambda: it.signalling.is_up("ses_a"))
            assert await client.ask(f"tcp:{it.servers.echo}", content) == content
            await until(lambda: it.gateway.channels == 0)
        await it.signalling.until(lambda: it.signalling.closed("ses_a") == ["peer_closed"])


async def test_ports_of_the_sandbox_are_reached_over_polls() -> None:
    content = secrets.token_bytes(SIZE)
    async with asyncio.timeout(SECONDS), mesh(content) as it:
        async with (
            buffering_hop(url_of(it)) as hop,
            wanted_client(it) as client,
            polls(client.end.driver, client.ticket, Endpoint(hop.url)) as carrier,
        ):
            await it.signalling.until(lambda: it.signalling.is_up("ses_a"))
            assert await client.ask(f"tcp:{it.servers.echo}", content) == content
            await until(lambda: it.gateway.channels == 0)
            client.end.driver.close("closed", "Enough.")
            await carrier.gone
        await it.signalling.until(lambda: it.signalling.closed("ses_a") == ["peer_closed"])


async def test_a_session_that_is_not_wanted_any_more_ends_its_polls() -> None:
    async with (
        asyncio.timeout(SECONDS),
        mesh() as it,
        buffering_hop(url_of(it)) as hop,
        wanted_client(it) as client,
        polls(client.end.driver, client.ticket, Endpoint(hop.url)) as carrier,
    ):
        await it.signalling.until(lambda: it.signalling.is_up("ses_a"))
        it.signalling.unwant("ses_a")
        await carrier.gone
        assert client.end.over_reason == "session_closed"
