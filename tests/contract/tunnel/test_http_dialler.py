"""Lines where only HTTP passes: a WebSocket, or polls where a hop lets none through."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from fairlead_sdk.tunnel_line import open_line
from fairlead_sdk.tunnel_sessions import TunnelUnreachable
from fairlead_tunnel.http_dialler import HttpDialler
from relay_gateway.http_api import GatewayApp, serve_http
from tests.contract.tunnel.line_world import Gateway, Mesh, world
from tests.contract.tunnel.test_lines import CONTENT, echoed, listening
from tests.fakes.buffering_hop import Fate, buffering_hop

pytestmark = pytest.mark.asyncio
SECONDS = 60


@asynccontextmanager
async def behind_http() -> AsyncIterator[tuple[Gateway, str]]:
    """A gateway that is reached by its HTTP port alone, and that port's address."""
    gateway = Gateway()
    await gateway.start()
    await gateway.stop()  # its TCP port
    app = GatewayApp(why_not_ready=lambda: "", desk=gateway.desk)
    async with serve_http(app, bind="127.0.0.1:0") as port:
        url = f"http://127.0.0.1:{port}"
        gateway.urls = (f"tcp://127.0.0.1:{gateway.port}", url)
        yield gateway, url


async def test_a_line_goes_over_a_websocket_where_the_tcp_port_cannot_be_reached() -> None:
    async with (
        asyncio.timeout(SECONDS),
        behind_http() as (gateway, _),
        world(gateway=gateway) as it,
    ):
        assert await echoed(await listening(it), CONTENT) == CONTENT


async def test_a_line_goes_over_polls_where_a_hop_lets_no_websocket_through() -> None:
    def refuse_sockets(number: int, body: bytes) -> Fate | tuple[int, bytes]:
        return Fate.PASSES if body else (426, b"no")

    async with (
        asyncio.timeout(SECONDS),
        behind_http() as (gateway, url),
        buffering_hop(url, refuse_sockets) as hop,
    ):
        gateway.urls = (gateway.urls[0], hop.url)
        async with world(gateway=gateway) as it:
            assert await echoed(await listening(it), CONTENT) == CONTENT
            assert hop.up_bytes > len(CONTENT)


async def test_what_answers_and_is_no_gateway_cannot_be_reached() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 -\r\ncontent-length: 2\r\n\r\nno")
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    gateway = Gateway()
    await gateway.start()
    gateway.urls = (f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}",)
    dialler = HttpDialler(seconds=0.5)
    try:
        async with asyncio.timeout(SECONDS):
            with pytest.raises(TunnelUnreachable):
                async with open_line(
                    Mesh(gateway), "lch_a", attach_seconds=0, diallers={"http": dialler}
                ):
                    raise AssertionError
    finally:
        server.close()
        await gateway.stop()
