"""Connections of the native core with each other: how they come up, and what they carry."""

from __future__ import annotations

import asyncio
import os
import select
from pathlib import Path

import pytest

import tests.contract.native.presence  # noqa: F401
from fairlead_native import (
    Connection,
    ConnectionOver,
    DescriptionInvalid,
    Engine,
    NegotiationRefused,
    Reason,
    State,
)
from tests.contract.native.peers import Inbox, MakeEngine, connected_pair, first_channel, trickle
from tests.eventually import eventually


def descriptors() -> set[str]:
    return {entry.name for entry in Path("/proc/self/fd").iterdir()}


@pytest.mark.asyncio
async def test_what_is_sent_arrives_in_both_directions(make_engine: MakeEngine) -> None:
    pair = await connected_pair(make_engine(), make_engine())
    assert pair.far_end.channel.label == "tcp:80"
    assert pair.far_end.channel.protocol == "a protocol"
    assert pair.far_end.channel.ordered
    assert pair.far_end.channel.reliable
    assert (pair.near.state, pair.near.reason) == (State.CONNECTED, Reason.NONE)
    for message in (b"b", b"bytes", "a text", b"x" * 65536):
        pair.near_end.channel.send(message)
        pair.far_end.channel.send(message)
        assert await pair.far_end.messages.get() == message
        assert await pair.near_end.messages.get() == message
    for refused in (b"", "", b"x" * 65537):
        with pytest.raises(ValueError, match="1 to 65536"):
            pair.near_end.channel.send(refused)


@pytest.mark.asyncio
async def test_short_messages_keep_their_place_among_long_ones(make_engine: MakeEngine) -> None:
    """A short one leaves at once where nothing waits, and never before what was sent earlier."""
    pair = await connected_pair(make_engine(), make_engine())
    sizes = (64, 1024, 65536, 64, 1025, 1, 65536, 65536, 65536, 16, 16)
    sent = [bytes([number % 251]) * size for number, size in enumerate(sizes * 40)]
    for message in sent:
        pair.near_end.channel.send(message)
        while pair.near_end.channel.queued > 512 * 1024:
            pair.near_end.room.clear()
            await pair.near_end.room.wait()
    for number, message in enumerate(sent):
        assert await pair.far_end.messages.get() == message, number


@pytest.mark.asyncio
async def test_a_short_message_that_is_sent_before_the_end_arrives(make_engine: MakeEngine) -> None:
    for _ in range(20):
        pair = await connected_pair(make_engine(), make_engine())
        pair.near_end.channel.send(b"last")
        pair.near_end.channel.close()
        assert await pair.far_end.messages.get() == b"last"
        await pair.far_end.closed.wait()
        pair.near.close()
        pair.near_end.channel.send(b"too late")


@pytest.mark.asyncio
async def test_what_is_sent_before_the_channel_is_open_arrives(make_engine: MakeEngine) -> None:
    near, far = make_engine().connect(), make_engine().connect()
    trickle(near, far)
    found = first_channel(far)
    channel = near.open_channel("early")
    channel.send(b"first")
    channel.send("second")
    channel.close()
    near.accept_answer(far.answer(near.offer()))
    inbox = Inbox(await found)
    assert await inbox.messages.get() == b"first"
    assert await inbox.messages.get() == "second"
    await inbox.closed.wait()


@pytest.mark.asyncio
async def test_a_complete_description_needs_no_trickle(make_engine: MakeEngine) -> None:
    near, far = make_engine().connect(), make_engine().connect()
    found = first_channel(far)
    near.open_channel("complete")
    assert "a=candidate:" not in near.offer()
    await near.wait_gathered()
    offer = near.description()
    assert "a=candidate:" in offer
    assert "a=end-of-candidates" in offer
    far.answer(offer)
    await far.wait_gathered()
    assert near.accept_answer(far.description())
    assert (await found).label == "complete"


@pytest.mark.asyncio
async def test_without_addresses_the_machines_own_are_offered() -> None:
    engine = Engine()
    try:
        connection = engine.connect()
        connection.offer()
        await connection.wait_gathered()
        assert "a=candidate:" in connection.description()
    finally:
        engine.close()


@pytest.mark.asyncio
async def test_candidates_may_be_early_late_doubled_and_nonsense(make_engine: MakeEngine) -> None:
    near, far = make_engine().connect(), make_engine().connect()
    found = first_channel(far)
    near.open_channel("any")
    lines: list[str] = []
    near.on_candidate = lines.append
    offer = near.offer()
    await near.wait_gathered()
    for line in lines * 2:
        far.add_candidate(line)
    far.add_candidate("candidate:1 1 udp 1 6d1e.local 9 typ host")
    far.add_candidate("nonsense")
    near.accept_answer(far.answer(offer))
    for line in lines * 2:
        far.add_candidate(f"a={line}\r\n")
    far.end_of_candidates()
    assert (await found).label == "any"
    assert await near.wait_state(State.CONNECTED)
    far.add_candidate(lines[0])
    assert await far.wait_state(State.CONNECTED)


@pytest.mark.asyncio
async def test_many_channels_each_way_do_not_mix(make_engine: MakeEngine) -> None:
    pair = await connected_pair(make_engine(), make_engine())
    arrived: asyncio.Queue[Inbox] = asyncio.Queue()
    for side in (pair.near, pair.far):
        side.on_channel = lambda channel: arrived.put_nowait(Inbox(channel))
    sides = [(pair.near, "near"), (pair.far, "far")] * 20
    opened = [side.open_channel(f"{name}:{at}") for at, (side, name) in enumerate(sides)]
    for channel in opened:
        channel.send(channel.label)
        channel.send(channel.label.encode())
        channel.close()
    for _ in opened:
        inbox = await arrived.get()
        assert await inbox.messages.get() == inbox.channel.label
        assert await inbox.messages.get() == inbox.channel.label.encode()
        await inbox.closed.wait()
    pair.near_end.channel.send("still there")
    assert await pair.far_end.messages.get() == "still there"


