"""A TCP or Unix connection at the end of a tunnel's channel."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import Final, Protocol, cast

from fairlead_tunnel.frames import Content

READ_BYTES: Final = 252 * 1024
"""At most so many are read at once: with all that may go beside them they fill one batch."""
_FIRST_READ: Final = 16 * 1024
_GROWTH: Final = 4
_HIGH: Final = 256 * 1024
_LOW: Final = 64 * 1024


class Port(Protocol):
    """What a channel leads to; none of these may raise."""

    def write(self, content: Content) -> None:
        """Pass bytes of the channel on, and say when they are consumed."""
        ...

    def go_on(self) -> None:
        """Read again after `PortUser.port_read` said that there is no room."""
        ...

    def finish(self) -> None:
        """Pass the end of the channel's bytes on, after those; the other direction goes on."""
        ...

    def close(self) -> None:
        """Close after what was written: both directions have ended."""
        ...

    def abort(self) -> None:
        """Drop it in a way that does not look like an end."""
        ...


class PortUser(Protocol):
    """The tunnel's side of a port; none of these may raise."""

    def port_read(self, channel: int, content: Content) -> bool:
        """Send what was read; say whether more may be read now."""
        ...

    def port_finished(self, channel: int) -> None:
        """Note that nothing more will be read."""
        ...

    def port_consumed(self, channel: int, count: int) -> None:
        """Note that bytes have left this process, or nearly."""
        ...

    def port_lost(self, channel: int, error: Exception | None) -> None:
        """Note that the port is gone; without an error it had passed everything on. Once."""
        ...


def hand_over(transport: asyncio.Transport, protocol: asyncio.BaseProtocol) -> None:
    """Give a connection to another protocol, and read on.

    uvloop reads for the one before until reading begins anew.
    """
    transport.pause_reading()
    transport.set_protocol(protocol)
    transport.resume_reading()


class ChannelPort(asyncio.BufferedProtocol):
    """Reads and writes one connection.

    At most 320 KiB are consumed and wait here for the connection's reader; whatever else it does
    not take counts against the limit of the channel. What is read is kept where it was read to, in
    memory of its own that grows with what comes; an idle connection has none.
    """

    def __init__(self, channel: int, user: PortUser) -> None:
        self._channel = channel
        self._user = user
        self._transport: asyncio.Transport | None = None
        self._room = memoryview(b"")
        self._room_bytes = _FIRST_READ
        self._unread = 0
        self._is_full = False
        self._is_dropped = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; asyncio calls this, and has set TCP_NODELAY."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_HIGH, low=_LOW)
        if self._is_dropped:
            self.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Say where to read to; asyncio calls this."""
        self._room = memoryview(bytearray(self._room_bytes))
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        """Send what was read; asyncio calls this."""
        content, self._room = self._room[:nbytes], memoryview(b"")
        size = self._room_bytes
        if nbytes == size:
            self._room_bytes = min(_GROWTH * size, READ_BYTES)
        elif nbytes < size // _GROWTH:
            self._room_bytes = max(size // _GROWTH, _FIRST_READ)
        # Few bytes must not keep much memory while they wait.
        self.take(content if nbytes > size // 2 else bytes(content))

    def take(self, content: Content) -> None:
        """Send what was read."""
        if not self._user.port_read(self._channel, content) and self._transport is not None:
            self._transport.pause_reading()

    def go_on(self) -> None:
        """Read again after `port_read` said that there is no room."""
        if self._transport is not None:
            self._transport.resume_reading()

    def eof_received(self) -> bool:
        """End this direction and keep the other; asyncio calls this."""
        self._user.port_finished(self._channel)
        return True

    def write(self, content: Content) -> None:
        """Write bytes of the channel, and say that they are consumed once they fit."""
        if self._transport is None:
            return
        self._transport.write(content)
        if self._is_full:
            self._unread += len(content)
        else:
            self._user.port_consumed(self._channel, len(content))

    def finish(self) -> None:
        """End the connection's other direction, after what was written."""
        if self._transport is not None:
            with contextlib.suppress(OSError):  # it was reset, which is told as its loss
                self._transport.write_eof()

    def close(self) -> None:
        """Close after what was written."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Drop the connection; its peer sees RST, not an end of file."""
        self._is_dropped = True
        if self._transport is not None:
            drop(self._transport)

    def pause_writing(self) -> None:
        """Grant no more for now; asyncio calls this."""
        self._is_full = True

    def resume_writing(self) -> None:
        """Grant what has left meanwhile; asyncio calls this."""
        self._is_full = False
        unread, self._unread = self._unread, 0
        self._user.port_consumed(self._channel, unread)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell that it is gone; asyncio calls this."""
        self._transport = None
        if exc is None and self._unread:
            exc = ConnectionAbortedError("closed with bytes that were not passed on")
        self._user.port_lost(self._channel, exc)


def drop(transport: asyncio.Transport) -> None:
    """Drop a connection in a way that its peer sees RST, not an end of file (SO_LINGER of 0)."""
    plug = transport.get_extra_info("socket")
    if plug is not None and plug.family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):
            plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
