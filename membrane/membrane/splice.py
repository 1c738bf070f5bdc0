"""A splice: carries the control and the lanes of one child over one byte stream, on either side.

What is behind its sockets does not know of it: a caller has the same link as to a child of its own,
and the child has the same threads. It holds about 1 MiB on the way out, and on the way in what one
read brought: a lane that nobody reads holds up the whole stream, as one full pipe would.
"""

from __future__ import annotations

import array
import contextlib
import select
import socket
from collections.abc import Callable
from dataclasses import dataclass

from membrane.errors import ProtocolError
from membrane.multiplex import BYTES, CONTROL, END, FIRST_LANE, LARGEST_PIECE, Pieces, piece

_MOST_OUT = 1 << 20
_READ_BYTES = 1 << 18
_LARGEST_PACKET = 1 << 14
_DESCRIPTORS = 4 * array.array("i").itemsize
_AT_ONCE = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL


@dataclass(frozen=True, slots=True)
class Stream:
    """The byte stream: two descriptors, or twice the same one, that do not block, and how they are
    read and written.
    """

    inward: int
    outward: int
    read: Callable[[int], bytes]
    write: Callable[[bytearray], int]


@dataclass(slots=True)
class _Stuck:
    """What a socket did not take."""

    end: socket.socket
    content: bytes
    passed: socket.socket | None = None