@pytest.mark.asyncio
@pytest.mark.parametrize("direction", ["up", "down"])
async def test_a_long_transfer_is_whole_and_stays_bounded(
    make_engine: MakeEngine, direction: str
) -> None:
    pair = await connected_pair(make_engine(), make_engine())
    sender, taker = pair.near_end, pair.far_end
    if direction == "down":
        sender, taker = taker, sender
    block, count = os.urandom(1024 * 1024), 24
    sent, taken = await asyncio.gather(
        sender.send_all(block, count), taker.take_all(len(block) * count)
    )
    assert sent == taken
    assert sender.channel.queued == 0


@pytest.mark.asyncio
async def test_a_reader_that_does_not_read_stops_its_peer(make_engine: MakeEngine) -> None:
    """The loop is busy while 40 MB are sent to it: they wait at the sender, not in memory here."""
    near_engine, far_engine = make_engine(), make_engine()
    pair = await connected_pair(near_engine, far_engine)
    content = os.urandom(65536)
    for _ in range(640):
        pair.near_end.channel.send(content)
    # Nothing here awaits, so that only the engines' threads run, until they come to a halt.
    left = [pair.near_end.channel.queued]
    while len(left) < 50 or left[-1] != left[-50]:
        select.select([], [], [], 0.01)
        left.append(pair.near_end.channel.queued)
    assert left[-1] > 20 * 1024 * 1024
    for _ in range(640):
        assert await pair.far_end.messages.get() == content
    assert pair.near_end.channel.queued == 0


@pytest.mark.asyncio
async def test_twenty_connections_at_once_and_all_is_freed() -> None:
    before = descriptors()
    near_engine, far_engine = Engine(addresses=["127.0.0.1"]), Engine(addresses=["127.0.0.1"])
    pairs = await asyncio.gather(*(connected_pair(near_engine, far_engine) for _ in range(20)))
    block = os.urandom(256 * 1024)
    sums = await asyncio.gather(
        *(pair.near_end.send_all(block, 4) for pair in pairs),
        *(pair.far_end.take_all(len(block) * 4) for pair in pairs),
    )
    assert sums[:20] == sums[20:]
    with_sockets = descriptors()
    for pair in pairs:
        pair.near.close()
    for pair in pairs:
        assert await pair.far.wait_state(State.CLOSED)
        assert pair.far.reason is Reason.PEER

    async def count() -> int:
        return len(descriptors())

    await eventually(count, lambda found: found <= len(with_sockets) - 40)
    near_engine.close()
    far_engine.close()
    assert descriptors() <= before  # what a test before left to be closed may be gone meanwhile


@pytest.mark.asyncio
async def test_steps_out_of_place_are_refused_and_change_nothing(make_engine: MakeEngine) -> None:
    engine = make_engine()
    near = engine.connect()
    with pytest.raises(NegotiationRefused):
        near.restart()
    for nonsense in ("", "v=0", "v=0\r\nm=audio 9 RTP/AVP 0\r\n", "\0"):
        with pytest.raises(DescriptionInvalid):
            near.answer(nonsense)
    assert not near.accept_answer("whatever: no answer is waited for")
    pair = await connected_pair(engine, make_engine())
    with pytest.raises(NegotiationRefused):
        pair.near.offer()
    assert not pair.near.accept_answer(pair.far.description())
    pair.near_end.channel.send("goes on")
    assert await pair.far_end.messages.get() == "goes on"


@pytest.mark.asyncio
async def test_a_closed_connection_says_so(make_engine: MakeEngine) -> None:
    pair = await connected_pair(make_engine(), make_engine())
    pair.near.close()
    pair.near.close()
    await asyncio.gather(pair.near_end.closed.wait(), pair.far_end.closed.wait())
    assert await pair.near.wait_state(State.CLOSED)
    assert pair.near.reason is Reason.LOCAL
    assert await pair.far.wait_state(State.CLOSED)
    assert pair.far.reason is Reason.PEER
    pair.near_end.channel.send("dropped")
    steps = (pair.near.description, pair.near.restart, lambda: pair.near.open_channel("no"))
    for step in steps:
        with pytest.raises(ConnectionOver):
            step()
    pair.near.add_candidate("candidate:1 1 udp 1 127.0.0.1 9 typ host")
    pair.near.end_of_candidates()


@pytest.mark.asyncio
async def test_a_callback_that_raises_is_reported_and_the_rest_is_told(
    make_engine: MakeEngine,
) -> None:
    pair = await connected_pair(make_engine(), make_engine())
    reported: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
    fault = RuntimeError("a fault of the program")
    last = asyncio.Event()

    def take(message: bytes | str) -> None:
        if message == "last":
            last.set()
            return
        raise fault

    pair.far_end.channel.attach(on_message=take)
    pair.near_end.channel.send("first")
    pair.near_end.channel.send("last")
    await last.wait()
    assert reported == [fault]


@pytest.mark.asyncio
async def test_closing_before_anything_was_said_frees_all() -> None:
    before = descriptors()
    engine = Engine(addresses=["127.0.0.1"])
    idle, offered = engine.connect(), engine.connect()
    channel = offered.open_channel("never")
    offered.offer()
    connections: list[Connection] = [idle, offered]
    engine.close()
    engine.close()
    assert [connection.state for connection in connections] == [State.CLOSED] * 2
    assert channel.is_closed
    assert descriptors() == before
