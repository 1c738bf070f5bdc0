"""Carries bytes between a TCP connection and a message channel, with half-close and back-pressure.

One channel holds at most its window (1 MiB) of received bytes and the port's high-water mark of
unsent ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from fairlead_tunnel.byte_channel import (
    ByteChannel,
    Message,
    Over,
    PeerFinished,
    Ready,
    Received,
    Side,
)
from fairlead_tunnel.event_loops import require_open

READ_BYTES: Final = 16 * 1024
"""Most bytes in one message that we send: an association does not interleave messages, so that a
long one makes the other channels wait. 8 to 64 KiB were equally fast over aiortc."""
LINGER_SECONDS: Final = 10.0


class MessagePort(Protocol):
    """An open message channel, as the pump needs it."""

    def attach(
        self, *, on_message: Callable[[Message], None], on_closed: Callable[[], None]
    ) -> None:
        """Deliver every message in order, then the close; called once, before any can come."""
        ...

    def send(self, message: Message) -> None:
        """Queue a message; dropped when the channel is closed."""
        ...

    async def drain(self) -> None:
        """Wait until the channel is open with room in its queue, or closed."""
        ...

    def close(self) -> None:
        """Close the channel after what is queued; closing again changes nothing."""
        ...


@dataclass(frozen=True, slots=True)
class Ending:
    """How a stream ended and what it carried; an empty reason says that both sides finished."""

    reason: str
    message: str
    sent: int
    received: int


class Pump:
    """One stream; it takes messages from its construction on, so that none is lost."""

    def __init__(self, *, port: MessagePort, side: Side) -> None:
        self._port = port
        self._channel = ByteChannel(side=side)
        self._inbox = bytearray()
        self._arrived = asyncio.Event()
        self._sendable = asyncio.Event()
        self._ended = asyncio.Event()
        self._remaining = 2
        self._sent = 0
        self._received = 0
        self._side = side
        port.attach(on_message=self._take, on_closed=self._take_close)

    async def wait_ended(self) -> Ending:
        """Wait until the stream is over, whoever ended it."""
        await self._ended.wait()
        over = self._channel.over or Over("", "")
        return Ending(over.reason, over.message, self._sent, self._received)

    def refuse(self, reason: str, message: str) -> None:
        """Reset the stream and close the channel."""
        self._channel.reset(reason, message)
        self._flush()
        self._ended.set()
        self._port.close()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Ending:
        """Carry bytes until both directions have ended or one side resets; closes both ends.

        An acceptor says `ready` first. A stream that is cut short ends the TCP connection with
        RST, so that it never looks like a finished one. Cancelling resets the stream with reason
        `session_closed`.
        """
        if self._side is Side.ACCEPTOR:
            self._channel.accept()
        self._flush()
        try:
            async with asyncio.TaskGroup() as group:
                tasks = (
                    group.create_task(self._send_all(reader)),
                    group.create_task(self._deliver_all(writer)),
                )
                await self._ended.wait()
                for task in tasks:
                    task.cancel()
        except asyncio.CancelledError:
            self.refuse("session_closed", "The session was closed.")
            raise
        finally:
            self._ended.set()
            self._port.close()
            if self._channel.is_complete:
                await _close(writer)
            else:
                _abort(writer)
        return await self.wait_ended()

    async def _send_all(self, reader: asyncio.StreamReader) -> None:
        """Send what the connection gives until its end, as credit and the port's queue allow."""
        try:
            while True:
                await self._port.drain()
                while not (room := self._channel.sendable):
                    self._sendable.clear()
                    await self._sendable.wait()
                content = await reader.read(min(room, READ_BYTES))
                if not content:
                    break
                self._sent += len(content)
                self._channel.send(content)
                self._flush()
        except OSError as error:
            self._connection_lost(error)
            return
        self._channel.finish()
        self._flush()
        self._direction_ended()

    async def _deliver_all(self, writer: asyncio.StreamWriter) -> None:
        """Write what the channel gave; bytes are consumed once the writer has room again."""
        try:
            while self._inbox or not self._channel.peer_finished:
                if not self._inbox:
                    self._arrived.clear()
                    await self._arrived.wait()
                    continue
                content, self._inbox = self._inbox, bytearray()
                require_open(writer)
                writer.write(content)
                await writer.drain()
                self._received += len(content)
                self._channel.consumed(len(content))
                self._flush()
            if writer.can_write_eof() and not writer.is_closing():
                writer.write_eof()
        except OSError as error:
            self._connection_lost(error)
            return
        self._direction_ended()

    def _take(self, message: Message) -> None:
        match self._channel.receive(message):
            case Received(content):
                self._inbox += content
                self._arrived.set()
            case PeerFinished():
                self._arrived.set()
            case Over():
                self._flush()
                self._end()
            case Ready() | None:
                pass
        if self._channel.sendable:
            self._sendable.set()

    def _take_close(self) -> None:
        if self._channel.channel_closed():
            self._end()

    def _connection_lost(self, error: OSError) -> None:
        cause = error.strerror or "the connection was reset"
        self._channel.reset("connection_reset", f"The TCP connection was lost: {cause}.")
        self._flush()
        self._end()

    def _direction_ended(self) -> None:
        self._remaining -= 1
        if not self._remaining:
            self._end()

    def _end(self) -> None:
        self._inbox.clear()
        self._ended.set()
        self._port.close()

    def _flush(self) -> None:
        for message in self._channel.take_outgoing():
            self._port.send(message)


async def _close(writer: asyncio.StreamWriter) -> None:
    """Close after what is still buffered, for at most ten seconds."""
    writer.close()
    try:
        async with asyncio.timeout(LINGER_SECONDS):
            await writer.wait_closed()
    except (OSError, TimeoutError):
        _abort(writer)
    except asyncio.CancelledError:
        _abort(writer)
        raise


def _abort(writer: asyncio.StreamWriter) -> None:
    """Drop the connection; the far end of TCP sees RST, not an end of file (SO_LINGER of 0)."""
    plug = writer.get_extra_info("socket")
    if plug is not None and plug.family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):
            plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
