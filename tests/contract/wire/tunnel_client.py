"""A client of tunnels at a real gateway, with tickets as signalling would make them."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

from fairlead.gateway.v1 import gateway_pb2 as pb
from fairlead_tunnel.carriers import ClientCarrier, TunnelTicket
from fairlead_tunnel.records import Suite
from fairlead_tunnel.ticket import Grant, TicketKey
from tests.contract.tunnel.talks import whole
from tests.contract.tunnel.tunnel_world import ClientEnd
from tests.contract.wire.gateway_mesh import Mesh


@dataclass
class TunnelClient:
    """One tunnel of the session `session_id`."""

    end: ClientEnd
    ticket: TunnelTicket
    address: tuple[str, int]
    session_id: str
    carriers: list[ClientCarrier] = field(default_factory=list)
    servers: list[asyncio.Server] = field(default_factory=list)

    async def attach(self) -> ClientCarrier:
        """Attach one more carrier."""
        number, handshake = self.ticket.handshake()
        carrier = ClientCarrier(driver=self.end.driver, number=number, handshake=handshake)
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: carrier.stream, *self.address)
        self.carriers.append(carrier)
        carrier.begin()
        self.ticket.keep(await carrier.ready)
        return carrier

    async def listen(self, target: str) -> int:
        """Lead a local port to a target; returns it."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: self.end.port_for(target), "127.0.0.1", 0)
        self.servers.append(server)
        port: int = server.sockets[0].getsockname()[1]
        return port

    async def ask(self, target: str, content: bytes) -> bytes:
        """Send bytes and the end to a target, and return what comes back until its end."""
        return await whole(await self.listen(target), content)

    async def reason_of(self, target: str) -> str:
        """Ask a target that does not answer, and return why."""
        known = len(self.end.endings)
        port = await self.listen(target)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(b"hello")
            await reader.read()
        except ConnectionError:
            pass
        finally:
            writer.close()
        return self.end.endings[known][1]


def ticket_of(hello: pb.Hello, session_id: str, *, seconds: float = 600.0) -> TunnelTicket:
    """Return a ticket for a session at the gateway that said this hello."""
    key = TicketKey(secret=hello.tunnel.ticket_secret, gateway_id=hello.gateway_id)
    tunnel_id, psk = secrets.token_bytes(16), secrets.token_bytes(32)
    expires = time.time() + seconds
    grant = Grant(tunnel_id.hex(), "default", session_id, "lch_test", psk, expires)
    return TunnelTicket(
        tunnel_id=tunnel_id,
        ticket=key.seal(grant, random=secrets.token_bytes),
        psk=psk,
        gateway_key=hello.tunnel.public_key,
        suite=Suite.AES_256_GCM,
    )


def want_tunnel(mesh: Mesh, session_id: str) -> None:
    """Have signalling want a tunnel."""
    signalling = mesh.signalling
    wanted = pb.SessionWanted(session_id=session_id, is_tunnel=True, round=1)
    wanted.expires_at.FromDatetime(datetime.now(UTC) + signalling.expiry)
    signalling.say_wanted(wanted)


@asynccontextmanager
async def tunnel_client(mesh: Mesh, session_id: str = "ses_a") -> AsyncIterator[TunnelClient]:
    """A client with a ticket that has not been shown; its end is told at the end of the block."""
    hello = mesh.signalling.hellos[-1]
    address = ("127.0.0.1", mesh.gateway.tcp_port)
    client = TunnelClient(ClientEnd(), ticket_of(hello, session_id), address, session_id)
    try:
        yield client
    finally:
        client.end.driver.close("closed", "The client has ended.")
        for server in client.servers:
            server.close()
        for carrier in client.carriers:
            await carrier.gone
