"""Leads a channel on the native pump to what a worker brings: over a pair of connected sockets."""

from __future__ import annotations

import asyncio
import socket
from typing import Final, cast

from fairlead_tunnel.channel_port import Port
from fairlead_tunnel.frames import Content
from fairlead_tunnel.pumped_driver import PumpedDriver

_HIGH: Final = 256 * 1024
_LOW: Final = 64 * 1024
_PAIR_SECONDS: Final = 1.0


def connected_pair() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a TCP connection on loopback; raises OSError.

    At the end of a Unix pair a connection that was dropped looks like one that has ended.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(_PAIR_SECONDS)
        near = socket.create_connection(listener.getsockname(), _PAIR_SECONDS)
        try:
            while True:
                far, address = listener.accept()
                if address == near.getsockname():
                    return near, far
                far.close()  # another process was quicker
        except OSError:
            near.close()
            raise


class PumpedPort(asyncio.Protocol):
    """This end of the pair, as the `ChannelUser` of `worker`; the pump gets the other end.

    At most 320 KiB wait here in each direction.
    """

    def __init__(self, *, driver: PumpedDriver, there: socket.socket) -> None:
        self.worker: Port
        """Who passes bytes on to the worker."""
        self.is_done = False
        """Whether the worker has been passed all, or has ended."""
        self._driver = driver
        self._there = there
        self._transport: asyncio.Transport
        self._is_full = False
        self._is_paused = False
        self._unsent = 0

    # What the worker tells

    def accept(self, channel: int) -> None:
        """Give the pump its end, which says that the target is connected."""
        self._driver.connect(channel, self._there)

    def refuse(self, channel: int, reason: str, message: str) -> None:
        """Give the channel up; the sockets stay until it has ended, so that this comes first."""
        self._driver.refuse(channel, reason, message)

    def port_read(self, channel: int, content: Content) -> bool:
        """Pass on what was read; say whether more may be read now."""
        if not self._transport.is_closing():
            self._transport.write(content)
        return not self._is_full

    def port_finished(self, channel: int) -> None:
        """Pass the end on."""
        if not self._transport.is_closing():
            self._transport.write_eof()

    def port_consumed(self, channel: int, count: int) -> None:
        """Read again once enough has left."""
        self._unsent -= count
        if self._is_paused and self._unsent <= _LOW:
            self._is_paused = False
            self._transport.resume_reading()

    def port_lost(self, channel: int, error: Exception | None) -> None:
        """Close after what was written."""
        self._transport.close()

    # What the tunnel tells

    def ended(self, reason: str) -> None:
        """Drop both sides of a channel that did not finish."""
        if reason:
            self.worker.abort()
            self.abort()

    def abort(self) -> None:
        """Drop the pair."""
        self._there.close()
        self._transport.abort()

    # What asyncio tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_HIGH, low=_LOW)

    def data_received(self, content: bytes) -> None:
        """Pass bytes of the client on."""
        self._unsent += len(content)
        if self._unsent > _HIGH:
            self._is_paused = True
            self._transport.pause_reading()
        self.worker.write(content)

    def eof_received(self) -> bool:
        """Pass the end on, and keep the other direction."""
        self.worker.finish()
        return True

    def pause_writing(self) -> None:
        """Have nothing more read of the worker."""
        self._is_full = True

    def resume_writing(self) -> None:
        """Have the worker read again."""
        self._is_full = False
        self.worker.go_on()


async def open_pumped_port(driver: PumpedDriver) -> PumpedPort:
    """Make a pair; raises OSError."""
    near, there = connected_pair()
    try:
        port = PumpedPort(driver=driver, there=there)
        await asyncio.get_running_loop().create_connection(lambda: port, sock=near)
        return port
    except BaseException:
        near.close()
        there.close()
        raise
