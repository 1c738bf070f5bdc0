"""A service's end of a packet socket on its event loop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Callable, Sequence

from chassis.packets import pack, receive, widen

Arrival = Callable[[list[bytes], list[int]], None]


class LinkClosed(Exception):
    """The process at the other end is gone."""


class PacketLink:
    """Sends and receives packets; tells of each arrival, and once of the end.

    The descriptors of an arrival belong to `arrived`.
    """

    def __init__(self, *, link: socket.socket, arrived: Arrival, ended: Callable[[], None]) -> None:
        link.setblocking(False)
        widen(link)
        self._link = link
        self._arrived = arrived
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._turn = asyncio.Lock()
        self._room: asyncio.Future[None] | None = None
        self._open = True
        self._loop.add_reader(link.fileno(), self._on_readable)

    async def send(self, *fields: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send one packet; raises LinkClosed, and what leaves the link open: PacketTooLong, and
        OSError (ETOOMANYREFS) while too many descriptors of this user are on their way (unix(7)).
        """
        packet = pack(*fields)
        async with self._turn:
            while True:
                if not self._open:
                    raise LinkClosed
                try:
                    socket.send_fds(self._link, [packet], list(descriptors))
                except BlockingIOError:
                    await self._until_room()
                except OSError as error:
                    if error.errno == errno.ETOOMANYREFS:
                        raise
                    # What the other end said last may still lie in the socket.
                    self.drain()
                    self.close()
                    raise LinkClosed from error
                else:
                    return

    def close(self) -> None:
        """Close this end, which the other one sees as end-of-file; again is harmless."""
        if not self._open:
            return
        self._open = False
        self._loop.remove_reader(self._link.fileno())
        self._loop.remove_writer(self._link.fileno())
        self._link.close()
        self._on_room()
        self._ended()

    def drain(self) -> None:
        """Take what has arrived already."""
        if self._open:
            self._on_readable()

    async def _until_room(self) -> None:
        self._room = self._loop.create_future()
        self._loop.add_writer(self._link.fileno(), self._on_room)
        try:
            await self._room
        finally:
            self._room = None
            if self._open:
                self._loop.remove_writer(self._link.fileno())

    def _on_room(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def _on_readable(self) -> None:
        while self._open:
            try:
                packet = receive(self._link)
            except (BlockingIOError, InterruptedError):
                return
            if packet is None:
                self.close()
                return
            self._arrived(*packet)


def close_all(descriptors: Sequence[int]) -> None:
    """Close descriptors that nobody wants."""
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