class Splice:
    """One side of it. `greet` takes the greeting that the other side may still send; only the
    child's side makes lanes of what comes in (`makes_lanes`).
    """

    def __init__(
        self,
        *,
        stream: Stream,
        control: socket.socket,
        lane: socket.socket,
        greet: Callable[[bytes], None] | None = None,
        makes_lanes: bool,
        first: bytes = b"",
        came: bytes = b"",
    ) -> None:
        """`first` is what goes out before anything else, `came` what has come in already."""
        self._stream = stream
        self._control = control
        self._greet = greet
        self._makes_lanes = makes_lanes
        self._out = bytearray(first)
        self._pieces = Pieces()
        self._pieces.add(came)
        self._lanes: dict[int, socket.socket] = {FIRST_LANE: lane}
        self._streams = {lane.fileno(): FIRST_LANE}
        self._newest = FIRST_LANE
        self._stuck: _Stuck | None = None
        self._poll = select.poll()
        self._events: dict[int, int] = {}
        self._is_mute = False
        self._is_leaving = False

    def run(self) -> None:
        """Carry until the stream or the control ends; raises ProtocolError."""
        self._deliver()
        while not (self._is_leaving and (self._is_mute or not self._out)):
            self._watch()
            for descriptor, _ in self._poll.poll():
                if descriptor == self._stream.inward and not self._take_in():
                    return
                if self._stuck is not None and descriptor == self._stuck.end.fileno():
                    self._push()
                if descriptor == self._control.fileno():
                    self._take_packet()
                elif (number := self._streams.get(descriptor)) is not None:
                    self._take_bytes(number)
            self._deliver()
            self._put_out()

    def close(self) -> None:
        """Close the sockets, at which those behind them end."""
        self._control.close()
        for lane in self._lanes.values():
            lane.close()
        self._lanes.clear()
        if self._stuck is not None and self._stuck.passed is not None:
            self._stuck.passed.close()

    def _watch(self) -> None:
        """Have the poll look at what can go on."""
        wanted: dict[int, int] = {}
        if self._stuck is None:
            wanted[self._stream.inward] = select.POLLIN
        else:
            wanted[self._stuck.end.fileno()] = select.POLLOUT
        if self._out and not self._is_mute:
            outward = self._stream.outward
            wanted[outward] = wanted.get(outward, 0) | select.POLLOUT
        if not self._is_leaving and len(self._out) < _MOST_OUT:
            for descriptor in (self._control.fileno(), *self._streams):
                wanted[descriptor] = wanted.get(descriptor, 0) | select.POLLIN
        for descriptor in self._events.keys() - wanted.keys():
            with contextlib.suppress(KeyError):
                self._poll.unregister(descriptor)
        for descriptor, events in wanted.items():
            if self._events.get(descriptor) != events:
                self._poll.register(descriptor, events)
        self._events = wanted

    def _take_in(self) -> bool:
        """Read the stream; False at its end."""
        try:
            content = self._stream.read(_READ_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._pieces.add(content)
        return bool(content)

    def _deliver(self) -> None:
        """Hand on what came, up to what a socket does not take."""
        while self._stuck is None and (found := self._pieces.next()) is not None:
            kind, number, content = found
            if kind in (BYTES, END):
                self._on_lane(kind, number, content)
            elif kind == CONTROL:
                self._on_packet(number, content)
            elif (greet := self._greet) is not None:
                self._greet = None
                greet(content)
            else:
                raise ProtocolError("a second greeting")

    def _on_lane(self, kind: int, number: int, content: bytes) -> None:
        if not 0 < number <= self._newest:
            raise ProtocolError(f"there is no lane {number}")
        lane = self._lanes.get(number)
        if lane is None:
            return  # closed here, while this was on its way
        if kind == END:
            self._forget(number)
        else:
            self._stuck = _Stuck(lane, content)
            self._push()

    def _on_packet(self, number: int, content: bytes) -> None:
        if len(content) > _LARGEST_PACKET:
            raise ProtocolError(f"a packet of {len(content)} bytes")
        self._stuck = _Stuck(self._control, content)
        if number:
            if not self._makes_lanes or number <= self._newest:
                raise ProtocolError(f"lane {number} is not to be made")
            near, self._stuck.passed = socket.socketpair()
            self._add(number, near)
        self._push()

    def _push(self) -> None:
        """Write what is stuck, as far as it goes."""
        stuck = self._stuck
        if stuck is None:
            return
        try:
            if stuck.passed is None:
                sent = stuck.end.send(stuck.content, _AT_ONCE)
            else:
                fds = [stuck.passed.fileno()]
                sent = socket.send_fds(stuck.end, [stuck.content], fds, _AT_ONCE)
        except BlockingIOError:
            return
        except OSError:
            sent = len(stuck.content)  # nobody is there: the end of it is read as well
        stuck.content = stuck.content[sent:]
        if stuck.content:
            return
        if stuck.passed is not None:
            stuck.passed.close()
        self._stuck = None

    def _take_packet(self) -> None:
        try:
            packet, ancillary, _, _ = self._control.recvmsg(
                _LARGEST_PACKET,
                socket.CMSG_SPACE(_DESCRIPTORS),
                socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC,
            )
        except BlockingIOError:
            return
        except OSError:
            packet, ancillary = b"", []
        if not packet:
            self._is_leaving = True
            return
        number = 0
        for _, _, descriptors in ancillary:
            number = self._newest + 1
            self._add(number, socket.socket(fileno=array.array("i", descriptors)[0]))
        self._out += piece(CONTROL, number, packet)

    def _take_bytes(self, number: int) -> None:
        try:
            content = self._lanes[number].recv(LARGEST_PIECE, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            content = b""
        if content:
            self._out += piece(BYTES, number, content)
        else:
            self._forget(number)
            self._out += piece(END, number, b"")

    def _put_out(self) -> None:
        while self._out and not self._is_mute:
            try:
                sent = self._stream.write(self._out)
            except BlockingIOError:
                return
            except OSError:
                # What the other side sent before it went is still taken.
                self._is_mute = True
                return
            del self._out[:sent]

    def _add(self, number: int, lane: socket.socket) -> None:
        self._newest = number
        self._lanes[number] = lane
        self._streams[lane.fileno()] = number

    def _forget(self, number: int) -> None:
        lane = self._lanes.pop(number)
        self._streams.pop(lane.fileno(), None)
        if self._events.pop(lane.fileno(), None) is not None:
            self._poll.unregister(lane.fileno())
        if self._stuck is not None and self._stuck.end is lane:
            self._stuck = None
        lane.close()
