"""A hop that takes messages of WebSockets apart, pings both sides, and says what a test wants."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import defaultdict
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Ping, Pong
from wsproto.utilities import LocalProtocolError

from fairlead_tunnel.message_carrier import MessageCarrier
from tests.contract.tunnel.talks import echo, whole
from tests.contract.tunnel.tunnel_world import World

_PARTS = 3
_SIZE = 8 * 1024 * 1024


@dataclass
class Side:
    """One side of a connection that the hop passes on."""

    name: str
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    protocol: Connection
    parts: list[bytes] = field(default_factory=list)


class SocketHop:
    """Forwards WebSockets, each message in three parts with a ping behind the first."""

    def __init__(self, url: str) -> None:
        self._gateway = (urlsplit(url).hostname, urlsplit(url).port)
        self.pongs: dict[str, int] = defaultdict(int)
        """How many pings each side has answered, `client` or `gateway`."""
        self.codes: dict[str, list[int]] = defaultdict(list)
        """With which codes each side has ended its connection."""
        self._sides: dict[str, Side] = {}

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection."""
        there, back = await asyncio.open_connection(*self._gateway)
        back.write(await reader.readuntil(b"\r\n\r\n"))
        writer.write(await there.readuntil(b"\r\n\r\n"))
        client = Side("client", reader, writer, Connection(ConnectionType.SERVER))
        gateway = Side("gateway", there, back, Connection(ConnectionType.CLIENT))
        self._sides = {"client": client, "gateway": gateway}
        async with asyncio.TaskGroup() as group:
            group.create_task(self._forward(client, gateway))
            group.create_task(self._forward(gateway, client))

    def inject(self, name: str, content: bytes) -> None:
        """Send bytes to one side, past what it knows of its connection."""
        self._sides[name].writer.write(content)

    async def _forward(self, near: Side, far: Side) -> None:
        with contextlib.suppress(OSError, LocalProtocolError):  # also behind an end
            while received := await near.reader.read(65536):
                near.protocol.receive_data(received)
                for event in near.protocol.events():
                    match event:
                        case BytesMessage():
                            near.parts.append(bytes(event.data))
                            if event.message_finished:
                                self._pass_on(b"".join(near.parts), far)
                                near.parts.clear()
                        case Ping():
                            near.writer.write(near.protocol.send(event.response()))
                        case Pong(payload=payload):
                            self.pongs[near.name] += bytes(payload) == b"hop"
                        case CloseConnection():
                            self.codes[near.name].append(int(event.code))
                await far.writer.drain()
        far.writer.close()

    def _pass_on(self, message: bytes, far: Side) -> None:
        size = len(message) // _PARTS
        for place in range(_PARTS):
            is_last = place == _PARTS - 1
            part = message[place * size :] if is_last else message[place * size :][:size]
            far.writer.write(far.protocol.send(BytesMessage(data=part, message_finished=is_last)))
            if not place:
                far.writer.write(far.protocol.send(Ping(payload=b"hop")))


async def passed(it: World, hop: SocketHop) -> str:
    """Serve a hop; returns its base address."""
    server = await asyncio.start_server(hop.talk, "127.0.0.1", 0)
    it.servers.append(server)
    return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def echoes(it: World, size: int = _SIZE) -> bool:
    """Say whether bytes come back as they were sent."""
    port = await it.listen(f"127.0.0.1:{await it.serve(echo)}")
    content = secrets.token_bytes(size)
    return await whole(port, content) == content


async def gone(carrier: MessageCarrier) -> None:
    """Wait until a carrier has ended."""
    await asyncio.wait((carrier.gone,))


def is_given_by(end: str, request: pytest.FixtureRequest) -> bool:
    """Say whether the pump has what an end has, `client` or `gateway`."""
    client, gateway = str(request.node.callspec.params["any_world"]).split("-")
    return (client if end == "client" else gateway) == "native"
