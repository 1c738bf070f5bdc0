"""A gateway's HTTP port in front of the tunnels of a `World`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fairlead_tunnel.websocket_pipe import SocketCarrier, connect_websocket
from relay_gateway.http_api import GatewayApp, serve_http
from tests.contract.tunnel.tunnel_world import World


@asynccontextmanager
async def http_door(it: World) -> AsyncIterator[str]:
    """Serve the gateway's HTTP port; gives its base address."""
    app = GatewayApp(why_not_ready=lambda: "", desk=it.desk)
    async with serve_http(app, bind="127.0.0.1:0") as port:
        yield f"http://127.0.0.1:{port}"


async def attach_socket(it: World, url: str) -> SocketCarrier:
    """Attach one more carrier over a WebSocket and wait for its answer."""
    number, handshake = it.ticket.handshake()
    carrier = await connect_websocket(
        url, driver=it.client.driver, number=number, handshake=handshake
    )
    it.ticket.keep(await carrier.ready)
    return carrier
