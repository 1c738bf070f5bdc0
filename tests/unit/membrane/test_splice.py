"""Two splices back to back: lanes and control as if there were no stream between them."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from membrane.errors import ProtocolError
from membrane.multiplex import BYTES, CONTROL, END, Pieces, piece
from membrane.splice import Splice, Stream

SECONDS = 30.0


class Side:
    """A splice on a thread, with the ends that those behind it have."""

    def __init__(
        self,
        stream: socket.socket,
        *,
        is_child: bool,
        greet: Callable[[bytes], None] | None = None,
    ) -> None:
        self.control, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.lane, lane = socket.socketpair()
        for each in (self.control, self.lane):
            each.settimeout(SECONDS)
        self.stream = stream
        self.fault: ProtocolError | None = None
        self.splice = Splice(
            stream=Stream(
                inward=stream.fileno(),
                outward=stream.fileno(),
                read=lambda size: stream.recv(size, socket.MSG_DONTWAIT),
                write=lambda out: stream.send(out, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL),
            ),
            control=control,
            lane=lane,
            greet=greet,
            makes_lanes=is_child,
        )
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.splice.run()
        except ProtocolError as error:
            self.fault = error
        finally:
            self.splice.close()
            self.stream.close()

    def close(self) -> None:
        self.control.close()
        self.lane.close()


@pytest.fixture
def sides() -> Iterator[tuple[Side, Side]]:
    near, far = socket.socketpair()
    found = Side(near, is_child=False), Side(far, is_child=True)
    yield found
    for each in found:
        each.close()
    for each in found:
        each.thread.join(SECONDS)
        assert not each.thread.is_alive()


@contextlib.contextmanager
def bare(
    *, is_child: bool, greet: Callable[[bytes], None] | None = None
) -> Iterator[tuple[Side, socket.socket]]:
    """One side, and the bare stream to it."""
    near, far = socket.socketpair()
    far.settimeout(SECONDS)
    side = Side(near, is_child=is_child, greet=greet)
    yield side, far
    side.close()
    far.close()
    side.thread.join(SECONDS)
    assert not side.thread.is_alive()


@pytest.fixture
def hostile() -> Iterator[tuple[Side, socket.socket]]:
    """A caller's side, and the bare stream to it."""
    with bare(is_child=False) as made:
        yield made


