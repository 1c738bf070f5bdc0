"""A gateway's HTTP port in front of the tunnels of a `World`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from chassis.listeners import ConnectionLimits
from fairlead_tunnel.carriers import TunnelTicket
from fairlead_tunnel.driver_sides import CarrierDriver
from fairlead_tunnel.endpoints import Endpoint, EndpointPool
from fairlead_tunnel.handshake import AttachRefused, HandshakeInvalid
from fairlead_tunnel.http_posts import HttpPosts
from fairlead_tunnel.message_carrier import ClientPipe, MessageCarrier
from fairlead_tunnel.poll_carrier import PollCarrier
from fairlead_tunnel.stream_pipe import connect_stream
from fairlead_tunnel.websocket_pipe import connect_websocket
from relay_gateway.http_api import GatewayApp, serve_gateway
from tests.contract.tunnel.tunnel_world import World


@asynccontextmanager
async def http_door(it: World, limits: ConnectionLimits | None = None) -> AsyncIterator[str]:
    """Serve the gateway's HTTP port; gives its base address."""
    app = GatewayApp(why_not_ready=lambda: "", desk=it.desk)
    async with serve_gateway(app, bind="127.0.0.1:0", limits=limits) as port:
        yield f"http://127.0.0.1:{port}"


async def attach_socket(it: World, url: str) -> MessageCarrier:
    """Attach one more carrier over a WebSocket and wait for its answer."""
    return await attach_pipe(it.client.driver, it.ticket, await connect_websocket(url))


async def attach_stream(it: World, url: str) -> MessageCarrier:
    """Attach one more carrier over two requests and wait for its answer."""
    return await attach_pipe(it.client.driver, it.ticket, await connect_stream(url))


async def attach_pipe(
    driver: CarrierDriver, ticket: TunnelTicket, pipe: ClientPipe
) -> MessageCarrier:
    """Attach a carrier over a pipe and wait for its answer."""
    number, handshake = ticket.handshake()
    carrier = MessageCarrier(driver=driver, number=number, handshake=handshake, pipe=pipe)
    carrier.begin()
    ticket.keep(await carrier.ready)
    return carrier


def polling(it: World, *endpoints: Endpoint) -> AbstractAsyncContextManager[PollCarrier]:
    """Poll these endpoints while in the block; the carrier is attached when it begins."""
    return polls(it.client.driver, it.ticket, *endpoints)


@asynccontextmanager
async def polls(
    driver: CarrierDriver, ticket: TunnelTicket, *endpoints: Endpoint
) -> AsyncIterator[PollCarrier]:
    """Poll these endpoints for a tunnel while in the block."""
    posts = HttpPosts()
    pool = EndpointPool(endpoints, now=asyncio.get_running_loop().time())
    carrier = PollCarrier(driver=driver, ticket=ticket, pool=pool, posts=posts)
    running = asyncio.ensure_future(carrier.run())
    try:
        ticket.keep(await carrier.ready)
        yield carrier
    finally:
        carrier.stream.close()
        with contextlib.suppress(AttachRefused, HandshakeInvalid):
            await running
        posts.close()
