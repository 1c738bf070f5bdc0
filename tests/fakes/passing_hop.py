"""A hop that passes on what comes as it comes, but for what a test has it refuse."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

_UPGRADE = b"upgrade: websocket"


@dataclass
class PassingHop:
    """A hop before one gateway; of each connection it looks at the first request's head."""

    gateway: str
    url: str = ""
    lets_websockets: bool = False
    lets_streams: bool = True
    heads: list[bytes] = field(default_factory=list)
    _writers: dict[asyncio.StreamWriter, bytes] = field(default_factory=dict)

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            writer.close()
            return
        self.heads.append(head)
        is_upgrade = _UPGRADE in head.lower()
        is_stream = b"/tunnel/v1/stream/" in head
        if (is_upgrade and not self.lets_websockets) or (is_stream and not self.lets_streams):
            writer.write(b"HTTP/1.1 405 -\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
            writer.close()
            return
        host, _, port = self.gateway.removeprefix("http://").rpartition(":")
        there, back = await asyncio.open_connection(host, int(port))
        back.write(head)
        self._writers |= {writer: head, back: head}
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_pass(reader, back))
                group.create_task(_pass(there, writer))
        finally:
            for each in (writer, back):
                del self._writers[each]
                each.close()

    def cut(self, part: bytes) -> int:
        """Drop the connections whose request has this part; returns how many those are."""
        found = [writer for writer, head in self._writers.items() if part in head.lower()]
        for writer in found:
            writer.transport.abort()
        return len(found) // 2


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while content := await reader.read(65536):
            writer.write(content)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def passing_hop(gateway: str) -> AsyncIterator[PassingHop]:
    """Serve a hop before a gateway while in the block."""
    hop = PassingHop(gateway)
    server = await asyncio.start_server(hop.talk, "127.0.0.1", 0)
    hop.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield hop
    finally:
        server.close()
        hop.cut(b"")
        await server.wait_closed()
