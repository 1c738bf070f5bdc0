"""Attaches carriers of `http://` and `https://`: a WebSocket, two requests, or polls."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from fairlead_tunnel.carriers import TunnelTicket
from fairlead_tunnel.driver_sides import CarrierDriver
from fairlead_tunnel.endpoints import Endpoint, EndpointPool
from fairlead_tunnel.handshake import AttachRefused, HandshakeInvalid
from fairlead_tunnel.http_posts import HttpPosts
from fairlead_tunnel.poll_carrier import PollCarrier
from fairlead_tunnel.stream_pipe import StreamCarrier, connect_stream
from fairlead_tunnel.tunnel_client import AttachedCarrier
from fairlead_tunnel.websocket_pipe import SocketRefused, connect_websocket

CONNECT_SECONDS: Final = 5.0
"""For the name, the connection and the handshake together, of each of them."""
_PASSING_SECONDS: Final = 1.0
"""For both bodies to be passed on: a hop that holds one back does so for ever."""


class HttpDialler:
    """Dials; `seconds` bounds each attempt of a WebSocket and of the first poll."""

    def __init__(self, *, seconds: float = CONNECT_SECONDS) -> None:
        self._seconds = seconds
        self._polling: set[asyncio.Task[None]] = set()

    async def attach(
        self, url: str, *, ticket: TunnelTicket, driver: CarrierDriver
    ) -> AttachedCarrier:
        """Attach one; see `CarrierDialler.attach`."""
        try:
            return await self._socket(url, ticket, driver)
        except (SocketRefused, TimeoutError):
            if driver.is_over:
                raise
        try:
            return await self._stream(url, ticket, driver)
        except (ConnectionError, TimeoutError):
            if driver.is_over:
                raise
        return await self._polls(url, ticket, driver)

    async def _stream(
        self, url: str, ticket: TunnelTicket, driver: CarrierDriver
    ) -> AttachedCarrier:
        async with asyncio.timeout(min(_PASSING_SECONDS, self._seconds)):
            pipe = await connect_stream(url)
        number, handshake = ticket.handshake()
        carrier = StreamCarrier(driver=driver, number=number, handshake=handshake, pipe=pipe)
        carrier.begin()
        try:
            async with asyncio.timeout(self._seconds):
                ticket.keep(await carrier.ready)
        except BaseException:
            pipe.abort()
            raise
        return carrier

    async def _socket(
        self, url: str, ticket: TunnelTicket, driver: CarrierDriver
    ) -> AttachedCarrier:
        number, handshake = ticket.handshake()
        async with asyncio.timeout(self._seconds):
            carrier = await connect_websocket(
                url, driver=driver, number=number, handshake=handshake
            )
            try:
                ticket.keep(await carrier.ready)
            except BaseException:
                carrier.stream.abort()
                raise
        return carrier

    async def _polls(self, url: str, ticket: TunnelTicket, driver: CarrierDriver) -> PollCarrier:
        posts = HttpPosts()
        pool = EndpointPool((Endpoint(url),), now=asyncio.get_running_loop().time())
        carrier = PollCarrier(driver=driver, ticket=ticket, pool=pool, posts=posts)
        polling = asyncio.ensure_future(_polled(carrier, posts))
        self._polling.add(polling)
        polling.add_done_callback(self._polling.discard)
        try:
            async with asyncio.timeout(self._seconds):
                ticket.keep(await asyncio.shield(carrier.ready))
        except BaseException:
            polling.cancel()
            raise
        return carrier


async def _polled(carrier: PollCarrier, posts: HttpPosts) -> None:
    """Poll to the end; why it came is told by `ready` and by the tunnel."""
    try:
        with contextlib.suppress(AttachRefused, HandshakeInvalid, OSError):
            await carrier.run()
    finally:
        posts.close()
