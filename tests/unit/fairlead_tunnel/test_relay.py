"""The relay between a channel and a worker's connection, both in memory."""

from __future__ import annotations

import asyncio
import json
import struct

import pytest

from fairlead_tunnel.byte_channel import MAX_MESSAGE_BYTES, Message
from fairlead_tunnel.framed_port import FramedPort
from fairlead_tunnel.relay import MOST_QUEUED, Relay
from tests.fakes.message_port import PortFake, Wire

pytestmark = pytest.mark.asyncio


def frame(message: Message) -> bytes:
    kind, content = (1, message.encode()) if isinstance(message, str) else (0, message)
    return struct.pack("!IB", len(content) + 1, kind) + content


def reason_of(message: Message) -> str:
    assert isinstance(message, str)
    assert message.startswith("reset ")
    return str(json.loads(message.removeprefix("reset "))["reason"])


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class Middle:
    """A relay with its channel and its worker."""

    def __init__(self) -> None:
        self.near = PortFake()
        self.relay = Relay(near=self.near)
        self.wire = Wire()
        self.reader, writer = self.wire.connect()
        self.far = FramedPort(reader=self.reader, writer=writer)
        self.task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self.task = asyncio.create_task(self.relay.carry(self.far))
        await turns()

    async def say(self, *messages: Message) -> None:
        """Let the worker say something."""
        for message in messages:
            self.reader.feed_data(frame(message))
        await turns()

    async def ended(self) -> None:
        assert self.task is not None
        async with asyncio.timeout(5):
            await self.task


async def test_what_comes_early_waits_and_an_end_is_an_end_for_both() -> None:
    it = Middle()
    for early in (b"one", b"two", "eof"):
        it.near.give(early)
    await it.start()
    assert bytes(it.wire.written) == frame(b"one") + frame(b"two") + frame("eof")
    await it.say("ready", "credit 3", b"answer")
    assert list(it.near.sent) == ["ready", "credit 3", b"answer"]
    assert not it.near.is_closed
    await it.say("eof")
    assert it.near.sent[-1] == "eof"
    assert it.near.is_closed
    assert it.wire.has_ended
    # The worker may still have something under way: it is read, so that nothing is reset.
    assert not it.wire.is_closed
    await it.say("credit 8")
    it.reader.feed_eof()
    await it.ended()
    assert not it.wire.is_aborted
    assert it.near.sent[-1] == "eof"


@pytest.mark.parametrize(
    "last",
    [
        b"",
        frame("eof"),
        frame(b"whole") + b"\0\0",
        struct.pack("!IB", 0, 0),
        struct.pack("!IB", MAX_MESSAGE_BYTES + 2, 0),
        struct.pack("!IB", 1, 2),
        struct.pack("!IB", 2, 1) + b"\xff",
    ],
)
async def test_a_worker_that_is_lost_or_talks_nonsense_is_a_reset(last: bytes) -> None:
    it = Middle()
    await it.start()
    await it.say("ready")
    it.reader.feed_data(last)
    it.reader.feed_eof()
    await it.ended()
    assert reason_of(it.near.sent[-1]) == "host_lost"
    assert it.near.is_closed
    assert it.wire.is_closed


async def test_a_reset_goes_through_from_either_side() -> None:
    said = 'reset {"reason": "connection_reset", "message": "Lost."}'
    it = Middle()
    await it.start()
    await it.say("ready", said)
    assert list(it.near.sent) == ["ready", said]
    it.reader.feed_eof()
    await it.ended()
    other = Middle()
    await other.start()
    other.near.give(said)
    other.near.give(b"too late")
    other.reader.feed_eof()
    await other.ended()
    assert bytes(other.wire.written) == frame(said)
    assert not other.near.sent


async def test_a_client_that_gives_up_before_the_worker_comes_leaves_nothing() -> None:
    it = Middle()
    it.near.lose()
    await it.relay.wait_ended()
    await it.start()
    await it.ended()
    assert it.wire.is_aborted
    it.relay.refuse("port_refused", "No.")
    assert not it.near.sent


async def test_a_client_that_is_lost_cuts_the_worker_short() -> None:
    it = Middle()
    await it.start()
    it.near.give(b"half")
    it.near.lose()
    it.reader.feed_eof()
    await it.ended()
    assert bytes(it.wire.written) == frame(b"half")


async def test_who_ignores_credit_is_reset() -> None:
    early = Middle()
    for _ in range(MOST_QUEUED // MAX_MESSAGE_BYTES):
        early.near.give(bytes(MAX_MESSAGE_BYTES))
    assert reason_of(early.near.sent[-1]) == "protocol_error"
    early.far.abort()
    for message in (bytes(MAX_MESSAGE_BYTES + 1), "x" * (MAX_MESSAGE_BYTES + 1)):
        it = Middle()
        await it.start()
        it.near.give(message)
        assert reason_of(it.near.sent[-1]) == "protocol_error"
        assert reason_of(it.wire.written[5:].decode()) == "protocol_error"
        it.reader.feed_eof()
        await it.ended()
    late = Middle()
    await late.start()
    late.wire.queued = MOST_QUEUED + 1
    late.near.give(b"more")
    assert reason_of(late.near.sent[-1]) == "protocol_error"
    late.reader.feed_eof()
    await late.ended()


async def test_a_slow_client_holds_its_worker_up() -> None:
    it = Middle()
    it.near.is_busy = True
    await it.start()
    await it.say("ready", b"one", b"two")
    assert list(it.near.sent) == ["ready"]
    it.near.make_room()
    await turns()
    assert list(it.near.sent) == ["ready", b"one", b"two"]
    it.near.lose()
    it.reader.feed_eof()
    await it.ended()


async def test_a_session_that_is_closed_resets_both_sides() -> None:
    it = Middle()
    await it.start()
    assert it.task is not None
    it.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await it.task
    assert reason_of(it.near.sent[-1]) == "session_closed"
    assert reason_of(it.wire.written[5:].decode()) == "session_closed"
    assert it.wire.is_aborted
