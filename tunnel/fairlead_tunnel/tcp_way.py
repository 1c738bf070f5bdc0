"""The way to `tcp://host:port`: one TCP connection with sealed records."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from fairlead_tunnel.carriers import ClientCarrier, TunnelTicket
from fairlead_tunnel.driver_sides import CarrierDriver
from fairlead_tunnel.endpoints import Health
from fairlead_tunnel.ways import CONNECT_SECONDS, Kind, greeted, raise_if_left_alone


class TcpWay:
    """Connects; `seconds` bounds the connection, and then the handshake."""

    kind = Kind.TCP

    def __init__(self, url: str, *, health: Health, seconds: float = CONNECT_SECONDS) -> None:
        self.name = url
        self._health = health
        self._seconds = seconds

    async def reach(self) -> ReachedTcp:
        """Connect; see `Way.reach`."""
        raise_if_left_alone(self._health)
        parts = urlsplit(self.name)
        try:
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise OSError(f"{self.name} names no port") from error
        if not host or not port:
            raise OSError(f"{self.name} names no host and port")
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._seconds):
            transport, _ = await loop.create_connection(asyncio.Protocol, host, port)
        return ReachedTcp(transport, self._health, self._seconds)


class ReachedTcp:
    """A connection over which nothing was said: the gateway does not speak first."""

    def __init__(self, transport: asyncio.Transport, health: Health, seconds: float) -> None:
        self._transport = transport
        self._health = health
        self._seconds = seconds

    async def attach(self, *, ticket: TunnelTicket, driver: CarrierDriver) -> ClientCarrier:
        """Attach a carrier; see `Reached.attach`."""
        if self._transport.is_closing():
            raise ConnectionResetError("the gateway ended the connection")
        number, handshake = ticket.handshake()
        carrier = ClientCarrier(driver=driver, number=number, handshake=handshake)
        self._transport.set_protocol(carrier.stream)
        carrier.stream.connection_made(self._transport)
        carrier.begin()
        return await greeted(carrier, ticket, health=self._health, seconds=self._seconds)

    def drop(self) -> None:
        """Close the connection."""
        self._transport.abort()
