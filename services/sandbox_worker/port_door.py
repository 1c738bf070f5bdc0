"""The port door: a client sends a token, gets one status byte, and then has a connection into a
sandbox.

Status: 0 connected, 1 token unknown or too old, 2 nothing listens on the port, 3 the sandbox is
gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import IntEnum
from pathlib import Path

from chassis.errors import FairleadError
from sandbox_worker.port_tokens import TOKEN_BYTES, PortTokens
from sandbox_worker.sandboxes import Sandboxes

log = logging.getLogger(__name__)

_CHUNK = 256 * 1024


class DoorStatus(IntEnum):
    """The door's answer to a token."""

    CONNECTED = 0
    TOKEN_UNKNOWN = 1
    REFUSED = 2
    SANDBOX_GONE = 3


class PortDoor:
    """Carries bytes both ways, with half-close, as fast as the slower side takes them."""

    def __init__(
        self,
        *,
        tokens: PortTokens,
        sandboxes: Sandboxes,
        most_waiting: int = 256,
        most_connections: int = 4096,
        patience_seconds: float = 5.0,
    ) -> None:
        self._tokens = tokens
        self._sandboxes = sandboxes
        self._most_waiting = most_waiting
        self._most_connections = most_connections
        self._patience_seconds = patience_seconds
        self._waiting = 0
        self._tasks: set[asyncio.Task[object]] = set()

    @asynccontextmanager
    async def serve(self, bind: str) -> AsyncIterator[str]:
        """Listen on `unix:/path` (mode 0600) or `host:port` in the block; yields the address."""
        if bind.startswith("unix:"):
            listener = _unix_listener(Path(bind.removeprefix("unix:")))
            server = await asyncio.start_unix_server(
                self._on_connection, sock=listener, limit=_CHUNK
            )
            address = bind
        else:
            host, _, port = bind.rpartition(":")
            server = await asyncio.start_server(
                self._on_connection, host.strip("[]"), int(port), limit=_CHUNK
            )
            address = f"{host}:{server.sockets[0].getsockname()[1]}"
        try:
            yield address
        finally:
            server.close()
            for task in list(self._tasks):
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)
            await server.wait_closed()

    async def _on_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        if task is None or len(self._tasks) >= self._most_connections:
            writer.close()
            return
        self._tasks.add(task)
        try:
            await self._admit(reader, writer)
        except asyncio.CancelledError:
            # The release of the sandbox, or the end of the door: this task is its own top.
            pass
        except OSError:
            log.debug("door connection broke")
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._waiting >= self._most_waiting:
            return
        self._waiting += 1
        try:
            async with asyncio.timeout(self._patience_seconds):
                token = await reader.readexactly(TOKEN_BYTES)
        except (TimeoutError, asyncio.IncompleteReadError):
            return
        finally:
            self._waiting -= 1
        grant = self._tokens.redeem(token)
        if grant is None:
            await _answer(writer, DoorStatus.TOKEN_UNKNOWN)
            return
        try:
            with self._sandboxes.visit(grant.tenant, grant.sandbox_id) as enclosure:
                connection = await enclosure.connect(grant.port)
                if connection is None:
                    await _answer(writer, DoorStatus.REFUSED)
                else:
                    await self._carry(reader, writer, connection)
        except FairleadError:
            await _answer(writer, DoorStatus.SANDBOX_GONE)

    async def _carry(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        connection: socket.socket,
    ) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        inner_reader, inner_writer = await asyncio.open_connection(sock=connection, limit=_CHUNK)
        try:
            writer.write(bytes([DoorStatus.CONNECTED]))
            async with asyncio.TaskGroup() as ways:
                ways.create_task(_pump(reader, inner_writer))
                ways.create_task(_pump(inner_reader, writer))
            writer.close()
            await writer.wait_closed()
        except* OSError:
            log.debug("carried connection broke")
        finally:
            inner_writer.transport.abort()


def _unix_listener(path: Path) -> socket.socket:
    """Bind a socket that only this user can open; what a dead worker left there is replaced."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    path.chmod(0o600)
    return listener


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Carry bytes until end-of-file, then pass that on and leave the other way open."""
    while content := await source.read(_CHUNK):
        sink.write(content)
        await sink.drain()
    if sink.can_write_eof():
        sink.write_eof()


async def _answer(writer: asyncio.StreamWriter, status: DoorStatus) -> None:
    with contextlib.suppress(OSError):
        writer.write(bytes([status]))
        await writer.drain()
        writer.close()
        await writer.wait_closed()
