"""A mesh that opens tunnels, a gateway that can be cut, stopped and started anew, and ports that
lead into it: everything but the front door is real, on loopback.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import socket
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fairlead_sdk.errors import FairleadError
from fairlead_sdk.session_records import (
    OpenedSession,
    SessionClosed,
    SessionEvent,
    SessionRecord,
    SessionTunnel,
    Subscribed,
)
from fairlead_sdk.tunnel_drivers import pump_choice
from fairlead_sdk.tunnel_line import TunnelLine, open_line
from fairlead_sdk.tunnel_ports import TunnelPorts
from fairlead_tunnel.carriers import GatewayCarrier, TunnelDesk
from fairlead_tunnel.channel_port import ChannelPort
from fairlead_tunnel.channel_way import Meet
from fairlead_tunnel.hops import Hop
from fairlead_tunnel.record_stream import RecordStream
from fairlead_tunnel.targets import target_of
from fairlead_tunnel.ticket import Grant, TicketKey
from fairlead_tunnel.tunnel import Side, Tunnel
from fairlead_tunnel.tunnel_driver import TunnelDriver
from tests.eventually import eventually

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
HOSTS = {"exit.test": "127.0.0.1", "six.test": "127.0.0.1", "10.9.8.7": "127.0.0.1"}
HOSTS["[2001:db8::7]"] = "127.0.0.1"


@dataclass
class Exit:
    """The gateway's end of one tunnel: knows the names in HOSTS, which this machine does not."""

    driver: TunnelDriver = field(init=False)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    wants: list[str] = field(default_factory=list)
    endings: list[str] = field(default_factory=list)
    over_reason: str = ""
    is_draining: bool = False
    dials: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.driver = TunnelDriver(tunnel=Tunnel(side=Side.GATEWAY), user=self)
        self.dials.set()

    def wanted(self, channel: int, target: str) -> None:
        """Dial."""
        self.wants.append(target)
        if self.is_draining:
            self.driver.refuse(channel, "gateway_draining", "The gateway takes nothing new.")
            return
        task = asyncio.ensure_future(self._dial(channel, target))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _dial(self, channel: int, label: str) -> None:
        await self.dials.wait()
        target = target_of(label)
        assert target is not None
        host = HOSTS.get(target.host) if target.host else "127.0.0.1"
        if target.host == "denied.test":
            self.driver.refuse(channel, "target_denied", "The gateway does not dial this.")
            return
        if host is None:
            self.driver.refuse(channel, "host_unknown", "The gateway finds no address.")
            return
        loop = asyncio.get_running_loop()
        try:
            _, port = await loop.create_connection(
                lambda: ChannelPort(channel, self.driver), host, target.port
            )
        except OSError:
            self.driver.refuse(channel, "dial_refused", "Nothing listens there.")
            return
        if self.driver.connect(channel, port):
            self.driver.accept(channel)
        else:
            port.abort()

    def accepted(self, channel: int) -> None:
        """Only clients are told that."""
        raise AssertionError

    def ended(self, channel: int, reason: str, message: str) -> None:
        """Keep it."""
        self.endings.append(reason)

    def over(self, reason: str, message: str) -> None:
        """Keep it."""
        self.over_reason = reason


class Gateway:
    """Listens on one port for as long as the test lasts; `start` makes keys and tunnels anew."""

    def __init__(self) -> None:
        # Bound for as long as the gateway is there, also while nobody listens: nobody else gets it.
        kept = socket.socket()
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        kept.bind(("127.0.0.1", 0))
        self.port = int(kept.getsockname()[1])
        weakref.finalize(self, os.close, kept.detach())
        self.urls: tuple[str, ...] = ()
        self.exits: list[Exit] = []
        self._met: list[GatewayCarrier] = []
        self._server: asyncio.Server | None = None
        self._private = X25519PrivateKey.generate()
        self._key = TicketKey(secret=secrets.token_bytes(32), gateway_id="gtw_a")

    async def start(self) -> None:
        """Begin with no tunnels, and with keys that nobody has seen."""
        self._private = X25519PrivateKey.generate()
        self._key = TicketKey(secret=secrets.token_bytes(32), gateway_id="gtw_a")
        self._desk = TunnelDesk(
            tickets=self._key,
            private_key=self._private.private_bytes_raw(),
            begin=self._begin,
            unix_time=time.time,
        )
        await self.listen()

    async def listen(self) -> None:
        """Take carriers."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._meet, "127.0.0.1", self.port, reuse_port=True)

    @property
    def desk(self) -> TunnelDesk:
        """Where carriers of any kind are met."""
        return self._desk

    async def stop(self) -> None:
        """Take no carriers any more, and cut those that are there."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.cut()

        async def left() -> int:
            return sum(each.stream._transport is not None for each in self._met)

        await eventually(left, lambda count: count == 0)
        self._met.clear()

    def cut(self) -> None:
        """Cut the carriers that are there."""
        for each in self._met:
            if each.stream._transport is not None:
                each.stream._transport.abort()

    def tunnel(self, urls: tuple[str, ...]) -> SessionTunnel:
        """Return what signalling would give for a tunnel to this gateway."""
        tunnel_id, psk = secrets.token_hex(16), secrets.token_bytes(32)
        grant = Grant(tunnel_id, "default", "ses_a", "lch_a", psk, time.time() + 60)
        return SessionTunnel(
            tunnel_id=tunnel_id,
            ticket=self._key.seal(grant, random=secrets.token_bytes),
            secret=psk,
            gateway_key=self._private.public_key().public_bytes_raw(),
            urls=urls,
        )

    def _begin(self, grant: Grant) -> TunnelDriver:
        self.exits.append(Exit())
        return self.exits[-1].driver

    def _meet(self) -> RecordStream:
        self._met.append(GatewayCarrier(self._desk))
        return self._met[-1].stream


