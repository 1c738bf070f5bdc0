"""A client and a gateway with a tunnel over TCP on loopback, and real connections at both ends."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fairlead_tunnel.carriers import ClientCarrier, GatewayCarrier, TunnelDesk, TunnelTicket
from fairlead_tunnel.channel_port import ChannelPort
from fairlead_tunnel.driver_sides import CarrierDriver
from fairlead_tunnel.record_stream import RecordStream
from fairlead_tunnel.records import Suite
from fairlead_tunnel.ticket import Grant, TicketKey
from fairlead_tunnel.tunnel import CHANNEL_WINDOW, Side, Tunnel
from fairlead_tunnel.tunnel_driver import TunnelDriver
from tests.eventually import eventually

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
SECRET = bytes(range(32))


@dataclass
class GatewayEnd:
    """Dials what a client wants on loopback; `TunnelDriver`'s user at the gateway."""

    tunnel: Tunnel = field(init=False)
    driver: TunnelDriver = field(init=False)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    wants: list[str] = field(default_factory=list)
    endings: list[tuple[int, str]] = field(default_factory=list)
    over_reason: str = ""

    def __post_init__(self) -> None:
        self.tunnel = Tunnel(side=Side.GATEWAY)
        self.driver = TunnelDriver(tunnel=self.tunnel, user=self)

    @property
    def left(self) -> int:
        """How many channels have not ended, or are not forgotten."""
        return self.driver.channels + self.tunnel.channels

    def wanted(self, channel: int, target: str) -> None:
        """Dial."""
        self.wants.append(target)
        task = asyncio.ensure_future(self._dial(channel, target))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _dial(self, channel: int, target: str) -> None:
        host, _, port = target.rpartition(":")
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(
                lambda: ChannelPort(channel, self.driver), host, int(port)
            )
        except OSError:
            self.driver.refuse(channel, "dial_refused", "Nothing listens there.")
            return
        if self.driver.connect(channel, connection):
            self.driver.accept(channel)
        else:
            connection.abort()

    def accepted(self, channel: int) -> None:
        """Only clients are told that."""
        raise AssertionError

    def ended(self, channel: int, reason: str, message: str) -> None:
        """Keep it."""
        self.endings.append((channel, reason))

    def over(self, reason: str, message: str) -> None:
        """Keep it."""
        self.over_reason = reason


@dataclass
class ClientEnd:
    """Leads local connections to `target`; `TunnelDriver`'s user at the client."""

    hold_seconds: float = 0.001
    tunnel: Tunnel = field(init=False)
    driver: TunnelDriver = field(init=False)
    accepts: list[int] = field(default_factory=list)
    endings: list[tuple[int, str]] = field(default_factory=list)
    over_reason: str = ""

    def __post_init__(self) -> None:
        self.tunnel = Tunnel(side=Side.CLIENT)
        self.driver = TunnelDriver(tunnel=self.tunnel, user=self)

    @property
    def left(self) -> int:
        """How many channels have not ended, or are not forgotten."""
        return self.driver.channels + self.tunnel.channels

    @property
    def written(self) -> int:
        """How many bytes the first channel has and the gateway has not acknowledged."""
        return CHANNEL_WINDOW - self.tunnel.writable(1)

    @property
    def came(self) -> int:
        """How many bytes the first channel has got; without bound when it has ended."""
        channel = self.tunnel._channels.get(1)
        return channel.inbound.highest if channel is not None else sys.maxsize

    async def listen(self, plug: socket.socket, target: str) -> asyncio.Server:
        """Lead the connections of a socket to a target."""
        loop = asyncio.get_running_loop()
        return await loop.create_server(lambda: self.port_for(target), sock=plug)

    def port_for(self, target: str) -> ChannelPort:
        """Open a channel for a connection that was made here."""
        channel = self.driver.open(target, hold_seconds=self.hold_seconds)
        port = ChannelPort(channel, self.driver)
        assert self.driver.connect(channel, port)
        return port

    def wanted(self, channel: int, target: str) -> None:
        """Only gateways are told that."""
        raise AssertionError

    def accepted(self, channel: int) -> None:
        """Keep it."""
        self.accepts.append(channel)

    def ended(self, channel: int, reason: str, message: str) -> None:
        """Keep it."""
        self.endings.append((channel, reason))

    def over(self, reason: str, message: str) -> None:
        """Keep it."""
        self.over_reason = reason


