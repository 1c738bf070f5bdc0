"""Messages of `fairlead.bytes.v1` on a byte stream, between a worker and a gateway.

A frame is one of `fairlead_tunnel.conversation`, with a message of at most 65536 bytes. A stream
that ends, breaks or breaks these rules is a channel that closed: whether that cut anything short is
for `fairlead_tunnel.byte_channel` to say. Who closes ends its own direction, and goes on reading
until the other one has ended too: a connection that is closed under what its peer still sends is
reset, and what the peer had not read yet is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from fairlead_tunnel.byte_channel import MAX_MESSAGE_BYTES, Message, Side
from fairlead_tunnel.conversation import frame_of, read_frame
from fairlead_tunnel.event_loops import require_open
from fairlead_tunnel.pump import Ending, Pump
from fairlead_tunnel.silence import notice_silence


def keep_alive(writer: asyncio.StreamWriter) -> None:
    """Have TCP notice a peer that vanished; a Unix socket needs no such thing."""
    notice_silence(writer.get_extra_info("socket"))


class FramedPort:
    """A connection as a `fairlead_tunnel.pump.MessagePort`; somebody runs `run` or `messages`."""

    def __init__(self, *, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._on_message: Callable[[Message], None] | None = None
        self._on_closed: Callable[[], None] | None = None
        self._is_closing = False
        keep_alive(writer)

    @property
    def queued(self) -> int:
        """How many bytes wait to be sent."""
        return self._writer.transport.get_write_buffer_size()

    def attach(
        self, *, on_message: Callable[[Message], None], on_closed: Callable[[], None]
    ) -> None:
        """Have `run` deliver every message, then the close."""
        self._on_message = on_message
        self._on_closed = on_closed

    async def run(self) -> None:
        """Deliver to whom `attach` named, until the connection ends."""
        if self._on_message is None or self._on_closed is None:
            raise RuntimeError("attach comes first")
        async for message in self.messages():
            self._on_message(message)
        self._on_closed()

    async def messages(self) -> AsyncIterator[Message]:
        """Give every message until the connection ends, breaks or breaks the rules; then close."""
        with contextlib.suppress(OSError, EOFError, ValueError):
            while True:
                yield await read_frame(self._reader, MAX_MESSAGE_BYTES)
        self._is_closing = True
        self._writer.close()

    def send(self, message: Message) -> None:
        """Queue a message of at most 65536 bytes; dropped when the connection is closed."""
        if self._is_closing or self._writer.is_closing():
            return
        self._writer.write(frame_of(message))

    async def drain(self) -> None:
        """Wait until there is room in the queue, or the connection is closed."""
        with contextlib.suppress(OSError):
            await self._writer.drain()

    def close(self) -> None:
        """Send no more after what is queued; the reader closes when the peer has ended too."""
        if not self._is_closing:
            self._is_closing = True
            with contextlib.suppress(OSError):
                require_open(self._writer)
                self._writer.write_eof()

    def abort(self) -> None:
        """Drop the connection with what is queued."""
        self._writer.transport.abort()

    async def wait_closed(self) -> None:
        """Wait until the reader has closed the connection, and what was queued has been sent."""
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


async def accept(
    port: FramedPort,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    *,
    if_cancelled: tuple[str, str],
) -> Ending:
    """Carry a TCP connection that was made for the peer at `port`, to the end of both.

    Cancelling resets the stream with the reason and the sentence of `if_cancelled`, at once.
    """
    pump = Pump(port=port, side=Side.ACCEPTOR)
    reading = asyncio.ensure_future(port.run())
    carrying = asyncio.ensure_future(pump.carry(reader, writer))
    try:
        ending = await asyncio.shield(carrying)
        await reading
        await port.wait_closed()
        return ending
    except asyncio.CancelledError:
        pump.refuse(*if_cancelled)
        carrying.cancel()
        raise
    finally:
        port.abort()
        reading.cancel()
        await asyncio.wait((reading, carrying))