@dataclass
class Mesh:
    """A `TunnelApi`; `refusals` are raised one after the other before anything is opened."""

    gateway: Gateway
    opened: list[str] = field(default_factory=list)
    closed: dict[str, SessionClosed] = field(default_factory=dict)
    refusals: list[FairleadError] = field(default_factory=list)

    async def open_session(
        self, launch_id: str, *, mode: str, ice_policy: str, key: str
    ) -> OpenedSession:
        """Give a ticket of the gateway."""
        if self.refusals:
            raise self.refusals.pop(0)
        self.opened.append(f"ses_{len(self.opened)}")
        urls = (f"quic://127.0.0.1:{self.gateway.port}", f"tcp://127.0.0.1:{self.gateway.port}")
        tunnel = self.gateway.tunnel(self.gateway.urls or urls)
        return OpenedSession(SessionRecord(session_id=self.opened[-1], mode=mode), tunnel=tunnel)

    @asynccontextmanager
    async def watch_session(
        self, session_id: str, cursor: int
    ) -> AsyncIterator[AsyncIterator[SessionEvent]]:
        """Tell of a session: that it is there, and that it is closed, if it is."""
        yield self._events(session_id)

    async def _events(self, session_id: str) -> AsyncIterator[SessionEvent]:
        closed = self.closed.get(session_id)
        state = "connected" if closed is None else "closed"
        yield SessionEvent(0, Subscribed(SessionRecord(session_id=session_id, state=state)))
        if closed is not None:
            yield SessionEvent(1, closed)

    async def close_session(self, session_id: str) -> None:
        """Note it."""
        self.closed.setdefault(session_id, SessionClosed("requested", user_initiated=True))


@dataclass
class World:
    """What a test has; `said` are the line's sentences, `refusals` reasons of its channels."""

    gateway: Gateway
    mesh: Mesh
    line: TunnelLine
    ports: TunnelPorts
    said: list[str]
    refusals: list[str]
    servers: list[asyncio.Server] = field(default_factory=list)

    @property
    def exit(self) -> Exit:
        """The gateway's end of the newest tunnel."""
        return self.gateway.exits[-1]

    async def serve(self, talk: Talk) -> int:
        """Serve on loopback; returns the port."""
        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        self.servers.append(server)
        port: int = server.sockets[0].getsockname()[1]
        return port


@asynccontextmanager
async def world(
    *,
    most: int = 1024,
    gateway: Gateway | None = None,
    uniform: Callable[[float, float], float] = random.uniform,
    via: Sequence[Hop] = (),
    away_seconds: float = 60.0,
    meet: Meet | None = None,
) -> AsyncIterator[World]:
    """A gateway with one tunnel, and ports to listen with; all ends with the block.

    The client's tunnels run on what FAIRLEAD_TUNNEL_PUMP says.
    A gateway that is given has been started.
    """
    if gateway is None:
        gateway = Gateway()
        await gateway.start()
    mesh = Mesh(gateway)
    said: list[str] = []
    refusals: list[str] = []
    servers: list[asyncio.Server] = []
    try:
        pump = pump_choice(os.environ)
        async with open_line(
            mesh,
            "lch_a",
            say=said.append,
            uniform=uniform,
            via=via,
            pump=pump,
            most=most,
            away_seconds=away_seconds,
            meet=meet,
        ) as line:
            ports = TunnelPorts(
                line=line, on_refusal=lambda reason, message: refusals.append(reason), most=most
            )
            try:
                yield World(gateway, mesh, line, ports, said, refusals, servers)
            finally:
                await ports.close()
    finally:
        for each in gateway.exits:
            each.driver.close("closed", "The test has ended.")
        await gateway.stop()
        for server in servers:
            server.close()
            await server.wait_closed()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send back what comes, and the end."""
    while content := await reader.read(65536):
        writer.write(content)
        await writer.drain()
    writer.close()
