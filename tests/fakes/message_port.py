"""Message channels in memory, and a TCP connection whose other end is the test."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from fairlead_tunnel.byte_channel import Message


class PortFake:
    """One end of a channel; `peer` gets what is sent when `deliver` is called."""

    def __init__(self) -> None:
        self.sent: deque[Message] = deque()
        self.is_closed = False
        self.is_busy = False
        self.peer: PortFake | None = None
        self._room = asyncio.Event()
        self._on_message: Callable[[Message], None] | None = None
        self._on_closed: Callable[[], None] | None = None

    def attach(
        self, *, on_message: Callable[[Message], None], on_closed: Callable[[], None]
    ) -> None:
        self._on_message = on_message
        self._on_closed = on_closed

    def send(self, message: Message) -> None:
        if not self.is_closed:
            self.sent.append(message)

    async def drain(self) -> None:
        while self.is_busy and not self.is_closed:
            self._room.clear()
            await self._room.wait()

    def make_room(self) -> None:
        """Let `drain` return."""
        self.is_busy = False
        self._room.set()

    def close(self) -> None:
        self.is_closed = True
        self._room.set()

    def give(self, message: Message) -> None:
        """Deliver a message to this end."""
        assert self._on_message is not None
        self._on_message(message)

    def lose(self) -> None:
        """Let the channel be closed by the other end."""
        assert self._on_closed is not None
        self.close()
        self._on_closed()


class Wire(asyncio.Transport):
    """The transport under a StreamWriter: what was written, and whether it takes more."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.queued = 0
        self.has_ended = False
        self.is_aborted = False
        self.is_closed = False
        self._protocol: asyncio.StreamReaderProtocol | None = None

    def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return the program's end of the connection."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        self._protocol = asyncio.StreamReaderProtocol(reader)
        self._protocol.connection_made(self)
        return reader, asyncio.StreamWriter(self, self._protocol, reader, loop)

    def stall(self) -> None:
        """Take no more bytes for now."""
        assert self._protocol is not None
        self._protocol.pause_writing()

    def go_on(self) -> None:
        """Take bytes again."""
        assert self._protocol is not None
        self._protocol.resume_writing()

    def lose(self) -> None:
        """Be reset by the other end."""
        self._end(ConnectionResetError(104, "Connection reset by peer"))

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return self.queued

    def write_eof(self) -> None:
        self.has_ended = True

    def can_write_eof(self) -> bool:
        return True

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self._end(None)

    def abort(self) -> None:
        self.is_aborted = self.is_aborted or not self.is_closed
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        if not self.is_closed:
            self.is_closed = True
            assert self._protocol is not None
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, error)
