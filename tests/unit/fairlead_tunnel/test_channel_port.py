"""Where a port reads to: memory that follows what comes, and a read that fills a batch."""

from __future__ import annotations

from fairlead_tunnel.channel_port import READ_BYTES, ChannelPort
from fairlead_tunnel.frames import Content
from fairlead_tunnel.records import MAX_BATCH_BYTES
from fairlead_tunnel.tunnel import Side, Tunnel

FIRST = 16 * 1024
SECOND = 64 * 1024


class Reads:
    """Keeps what was read."""

    def __init__(self) -> None:
        self.contents: list[Content] = []

    def port_read(self, channel: int, content: Content) -> bool:
        """Keep it."""
        self.contents.append(content)
        return True

    def port_finished(self, channel: int) -> None:
        """Never comes here."""

    def port_consumed(self, channel: int, count: int) -> None:
        """Never comes here."""

    def port_lost(self, channel: int, error: Exception | None) -> None:
        """Never comes here."""


def _read(port: ChannelPort, content: bytes) -> int:
    """Have a port read as asyncio does, as often as it takes; returns how much the last read would
    have taken.
    """
    while True:
        room = port.get_buffer(-1)
        part, content = content[: len(room)], content[len(room) :]
        room[: len(part)] = part
        port.buffer_updated(len(part))
        if not content:
            return len(room)


def test_what_was_read_stays_as_it_was() -> None:
    user = Reads()
    port = ChannelPort(1, user)
    sent = [bytes([number]) * (1000 + 30_000 * number) for number in (1, 2, 0, 1)]
    for content in sent:
        _read(port, content)
    assert b"".join(user.contents) == b"".join(sent)


def test_the_room_grows_with_full_reads_and_shrinks_again() -> None:
    port = ChannelPort(1, Reads())
    assert _read(port, bytes(FIRST)) == FIRST
    assert _read(port, bytes(SECOND)) == SECOND
    assert _read(port, bytes(READ_BYTES)) == READ_BYTES
    assert _read(port, bytes(READ_BYTES // 2)) == READ_BYTES
    assert _read(port, bytes(10)) == READ_BYTES
    assert _read(port, bytes(10)) == READ_BYTES // 4
    assert _read(port, bytes(10)) == FIRST
    assert _read(port, bytes(10)) == FIRST


def test_few_bytes_keep_little_memory() -> None:
    user = Reads()
    port = ChannelPort(1, user)
    _read(port, b"few")
    _read(port, bytes(FIRST // 2 + 1))
    kept = [memoryview(memoryview(each).obj).nbytes for each in user.contents]
    assert kept == [3, FIRST]


def test_a_full_read_leaves_in_one_batch() -> None:
    tunnel = Tunnel(side=Side.CLIENT)
    channel = tunnel.open("a" * 255)
    assert tunnel.write(channel, bytes(READ_BYTES)) == READ_BYTES
    batch = tunnel.take_batch(carrier=1, most=MAX_BATCH_BYTES, now=0.0, alive=((1, 1),))
    assert batch is not None
    assert READ_BYTES < batch.size <= MAX_BATCH_BYTES
    assert tunnel.take_batch(carrier=1, most=MAX_BATCH_BYTES, now=0.0) is None
