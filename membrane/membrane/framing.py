"""Frames on a stream socket, and descriptors between them, within the time that a call has."""

from __future__ import annotations

import array
import select
import socket
import time
from struct import Struct
from typing import Final

from membrane.errors import DeadlineExceeded, ProtocolError
from membrane.frames import HEADER_BYTES, LARGEST_FRAME

_READ_BYTES = 1 << 16
_LENGTH: Final = Struct("<I")
pack_length: Final = _LENGTH.pack
unpack_length: Final = _LENGTH.unpack_from
QUIET: Final = socket.MSG_NOSIGNAL
_AT_ONCE = socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT
_DESCRIPTOR_BYTES = array.array("i").itemsize


class LaneLost(ConnectionError):
    """The other side of a lane is gone."""


class FramedEnd:
    """One end of a stream of frames; one thread has it at a time. `ends_at` is when reading and
    writing end with DeadlineExceeded, by the monotonic clock, None for never;
    `seconds` is the time that there was. `is_amid` says that a frame is under way: what is
    collected meanwhile has to ask elsewhere.
    """

    __slots__ = (
        "_buffer", "_end", "_poll", "_receive", "_send", "_view", "ends_at", "is_amid", "seconds",
    )  # fmt: skip

    def __init__(self, *, end: socket.socket) -> None:
        self.ends_at: float | None = None
        self.seconds: float | None = None
        self.is_amid = False
        self._end = end
        self._send = end.send
        self._receive = end.recv_into
        self._poll: select.poll | None = None
        self._buffer = bytearray(_READ_BYTES)
        self._view = memoryview(self._buffer)

    def shut(self) -> None:
        """Wake whoever waits on it, with LaneLost; from any thread."""
        try:
            self._end.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

    def write_frame(self, frame: bytes) -> None:
        """Write one frame; raises LaneLost and DeadlineExceeded."""
        size = len(frame)
        packet = pack_length(size) + frame
        if self.ends_at is None:
            try:
                sent = self._send(packet, QUIET)
            except OSError as error:
                raise LaneLost(str(error)) from None
            if sent != size + HEADER_BYTES:
                self.write_rest(packet, sent)
            return
        self.is_amid = True
        rest = memoryview(packet)
        while rest:
            try:
                rest = rest[self._send(rest, _AT_ONCE) :]
            except BlockingIOError:
                self._wait(select.POLLOUT)
            except OSError as error:
                raise LaneLost(str(error)) from None
        self.is_amid = False

    def write_rest(self, packet: bytes, sent: int) -> None:
        """Write what the socket has not taken at once; raises LaneLost."""
        self.is_amid = True
        try:
            self._end.sendall(memoryview(packet)[sent:], QUIET)
        except OSError as error:
            raise LaneLost(str(error)) from None
        self.is_amid = False

    def read_frame(self) -> memoryview:
        """Read one frame, into memory that the next one is read into as well; raises LaneLost,
        DeadlineExceeded and ProtocolError.
        """
        if self.ends_at is not None:
            self._wait(select.POLLIN)
        try:
            count = self._receive(self._buffer)
        except OSError as error:
            raise LaneLost(str(error)) from None
        return self.read_on(count)

    def read_on(self, count: int) -> memoryview:
        """Read a frame to its end, of which `count` bytes have come."""
        if count < HEADER_BYTES:
            count = self._read_up(count, HEADER_BYTES)
        end = unpack_length(self._buffer)[0] + HEADER_BYTES
        if count == end:
            return self._view[HEADER_BYTES:end]
        return self._read_long(count, end)

    def _read_up(self, count: int, wanted: int) -> int:
        """Read on until the buffer holds `wanted` bytes, of which it has `count`."""
        if count == 0:
            raise LaneLost("the other side is gone")
        self.is_amid = True
        self._fill(self._view[count:wanted])
        return wanted

    def _read_long(self, count: int, end: int) -> memoryview:
        """Read the rest of a frame that did not come in one piece."""
        if end < count:
            raise ProtocolError("bytes behind a message: somebody spoke out of turn")
        if end > LARGEST_FRAME + HEADER_BYTES:
            raise ProtocolError(f"a message of {end} bytes; {LARGEST_FRAME} is the most")
        self.is_amid = True
        frame = memoryview(bytearray(end))
        frame[:count] = self._view[:count]
        self._fill(frame[count:])
        return frame[HEADER_BYTES:]

    def _fill(self, rest: memoryview) -> None:
        self.is_amid = True
        while rest:
            if self.ends_at is not None:
                self._wait(select.POLLIN)
            try:
                count = self._receive(rest)
            except OSError as error:
                raise LaneLost(str(error)) from None
            if count == 0:
                raise LaneLost("the other side is gone")
            rest = rest[count:]
        self.is_amid = False

    def _wait(self, event: int) -> None:
        """Wait until the lane can be read or written; raises DeadlineExceeded."""
        if self._poll is None:
            self._poll = select.poll()
        self._poll.register(self._end, event)
        left = (self.ends_at or 0.0) - time.monotonic()
        if left <= 0 or not self._poll.poll(int(left * 1000) + 1):
            raise DeadlineExceeded(seconds=self.seconds or 0.0)

    def give_descriptor(self, descriptor: int) -> None:
        """Send a descriptor to who takes one; -1 for none. Raises LaneLost."""
        try:
            if descriptor < 0:
                self._end.send(b"n", QUIET)
            else:
                socket.send_fds(self._end, [b"d"], [descriptor], QUIET)
        except OSError as error:
            raise LaneLost(str(error)) from None

    def take_descriptor(self) -> int:
        """Wait for a descriptor; returns -1 where none came, and raises LaneLost."""
        if self.ends_at is not None:
            self._wait(select.POLLIN)
        try:
            content, ancillary, _, _ = self._end.recvmsg(
                1, socket.CMSG_SPACE(_DESCRIPTOR_BYTES), socket.MSG_CMSG_CLOEXEC
            )
        except OSError as error:
            raise LaneLost(str(error)) from None
        for level, kind, descriptors in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                return int(array.array("i", descriptors)[0])
        if not content:
            raise LaneLost("the other side is gone")
        return -1
