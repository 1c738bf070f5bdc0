"""A worker's port door in front of servers of this process, and the servers."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

Reader = asyncio.StreamReader
Writer = asyncio.StreamWriter

READY, UNKNOWN, REFUSED, GONE = range(4)


class PortDoorFake:
    """Takes one-time tokens; `statuses` scripts other answers than READY by port."""

    def __init__(self) -> None:
        self.address = ""
        self.statuses: dict[int, int] = {}
        self.open_connections = 0
        self.entered = 0
        self._tokens: dict[bytes, int] = {}

    def token(self, port: int) -> bytes:
        """Make a token for one connection to `port` of this machine's loopback."""
        token = secrets.token_bytes(32)
        self._tokens[token] = port
        return token

    async def serve_connection(self, reader: Reader, writer: Writer) -> None:
        """Be the door for one connection."""
        self.open_connections += 1
        self.entered += 1
        try:
            port = self._tokens.pop(await reader.readexactly(32), None)
            status = UNKNOWN if port is None else self.statuses.get(port, READY)
            inner = None
            if status == READY:
                try:
                    inner = await asyncio.open_connection("127.0.0.1", port)
                except OSError:
                    status = REFUSED
            writer.write(bytes([status]))
            if inner is not None:
                await _both_ways((reader, writer), inner)
        except (OSError, EOFError):
            pass
        finally:
            writer.transport.abort()
            self.open_connections -= 1


async def _both_ways(outer: tuple[Reader, Writer], inner: tuple[Reader, Writer]) -> None:
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_copy(outer[0], inner[1]))
            tasks.create_task(_copy(inner[0], outer[1]))
    except* OSError:
        pass
    finally:
        inner[1].transport.abort()


async def _copy(reader: Reader, writer: Writer) -> None:
    while content := await reader.read(65536):
        writer.write(content)
        await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof()
    writer.transport.set_write_buffer_limits(0)
    await writer.drain()


@asynccontextmanager
async def open_door(path: str | None = None) -> AsyncIterator[PortDoorFake]:
    """Serve a door on a Unix socket at `path`, or on a free loopback port."""
    door = PortDoorFake()
    if path is not None:
        server = await asyncio.start_unix_server(door.serve_connection, path)
        door.address = f"unix:{path}"
    else:
        server = await asyncio.start_server(door.serve_connection, "127.0.0.1", 0)
        door.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield door
    finally:
        server.close()


class Servers:
    """What runs in the sandbox: ports that echo, answer with a digest, and give `content`."""

    def __init__(self, *, content: bytes) -> None:
        self.content = content
        self.echo = 0
        self.digest = 0
        self.source = 0
        self.reset_seen = asyncio.Event()
        self.open_connections = 0

    async def serve_echo(self, reader: Reader, writer: Writer) -> None:
        """Send back what comes, until its end."""
        with self._counted(writer):
            while content := await reader.read(65536):
                writer.write(content)
                await writer.drain()
            writer.close()
            await writer.wait_closed()

    async def serve_digest(self, reader: Reader, writer: Writer) -> None:
        """Read to the end, then answer with the SHA-256 in hexadecimal."""
        with self._counted(writer):
            digest = hashlib.sha256()
            while content := await reader.read(65536):
                digest.update(content)
            writer.write(digest.hexdigest().encode())
            writer.close()
            await writer.wait_closed()

    async def serve_source(self, reader: Reader, writer: Writer) -> None:
        """Send the content and close."""
        with self._counted(writer):
            writer.write(self.content)
            await writer.drain()
            writer.write_eof()
            await reader.read()
            writer.close()
            await writer.wait_closed()

    @contextlib.contextmanager
    def _counted(self, writer: Writer) -> Iterator[None]:
        self.open_connections += 1
        try:
            yield
        except OSError:
            self.reset_seen.set()
        finally:
            writer.transport.abort()
            self.open_connections -= 1


@asynccontextmanager
async def open_servers(content: bytes = b"") -> AsyncIterator[Servers]:
    """Run the three servers on free loopback ports."""
    servers = Servers(content=content)
    running = []
    for name in ("echo", "digest", "source"):
        server = await asyncio.start_server(getattr(servers, f"serve_{name}"), "127.0.0.1", 0)
        setattr(servers, name, server.sockets[0].getsockname()[1])
        running.append(server)
    try:
        yield servers
    finally:
        for server in running:
            server.close()
