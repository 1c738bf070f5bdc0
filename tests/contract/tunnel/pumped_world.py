"""The two ends of a tunnel over TCP, each on an event loop or on the thread of the native pump."""

from __future__ import annotations

import asyncio
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fairlead_tunnel.carriers import ClientCarrier, GatewayCarrier, TunnelDesk
from fairlead_tunnel.pumped_driver import PumpedDriver
from fairlead_tunnel.record_stream import RecordStream
from fairlead_tunnel.ticket import Grant, TicketKey
from fairlead_tunnel.tunnel import Side
from fairlead_tunnel.tunnel_driver import TunnelDriver
from tests.contract.tunnel.tunnel_world import ClientEnd, GatewayEnd, Talk, make_ticket
from tests.eventually import eventually

if TYPE_CHECKING:
    from fairlead_native import Pump


def as_driver(driver: TunnelDriver | PumpedDriver) -> TunnelDriver:
    """Return it as what carriers take: a pumped one does for those of TCP, and no others."""
    return cast(TunnelDriver, driver)


class _PumpedEnd:
    """What both ends on a pump keep."""

    def __init__(self, pump: Pump, side: Side) -> None:
        self.accepts: list[int] = []
        self.endings: list[tuple[int, str]] = []
        self.wants: list[str] = []
        self.given: list[tuple[int, bytes, str]] = []
        self.connections: list[socket.socket] = []
        self.over_reason = ""
        self.driver = PumpedDriver(pump=pump, side=side, user=self)

    def wanted(self, channel: int, target: str) -> None:
        """Dial."""
        self.wants.append(target)
        host, _, port = target.rpartition(":")
        self.driver.dial(channel, host, int(port))

    def dial_failed(self, channel: int, error: int) -> None:
        """Refuse."""
        self.driver.refuse(channel, "dial_refused", "Nothing listens there.")

    def given_back(
        self, channel: int, connection: socket.socket, early: bytes, reason: str, message: str
    ) -> None:
        """Keep it."""
        self.given.append((channel, early, reason))
        self.connections.append(connection)

    def accepted(self, channel: int) -> None:
        """Keep it."""
        self.accepts.append(channel)

    def ended(self, channel: int, reason: str, message: str) -> None:
        """Keep it."""
        self.endings.append((channel, reason))

    def over(self, reason: str, message: str) -> None:
        """Keep it."""
        self.over_reason = reason


class PumpedGatewayEnd(_PumpedEnd):
    """Dials what a client wants on loopback."""

    def __init__(self, pump: Pump) -> None:
        super().__init__(pump, Side.GATEWAY)


class PumpedClientEnd(_PumpedEnd):
    """Leads local connections to targets."""

    def __init__(self, pump: Pump) -> None:
        super().__init__(pump, Side.CLIENT)


@dataclass
class PumpedWorld:
    """Both ends; `carriers` are the client's, `met` those that the gateway met."""

    client: ClientEnd | PumpedClientEnd
    gateways: list[GatewayEnd | PumpedGatewayEnd]
    desk: TunnelDesk
    address: tuple[str, int]
    key: TicketKey
    private: X25519PrivateKey
    servers: list[asyncio.Server] = field(default_factory=list)
    carriers: list[ClientCarrier] = field(default_factory=list)
    met: list[GatewayCarrier] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ticket = make_ticket(self.key, self.private)

    async def attach(self) -> ClientCarrier:
        """Attach one more carrier and wait for its answer."""
        carrier = await self.greet()
        self.ticket.keep(await carrier.ready)
        return carrier

    async def greet(self) -> ClientCarrier:
        """Send the hello of one more carrier."""
        number, handshake = self.ticket.handshake()
        driver = as_driver(self.client.driver)
        carrier = ClientCarrier(driver=driver, number=number, handshake=handshake)
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: carrier.stream, *self.address)
        self.carriers.append(carrier)
        carrier.begin()
        return carrier

    async def serve(self, talk: Talk) -> str:
        """Serve on loopback; returns the target."""
        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        self.servers.append(server)
        return f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def listen(self, target: str) -> int:
        """Lead a local port to a target; returns it."""
        plug = socket.create_server(("127.0.0.1", 0))
        port: int = plug.getsockname()[1]
        client = self.client
        if isinstance(client, PumpedClientEnd):
            client.driver.listen(plug, target)
        else:
            loop = asyncio.get_running_loop()
            server = await loop.create_server(lambda: client.port_for(target), sock=plug)
            self.servers.append(server)
        return port

    async def settled(self) -> None:
        """Wait until no channel is left on either side."""

        async def left() -> int:
            ends = [self.client, *self.gateways]
            return sum(each.driver.channels for each in ends)

        await eventually(left, lambda count: count == 0)

    async def reasons(self) -> list[str]:
        """Return why the client's channels ended, of those that did not as they should."""
        return [reason for _, reason in self.client.endings if reason]


@asynccontextmanager
async def pumped_world(
    make_client: Callable[[], ClientEnd | PumpedClientEnd],
    make_gateway: Callable[[], GatewayEnd | PumpedGatewayEnd],
) -> AsyncIterator[PumpedWorld]:
    """A gateway that listens and a client that has a ticket; both end with the block."""
    private = X25519PrivateKey.generate()
    key = TicketKey(secret=secrets.token_bytes(32), gateway_id="gtw_a")
    gateways: list[GatewayEnd | PumpedGatewayEnd] = []
    met: list[GatewayCarrier] = []
    loop = asyncio.get_running_loop()
    faults: list[dict[str, object]] = []
    loop.set_exception_handler(lambda _, context: faults.append(context))

    def begin(grant: Grant) -> TunnelDriver:
        gateways.append(make_gateway())
        return as_driver(gateways[-1].driver)

    desk = TunnelDesk(
        tickets=key,
        private_key=private.private_bytes_raw(),
        begin=begin,
        unix_time=time.time,
    )

    def meet() -> RecordStream:
        met.append(GatewayCarrier(desk))
        return met[-1].stream

    server = await loop.create_server(meet, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()[:2]
    it = PumpedWorld(make_client(), gateways, desk, address, key, private, [server])
    it.met = met
    try:
        yield it
    finally:
        it.client.driver.close("closed", "The test has ended.")
        for gateway in gateways:
            gateway.driver.close("closed", "The test has ended.")
        for each in it.servers:
            each.close()
            await each.wait_closed()

        async def left() -> int:
            streams = [one.stream for one in it.carriers] + [one.stream for one in met]
            return sum(stream.is_connected for stream in streams)

        await eventually(left, lambda count: count == 0)
        assert faults == []
