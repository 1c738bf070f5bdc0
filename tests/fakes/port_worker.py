"""A worker that brings connections to servers of this process, and the servers."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

from fairlead_tunnel.framed_port import FramedPort, accept

Reader = asyncio.StreamReader
Writer = asyncio.StreamWriter


class PortWorkerFake:
    """Dials gateways with connections to this machine's loopback; `silent` says that it will and
    does not.
    """

    def __init__(self) -> None:
        self.open_connections = 0
        self.entered = 0
        self.silent = False
        self._writers: list[Writer] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def bring(self, address: str, ticket: bytes, port: int) -> bool:
        """Connect to a port and bring that to a gateway; False when nothing listens."""
        if self.silent:
            return True
        try:
            inner = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return False
        outer = await dialled(address)
        outer[1].write(ticket)
        self._writers.append(outer[1])
        task = asyncio.create_task(self._carry(outer, inner))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    def die(self) -> None:
        """Lose all connections, as a process that is killed does."""
        for writer in self._writers:
            writer.transport.abort()

    async def close(self) -> None:
        """End all connections."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _carry(self, outer: tuple[Reader, Writer], inner: tuple[Reader, Writer]) -> None:
        self.open_connections += 1
        self.entered += 1
        port = FramedPort(reader=outer[0], writer=outer[1])
        try:
            await accept(port, *inner, if_cancelled=("sandbox_released", "Released."))
        finally:
            self.open_connections -= 1


async def dialled(address: str) -> tuple[Reader, Writer]:
    """Dial `unix:/path` or `host:port`."""
    if address.startswith("unix:"):
        return await asyncio.open_unix_connection(address.removeprefix("unix:"))
    host, _, port = address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


@asynccontextmanager
async def open_worker() -> AsyncIterator[PortWorkerFake]:
    """Give a worker, and end its connections."""
    worker = PortWorkerFake()
    try:
        yield worker
    finally:
        await worker.close()


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