class AnyEnd(Protocol):
    """One end, whatever it runs on."""

    endings: list[tuple[int, str]]
    over_reason: str

    @property
    def driver(self) -> CarrierDriver: ...

    @property
    def left(self) -> int: ...


class AnyGateway(AnyEnd, Protocol):
    """A `GatewayEnd`, or a `PumpedGatewayEnd`."""

    wants: list[str]


class AnyClient(AnyEnd, Protocol):
    """A `ClientEnd`, or a `PumpedClientEnd`."""

    accepts: list[int]
    hold_seconds: float

    @property
    def written(self) -> int: ...

    @property
    def came(self) -> int: ...

    async def listen(self, plug: socket.socket, target: str) -> asyncio.Server | None: ...


class Hop:
    """Forwards connections to the gateway; a test may stop either direction, or drop an end."""

    def __init__(self, gateway: tuple[str, int]) -> None:
        self.address = gateway
        self.answered = bytearray()
        """What the gateway sent, of all connections."""
        self.said = bytearray()
        """What the client sent, of all connections."""
        self.to_gateway = asyncio.Event()
        self.to_client = asyncio.Event()
        self.to_gateway.set()
        self.to_client.set()
        self.tells_ends = True
        self._gateway = gateway
        self._writers: list[asyncio.StreamWriter] = []

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection."""
        there, back = await asyncio.open_connection(*self._gateway)
        self._writers += [writer, back]
        async with asyncio.TaskGroup() as group:
            group.create_task(self._forward(reader, back, self.to_gateway, self.said))
            group.create_task(self._forward(there, writer, self.to_client, self.answered))
        if self.tells_ends:
            writer.close()
            back.close()

    async def _forward(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        may: asyncio.Event,
        said: bytearray,
    ) -> None:
        held: asyncio.Queue[bytes] = asyncio.Queue(4)

        async def hear() -> None:
            with contextlib.suppress(OSError):
                while content := await reader.read(65536):
                    said.extend(content)
                    await held.put(content)
            await held.put(b"")

        async def pass_on() -> None:
            while content := await held.get():
                with contextlib.suppress(OSError):
                    await may.wait()
                    if not writer.is_closing():  # uvloop's would raise
                        writer.write(content)
                    await writer.drain()

        async with asyncio.TaskGroup() as group:
            group.create_task(hear())
            group.create_task(pass_on())
        if self.tells_ends:
            with contextlib.suppress(OSError, RuntimeError):  # it has ended both directions
                writer.write_eof()

    def cut(self) -> None:
        """Drop all connections, at both ends."""
        self.to_gateway.set()
        self.to_client.set()
        for each in self._writers:
            each.transport.abort()


@dataclass
class World:
    """Both ends; `address` is the gateway's, `ticket` the client's, `met` who came."""

    client: AnyClient
    desk: TunnelDesk
    gateways: list[AnyGateway]
    address: tuple[str, int]
    ticket: TunnelTicket
    carriers: list[ClientCarrier] = field(default_factory=list)
    servers: list[asyncio.Server] = field(default_factory=list)
    hops: list[Hop] = field(default_factory=list)
    met: list[GatewayCarrier] = field(default_factory=list)

    async def attach(self, hop: Hop | None = None) -> ClientCarrier:
        """Attach one more carrier, past a hop if there is one, and wait for its answer."""
        carrier = await self.greet(hop)
        self.ticket.keep(await carrier.ready)
        return carrier

    async def greet(self, hop: Hop | None = None) -> ClientCarrier:
        """Send the hello of one more carrier."""
        number, handshake = self.ticket.handshake()
        carrier = ClientCarrier(driver=self.client.driver, number=number, handshake=handshake)
        loop = asyncio.get_running_loop()
        address = hop.address if hop is not None else self.address
        await loop.create_connection(lambda: carrier.stream, *address)
        self.carriers.append(carrier)
        carrier.begin()
        return carrier

    async def hop(self, address: tuple[str, int] | None = None) -> Hop:
        """Start a hop before the gateway, or before another address of it."""
        hop = Hop(address or self.address)
        server = await asyncio.start_server(hop.talk, "127.0.0.1", 0)
        self.servers.append(server)
        hop.address = server.sockets[0].getsockname()[:2]
        self.hops.append(hop)
        return hop

    async def settled(self) -> None:
        """Wait until no channel is left on either side."""

        async def left() -> int:
            return sum(each.left for each in (self.client, *self.gateways))

        await eventually(left, lambda count: count == 0)

    async def serve(self, talk: Talk, *, takes_little: bool = False) -> int:
        """Serve on loopback, maybe with a small buffer of the kernel; returns the port."""
        plug = socket.create_server(("127.0.0.1", 0))
        if takes_little:
            plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        server = await asyncio.start_server(talk, sock=plug)
        self.servers.append(server)
        port: int = server.sockets[0].getsockname()[1]
        return port

    async def listen(self, target: str) -> int:
        """Lead a local port to a target; returns it."""
        plug = socket.create_server(("127.0.0.1", 0))
        port: int = plug.getsockname()[1]
        server = await self.client.listen(plug, target)
        if server is not None:
            self.servers.append(server)
        return port

    async def ends(self, reason: str, *, by_gateway: bool = False) -> None:
        """Wait until the client has been told why the tunnel is over, and the gateway if asked."""
        ends = (self.client, self.gateways[0]) if by_gateway else (self.client,)

        async def found() -> set[str]:
            return {each.over_reason for each in ends}

        await eventually(found, lambda reasons: reasons == {reason})

    async def fates(self) -> list[str]:
        """Return why the first gateway's channels ended, of those that did not as they should."""
        return [reason for _, reason in self.gateways[0].endings if reason]

    async def reasons(self) -> list[str]:
        """Return why the client's channels ended, of those that did not as they should."""
        return [reason for _, reason in self.client.endings if reason]


