"""Attaches carriers of `tcp://host:port`: one TCP connection with sealed records."""

from __future__ import annotations

import asyncio
from typing import Final
from urllib.parse import urlsplit

from fairlead_tunnel.carriers import ClientCarrier, TunnelTicket
from fairlead_tunnel.driver_sides import CarrierDriver

CONNECT_SECONDS: Final = 5.0
"""For the name, the connection and the handshake together."""


class TcpDialler:
    """Dials; `seconds` bounds each attempt."""

    def __init__(self, *, seconds: float = CONNECT_SECONDS) -> None:
        self._seconds = seconds

    async def attach(
        self, url: str, *, ticket: TunnelTicket, driver: CarrierDriver
    ) -> ClientCarrier:
        """Attach one; see `CarrierDialler.attach`."""
        parts = urlsplit(url)
        try:
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise OSError(f"{url} names no port") from error
        if not host or not port:
            raise OSError(f"{url} names no host and port")
        number, handshake = ticket.handshake()
        carrier = ClientCarrier(driver=driver, number=number, handshake=handshake)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._seconds):
                await loop.create_connection(lambda: carrier.stream, host, port)
                carrier.begin()
                ticket.keep(await carrier.ready)
        except BaseException:
            carrier.stream.close()
            raise
        return carrier
