"""Where workers dial in: 32 bytes of ticket, then the frames of the channel that it is for."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from chassis.listeners import ConnectionLimits, WaitingConnections
from relay_gateway.ports import Stream
from relay_gateway.session import OpeningsExceeded

TICKET_BYTES = 32


class ExpectedStream:
    """A connection that a worker is to bring, once."""

    def __init__(self, *, ticket: bytes) -> None:
        self.ticket = ticket
        self._arrival = asyncio.Event()
        self._stream: Stream | None = None

    async def arrived(self) -> None:
        """Wait for the connection."""
        await self._arrival.wait()

    def take(self) -> Stream:
        """Return the connection that has arrived; it belongs to the caller from now on."""
        stream, self._stream = self._stream, None
        if stream is None:
            raise RuntimeError("nothing has arrived, or it was taken")
        return stream

    def bring(self, stream: Stream) -> None:
        """Give it the connection."""
        self._stream = stream
        self._arrival.set()

    def give_up(self) -> None:
        """Drop a connection that came and that nobody took."""
        if self._stream is not None:
            self._stream[1].transport.abort()


class WorkerDoor:
    """Takes each ticket once, while its connection is expected.

    Only their SHA-256 is kept, as the key of a dictionary: how long a look-up takes says nothing
    about a ticket that is nearly right.
    """

    def __init__(
        self,
        *,
        most_expected: int = 4096,
        limits: ConnectionLimits | None = None,
        patience_seconds: float = 5.0,
    ) -> None:
        self._most_expected = most_expected
        self._patience_seconds = patience_seconds
        self._expected: dict[bytes, ExpectedStream] = {}
        self._waiting = WaitingConnections(limits=limits or ConnectionLimits())
        self._greetings: set[asyncio.Task[object]] = set()

    @contextmanager
    def expect(self) -> Iterator[ExpectedStream]:
        """Expect one connection in the block; raises OpeningsExceeded."""
        if len(self._expected) >= self._most_expected:
            raise OpeningsExceeded(self._most_expected)
        expected = ExpectedStream(ticket=secrets.token_bytes(TICKET_BYTES))
        digest = _digest(expected.ticket)
        self._expected[digest] = expected
        try:
            yield expected
        finally:
            self._expected.pop(digest, None)
            expected.give_up()

    @asynccontextmanager
    async def serve(self, bind: str) -> AsyncIterator[str]:
        """Listen on `unix:/path` (mode 0600) or `host:port` in the block; yields the address."""
        if bind.startswith("unix:"):
            listener = _unix_listener(Path(bind.removeprefix("unix:")))
            server = await asyncio.start_unix_server(self._on_connection, sock=listener)
            address = bind
        else:
            host, _, port = bind.rpartition(":")
            server = await asyncio.start_server(self._on_connection, host.strip("[]"), int(port))
            address = f"{host}:{server.sockets[0].getsockname()[1]}"
        try:
            yield address
        finally:
            server.close()
            for task in self._greetings:
                task.cancel()
            if self._greetings:
                await asyncio.wait(self._greetings)

    async def _on_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Hand a connection with a good ticket over, and drop any other."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a connection is met in a task of its own")
        self._greetings.add(task)
        self._waiting.add(writer.transport)
        try:
            async with asyncio.timeout(self._patience_seconds):
                ticket = await reader.readexactly(TICKET_BYTES)
            expected = self._expected.pop(_digest(ticket), None)
        except (OSError, EOFError, TimeoutError, asyncio.CancelledError):
            # Also the end of the door: this task is its own top.
            expected = None
        finally:
            self._waiting.discard(writer.transport)
            self._greetings.discard(task)
        if expected is None:
            writer.transport.abort()
        else:
            expected.bring((reader, writer))


def _unix_listener(path: Path) -> socket.socket:
    """Bind a socket that only this user can open; what a dead gateway left there is replaced."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    path.chmod(0o600)
    return listener


def _digest(ticket: bytes) -> bytes:
    return hashlib.sha256(ticket).digest()