def make_ticket(key: TicketKey, private: X25519PrivateKey) -> TunnelTicket:
    """Return a ticket as signalling would hand it out."""
    tunnel_id, psk = secrets.token_bytes(16), secrets.token_bytes(32)
    grant = Grant(tunnel_id.hex(), "default", "ses_a", "lau_a", psk, time.time() + 600)
    return TunnelTicket(
        tunnel_id=tunnel_id,
        ticket=key.seal(grant, random=secrets.token_bytes),
        psk=psk,
        gateway_key=private.public_key().public_bytes_raw(),
        suite=Suite.AES_256_GCM,
    )


@asynccontextmanager
async def world(
    make_client: Callable[[], AnyClient] = ClientEnd,
    make_gateway: Callable[[], AnyGateway] = GatewayEnd,
) -> AsyncIterator[World]:
    """A gateway that listens and a client that has a ticket; both end with the block."""
    private = X25519PrivateKey.generate()
    key = TicketKey(secret=SECRET, gateway_id="gtw_a")
    gateways: list[AnyGateway] = []

    def begin(grant: Grant) -> CarrierDriver:
        gateways.append(make_gateway())
        return gateways[-1].driver

    desk = TunnelDesk(
        tickets=key, private_key=private.private_bytes_raw(), begin=begin, unix_time=time.time
    )
    loop = asyncio.get_running_loop()
    met: list[GatewayCarrier] = []
    faults: list[dict[str, object]] = []
    loop.set_exception_handler(lambda _, context: faults.append(context))

    def meet() -> RecordStream:
        met.append(GatewayCarrier(desk))
        return met[-1].stream

    server = await loop.create_server(meet, "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    it = World(make_client(), desk, gateways, address[:2], make_ticket(key, private))
    it.met = met
    it.servers.append(server)
    try:
        yield it
    finally:
        it.client.driver.close("closed", "The test has ended.")
        for gateway in gateways:
            gateway.driver.close("closed", "The test has ended.")
        for hop in it.hops:
            hop.cut()
        for each in it.servers:
            each.close()
            await each.wait_closed()

        async def left() -> int:
            streams = [one.stream for one in it.carriers] + [one.stream for one in met]
            return sum(stream.is_connected for stream in streams)

        await eventually(left, lambda count: count == 0)
        assert faults == []