def read(end: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size and (more := end.recv(size - len(found))):
        found += more
    return bytes(found)


def eventually(holds: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < ends_at
        time.sleep(0.01)


def waits_for_room(side: Side) -> bool:
    """Say whether a socket behind it takes no more; of one that has nothing to send itself."""
    return any(events & select.POLLOUT for events in [*side.splice._events.values()])


def make_lane(parent: Side, child: Side, packet: bytes = b"a lane") -> tuple[socket.socket, ...]:
    near, far = socket.socketpair()
    near.settimeout(SECONDS)
    with far:
        socket.send_fds(parent.control, [packet], [far.fileno()])
    told, descriptors, _, _ = socket.recv_fds(child.control, 100, 1)
    assert told == packet
    made = socket.socket(fileno=descriptors[0])
    made.settimeout(SECONDS)
    return near, made


def test_bytes_go_both_ways_and_packets_stay_packets(sides: tuple[Side, Side]) -> None:
    parent, child = sides
    parent.lane.sendall(b"there")
    assert read(child.lane, 5) == b"there"
    child.lane.sendall(b"back")
    assert read(parent.lane, 4) == b"back"
    for number in range(50):
        child.control.send(b"%d" % number)
    assert [parent.control.recv(100) for _ in range(50)] == [b"%d" % each for each in range(50)]


def test_lanes_are_made_and_keep_their_bytes_apart(sides: tuple[Side, Side]) -> None:
    parent, child = sides
    lanes = [make_lane(parent, child) for _ in range(5)]
    sent = [bytes([number]) * 300_000 for number in range(5)]
    threads = [
        threading.Thread(target=near.sendall, args=(content,))
        for (near, _), content in zip(lanes, sent, strict=True)
    ]
    for thread in threads:
        thread.start()
    # In another order than they were sent: all of them are read meanwhile.
    found: dict[int, bytes] = {}

    def take(number: int) -> None:
        found[number] = read(lanes[number][1], 300_000)

    readers = [threading.Thread(target=take, args=(number,)) for number in range(5)]
    for thread in readers:
        thread.start()
    for thread in (*threads, *readers):
        thread.join(SECONDS)
    assert [found[each] for each in range(5)] == sent
    for near, far in lanes:
        near.close()
        far.close()


def test_a_lane_that_is_closed_ends_on_the_other_side_and_no_other(
    sides: tuple[Side, Side],
) -> None:
    parent, child = sides
    near, far = make_lane(parent, child)
    near.sendall(b"last words")
    near.close()
    assert read(far, 100) == b"last words"
    far.close()
    other, end = make_lane(parent, child)
    end.close()
    assert other.recv(10) == b""
    other.close()
    parent.lane.sendall(b"still")
    assert read(child.lane, 5) == b"still"


def test_what_comes_for_a_lane_that_was_just_closed_is_dropped(
    hostile: tuple[Side, socket.socket],
) -> None:
    side, far = hostile
    side.lane.close()
    assert read(far, 9) == piece(END, 1, b"")
    far.sendall(piece(BYTES, 1, b"late") + piece(END, 1, b"") + piece(CONTROL, 0, b"after"))
    assert side.control.recv(100) == b"after"


def test_a_reader_that_does_not_read_holds_up_the_writer_and_loses_nothing(
    sides: tuple[Side, Side],
) -> None:
    parent, child = sides
    content = os.urandom(1 << 20) * 8
    writer = threading.Thread(target=child.lane.sendall, args=(content,))
    writer.start()
    # It cannot end: what is between the two holds less.
    writer.join(1.0)
    assert writer.is_alive()
    assert read(parent.lane, len(content)) == content
    writer.join(SECONDS)
    assert not writer.is_alive()


def test_a_lane_that_nobody_reads_lets_go_when_it_is_closed(
    hostile: tuple[Side, socket.socket],
) -> None:
    side, far = hostile
    content = piece(BYTES, 1, bytes(60_000)) * 100 + piece(CONTROL, 0, b"x")
    sending = threading.Thread(target=far.sendall, args=(content,), daemon=True)
    sending.start()
    side.lane.close()
    assert side.control.recv(100) == b"x"
    sending.join(SECONDS)


def test_a_lane_that_ends_while_it_is_not_read_lets_go_as_well(
    hostile: tuple[Side, socket.socket],
) -> None:
    side, far = hostile
    content = piece(BYTES, 1, bytes(60_000)) * 100 + piece(CONTROL, 0, b"x")
    sending = threading.Thread(target=far.sendall, args=(content,), daemon=True)
    sending.start()
    eventually(lambda: waits_for_room(side))
    # Its end is read while there is still no room for what is stuck.
    side.lane.shutdown(socket.SHUT_WR)
    assert side.control.recv(100) == b"x"
    sending.join(SECONDS)


def test_what_was_taken_goes_out_before_the_end(hostile: tuple[Side, socket.socket]) -> None:
    side, far = hostile

    def write() -> None:
        with contextlib.suppress(OSError):
            side.lane.sendall(bytes(8 << 20))

    writing = threading.Thread(target=write, daemon=True)
    writing.start()
    eventually(lambda: len(side.splice._out) >= 1 << 20)
    taken = len(side.splice._out)
    side.control.close()
    found = read(far, 16 << 20)
    pieces = Pieces()
    pieces.add(found)
    while pieces.next() is not None:
        """Each of them whole."""
    assert pieces.rest() == b""
    assert len(found) >= taken
    writing.join(SECONDS)


def test_many_small_pieces_in_one_read_are_taken(hostile: tuple[Side, socket.socket]) -> None:
    side, far = hostile
    far.sendall(piece(BYTES, 1, b"x") * 20_000)
    assert read(side.lane, 20_000) == b"x" * 20_000


@pytest.mark.parametrize(
    "content",
    [
        b"\xff" * 100,
        piece(BYTES, 2, b"of no lane"),
        piece(BYTES, 0, b"of no lane"),
        piece(END, 5, b""),
        piece(CONTROL, 2, b"a lane of its own making"),
        piece(CONTROL, 0, bytes((1 << 14) + 1)),
        piece(0, 0, b"{}"),
    ],
)
def test_nonsense_is_a_protocol_error_and_ends_it(
    hostile: tuple[Side, socket.socket], content: bytes
) -> None:
    side, far = hostile
    far.sendall(content)
    assert far.recv(100) == b""
    side.thread.join(SECONDS)
    assert side.fault is not None
    assert side.lane.recv(10) == b""
    assert side.control.recv(10) == b""


def test_the_end_of_control_is_the_end_after_what_was_said(sides: tuple[Side, Side]) -> None:
    parent, child = sides
    parent.lane.sendall(b"x" * 100_000)
    assert read(child.lane, 100_000)
    parent.control.close()
    assert child.control.recv(10) == b""
    assert child.lane.recv(10) == b""


def test_what_was_said_is_taken_from_one_that_hears_no_more(
    hostile: tuple[Side, socket.socket],
) -> None:
    side, far = hostile
    far.shutdown(socket.SHUT_RD)
    side.control.send(b"to nobody")
    eventually(lambda: side.splice._is_mute)
    far.sendall(piece(CONTROL, 0, b"last words"))
    assert side.control.recv(100) == b"last words"


def test_one_greeting_is_taken() -> None:
    greetings: list[bytes] = []
    with bare(is_child=False, greet=greetings.append) as (side, far):
        far.sendall(piece(0, 0, b"one") + piece(0, 0, b"two"))
        assert far.recv(100) == b""
        side.thread.join(SECONDS)
        assert greetings == [b"one"]
        assert "second greeting" in str(side.fault)


def test_a_lane_is_made_once() -> None:
    with bare(is_child=True) as (side, far):
        far.sendall(piece(CONTROL, 2, b"a lane") + piece(CONTROL, 2, b"the same"))
        assert far.recv(100) == b""
        side.thread.join(SECONDS)
        assert "lane 2" in str(side.fault)
