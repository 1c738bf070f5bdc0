"""The pump between a connection and a channel, both in memory."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable

import pytest

from fairlead_tunnel.byte_channel import INITIAL_WINDOW, MAX_MESSAGE_BYTES, Side
from fairlead_tunnel.pump import READ_BYTES, Ending, Pump
from tests.fakes.message_port import PortFake, Wire


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class End:
    """A pump with its port and its connection."""

    def __init__(self, side: Side) -> None:
        self.port = PortFake()
        self.wire = Wire()
        self.pump = Pump(port=self.port, side=side)
        self.reader, self.writer = self.wire.connect()
        self.task: asyncio.Task[Ending] | None = None

    def start(self) -> asyncio.Task[Ending]:
        self.task = asyncio.create_task(self.pump.carry(self.reader, self.writer))
        return self.task


async def shuttle(one: End, other: End, is_done: Callable[[], bool]) -> None:
    """Carry messages both ways until `is_done`."""
    async with asyncio.timeout(20):
        while not is_done():
            while one.port.sent:
                other.port.give(one.port.sent.popleft())
            while other.port.sent:
                one.port.give(other.port.sent.popleft())
            await asyncio.sleep(0)


@pytest.mark.asyncio
async def test_content_arrives_whole_both_ways() -> None:
    one, other = End(Side.OPENER), End(Side.ACCEPTOR)
    contents = os.urandom(3_000_000), os.urandom(2_500_001)
    tasks = (one.start(), other.start())
    for end, content in zip((one, other), contents, strict=True):
        end.reader.feed_data(content)
        end.reader.feed_eof()
    await shuttle(one, other, lambda: all(task.done() for task in tasks))
    assert hashlib.sha256(other.wire.written).digest() == hashlib.sha256(contents[0]).digest()
    assert hashlib.sha256(one.wire.written).digest() == hashlib.sha256(contents[1]).digest()
    assert tasks[0].result() == Ending("", "", len(contents[0]), len(contents[1]))
    assert tasks[1].result() == Ending("", "", len(contents[1]), len(contents[0]))
    for end in (one, other):
        assert end.wire.has_ended
        assert end.wire.is_closed
        assert not end.wire.is_aborted
        assert end.port.is_closed


@pytest.mark.asyncio
async def test_a_half_closed_direction_leaves_the_other_one_open() -> None:
    end = End(Side.OPENER)
    task = end.start()
    end.reader.feed_data(b"ask")
    end.reader.feed_eof()
    await turns()
    assert list(end.port.sent) == [b"ask", "eof"]
    for message in ("ready", b"ans", b"wer"):
        end.port.give(message)
        await turns()
    assert end.wire.written == b"answer"
    assert not task.done()
    end.port.give("eof")
    assert (await task).reason == ""


@pytest.mark.asyncio
async def test_what_came_before_the_connection_is_not_lost() -> None:
    end = End(Side.ACCEPTOR)
    end.port.give(b"early")
    end.port.give("eof")
    task = end.start()
    await turns()
    assert end.wire.written == b"early"
    assert end.port.sent[0] == "ready"
    end.reader.feed_eof()
    assert (await task).received == 5


@pytest.mark.asyncio
async def test_a_sender_stops_at_its_credit() -> None:
    end = End(Side.OPENER)
    task = end.start()
    end.reader.feed_data(bytes(2 * INITIAL_WINDOW))
    await turns(500)
    sent = sum(len(message) for message in end.port.sent)
    assert sent == INITIAL_WINDOW
    assert max(len(message) for message in end.port.sent) == READ_BYTES
    end.port.give("credit 5")
    await turns()
    assert end.port.sent[-1] == bytes(5)
    task.cancel()
    await asyncio.wait((task,))


@pytest.mark.asyncio
async def test_a_sender_waits_for_room_in_the_port() -> None:
    end = End(Side.OPENER)
    end.port.is_busy = True
    task = end.start()
    end.reader.feed_data(b"x")
    await turns()
    assert not end.port.sent
    end.port.make_room()
    await turns()
    assert list(end.port.sent) == [b"x"]
    task.cancel()
    await asyncio.wait((task,))


@pytest.mark.asyncio
async def test_a_connection_that_takes_nothing_grants_nothing() -> None:
    end = End(Side.ACCEPTOR)
    task = end.start()
    await turns()
    end.wire.stall()
    for _ in range(INITIAL_WINDOW // MAX_MESSAGE_BYTES):
        end.port.give(bytes(MAX_MESSAGE_BYTES))
        await turns(3)
    assert list(end.port.sent) == ["ready"]
    end.wire.go_on()
    await turns()
    grants = [message for message in end.port.sent if str(message).startswith("credit")]
    assert sum(int(str(grant).split()[1]) for grant in grants) == INITIAL_WINDOW
    task.cancel()
    await asyncio.wait((task,))


@pytest.mark.asyncio
async def test_no_credit_is_granted_before_the_bytes_are_written() -> None:
    """A whole window comes at once, so that its first consumption alone is worth a grant."""
    end = End(Side.ACCEPTOR)
    task = end.start()
    await turns()
    end.wire.stall()
    for _ in range(INITIAL_WINDOW // MAX_MESSAGE_BYTES):
        end.port.give(bytes(MAX_MESSAGE_BYTES))
    await turns()
    assert list(end.port.sent) == ["ready"]
    end.wire.go_on()
    await turns()
    assert list(end.port.sent) == ["ready", f"credit {INITIAL_WINDOW}"]
    assert len(end.wire.written) == INITIAL_WINDOW
    task.cancel()
    await asyncio.wait((task,))


@pytest.mark.asyncio
async def test_a_reset_of_the_peer_aborts_the_connection() -> None:
    end = End(Side.OPENER)
    task = end.start()
    await turns()
    end.port.give('reset {"reason": "port_refused", "message": "No."}')
    assert await task == Ending("port_refused", "No.", 0, 0)
    assert end.wire.is_aborted
    assert end.port.is_closed


@pytest.mark.asyncio
async def test_a_lost_connection_resets_the_channel() -> None:
    end = End(Side.ACCEPTOR)
    task = end.start()
    await turns()
    end.wire.lose()
    assert (await task).reason == "connection_reset"
    assert '"connection_reset"' in str(end.port.sent[-1])
    assert end.port.is_closed


@pytest.mark.asyncio
async def test_a_lost_channel_aborts_the_connection() -> None:
    end = End(Side.ACCEPTOR)
    task = end.start()
    await turns()
    end.port.lose()
    assert (await task).reason == "channel_lost"
    assert end.wire.is_aborted


@pytest.mark.asyncio
async def test_a_channel_that_closes_after_the_end_loses_nothing() -> None:
    end = End(Side.OPENER)
    task = end.start()
    end.reader.feed_eof()
    await turns()
    end.wire.stall()
    for message in ("ready", b"slow ", b"bytes", "eof"):
        end.port.give(message)
    await turns()
    end.port.lose()
    await turns()
    assert not task.done()
    end.wire.go_on()
    assert (await task).reason == ""
    assert end.wire.written == b"slow bytes"
    assert end.wire.has_ended
    assert not end.wire.is_aborted


@pytest.mark.asyncio
async def test_nonsense_of_the_peer_ends_the_stream_with_a_protocol_error() -> None:
    end = End(Side.ACCEPTOR)
    task = end.start()
    await turns()
    end.port.give("nonsense")
    assert (await task).reason == "protocol_error"
    assert '"protocol_error"' in str(end.port.sent[-1])
    assert end.wire.is_aborted


@pytest.mark.asyncio
async def test_cancelling_resets_and_frees() -> None:
    end = End(Side.ACCEPTOR)
    task = end.start()
    await turns()
    task.cancel()
    await asyncio.wait((task,))
    assert task.cancelled()
    assert '"session_closed"' in str(end.port.sent[-1])
    assert end.wire.is_aborted
    assert end.port.is_closed
    assert not [left for left in asyncio.all_tasks() if "Pump" in str(left.get_coro())]


@pytest.mark.asyncio
async def test_a_refused_stream_never_needs_a_connection() -> None:
    port = PortFake()
    pump = Pump(port=port, side=Side.ACCEPTOR)
    pump.refuse("channel_limit", "Too many.")
    assert list(port.sent) == ['reset {"reason": "channel_limit", "message": "Too many."}']
    assert port.is_closed
    assert (await pump.wait_ended()).reason == "channel_limit"


@pytest.mark.asyncio
async def test_a_stream_that_ended_before_it_was_carried_drops_the_connection() -> None:
    end = End(Side.ACCEPTOR)
    end.port.lose()
    assert (await end.start()).reason == "channel_lost"
    assert end.wire.is_aborted
