"""What servers at the end of a tunnel do, and what their clients do."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket
import struct

SIZE = 12 * 1024 * 1024
"""More than the window of a channel; the window of a tunnel is 64 MiB."""


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send everything back, and then the end."""
    with contextlib.suppress(ConnectionError):
        while content := await reader.read(65536):
            writer.write(content)
            await writer.drain()
    writer.close()


async def digest(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer with the SHA-256 of everything, after its end."""
    found = hashlib.sha256()
    while content := await reader.read(65536):
        found.update(content)
    writer.write(found.digest())
    writer.close()


async def whole(port: int, content: bytes) -> bytes:
    """Send bytes and the end through a local port, and return what comes back until its end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def send() -> None:
        writer.write(content)
        await writer.drain()
        writer.write_eof()

    sending = asyncio.ensure_future(send())
    try:
        return await reader.read()
    finally:
        sending.cancel()
        await asyncio.wait((sending,))
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def reset(writer: asyncio.StreamWriter) -> None:
    """Drop a connection in a way that its peer sees RST."""
    plug = writer.get_extra_info("socket")
    plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
