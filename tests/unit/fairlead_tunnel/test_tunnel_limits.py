"""Tunnels: how much they keep, and what no peer may send."""

from __future__ import annotations

import pytest

from fairlead_tunnel.byte_channel import Misuse
from fairlead_tunnel.frames import (
    Accepted,
    Ack,
    Alive,
    Close,
    Fin,
    Frame,
    Open,
    Reset,
    Segment,
    Window,
    batch_header,
    encode,
)
from fairlead_tunnel.records import MAX_BATCH_BYTES
from fairlead_tunnel.tunnel import (
    CHANNEL_WINDOW,
    TUNNEL_WINDOW,
    Side,
    Tunnel,
    TunnelFull,
)
from fairlead_tunnel.tunnel_events import (
    ChannelDrained,
    ChannelReceived,
)
from tests.unit.fairlead_tunnel.tunnel_pair import Pair, Peer, frames_of


def test_a_slow_reader_stops_its_own_channel_only() -> None:
    pair = Pair()
    pair.gateway.consumes = False
    slow, quick = pair.client.tunnel.open("slow:1"), pair.client.tunnel.open("quick:1")
    pair.client.tunnel.write(slow, bytes(CHANNEL_WINDOW))
    pair.settle()
    assert len(pair.gateway.received[slow]) == CHANNEL_WINDOW
    pair.client.tunnel.write(slow, b"more")
    pair.client.tunnel.write(quick, b"quick")
    pair.settle()
    assert pair.gateway.received[quick] == b"quick"
    assert len(pair.gateway.received[slow]) == CHANNEL_WINDOW
    pair.gateway.tunnel.consumed(slow, CHANNEL_WINDOW // 4)
    pair.settle()
    assert pair.gateway.received[slow][-4:] == b"more"


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_channels_that_have_much_to_send_get_the_same(count: int) -> None:
    tunnel = Pair().client.tunnel
    channels = [tunnel.open("bulk:1") for _ in range(count)]
    for channel in channels:
        tunnel.write(channel, bytes(CHANNEL_WINDOW))
    sent = dict.fromkeys(channels, 0)
    for _ in range(4 * count):
        batch = tunnel.take_batch(carrier=1, most=MAX_BATCH_BYTES, now=0.0)
        assert batch is not None
        for frame in frames_of(b"".join(batch.pieces)):
            if isinstance(frame, Segment):
                sent[frame.channel] += len(frame.content)
        assert max(sent.values()) - min(sent.values()) < MAX_BATCH_BYTES


def test_no_more_than_8_mib_of_a_channel_are_kept_even_before_its_open_has_left() -> None:
    pair = Pair()
    channel = pair.client.tunnel.open("db:5432", hold_until=1.0)
    assert pair.client.tunnel.writable(channel) == CHANNEL_WINDOW
    assert pair.client.tunnel.write(channel, bytes(CHANNEL_WINDOW + 1)) == CHANNEL_WINDOW
    assert pair.client.tunnel.writable(channel) == 0
    assert pair.client.tunnel.write(channel, b"x") == 0
    pair.settle()
    assert ChannelDrained(channel) in pair.client.events
    assert pair.client.tunnel.writable(channel) == CHANNEL_WINDOW


def test_all_channels_together_have_a_limit() -> None:
    pair = Pair()
    pair.gateway.consumes = False
    channels = [pair.client.tunnel.open(f"db:{port}") for port in range(1, 10)]
    for channel in channels[:8]:
        pair.client.tunnel.write(channel, bytes(CHANNEL_WINDOW))
    assert pair.client.tunnel.writable(channels[8]) == 0
    pair.settle()
    pair.client.tunnel.write(channels[8], b"waits")
    pair.settle()
    assert sum(map(len, pair.gateway.received.values())) == TUNNEL_WINDOW
    for channel in channels[:2]:
        pair.gateway.tunnel.consumed(channel, CHANNEL_WINDOW)
    pair.settle()
    assert pair.gateway.received[channels[8]] == b"waits"


def test_seven_slow_readers_do_not_stop_the_eighth_channel() -> None:
    pair = Pair()
    pair.gateway.consumes = False
    for _ in range(7):
        channel = pair.client.tunnel.open("slow:1")
        pair.client.tunnel.write(channel, bytes(CHANNEL_WINDOW))
    quick = pair.client.tunnel.open("quick:1")
    for _ in range(4):
        pair.client.tunnel.write(quick, bytes(CHANNEL_WINDOW))
        pair.settle()
        assert len(pair.gateway.received.pop(quick)) == CHANNEL_WINDOW
        pair.gateway.tunnel.consumed(quick, CHANNEL_WINDOW)
        pair.settle()


def test_what_slow_readers_leave_does_not_keep_others_from_writing() -> None:
    pair = Pair()
    pair.gateway.consumes = False
    slow = [pair.client.tunnel.open("slow:1") for _ in range(8)]
    for _ in range(2):
        for channel in slow:
            pair.client.tunnel.write(channel, bytes(CHANNEL_WINDOW))
        pair.settle()
    quick = pair.client.tunnel.open("quick:1")
    assert pair.client.tunnel.write(quick, b"waits") == 0
    pair.settle()
    assert ChannelDrained(quick) not in pair.client.events
    pair.gateway.tunnel.consumed(slow[0], CHANNEL_WINDOW)
    pair.settle()
    assert ChannelDrained(quick) in pair.client.events
    assert pair.client.tunnel.writable(quick) > 0


@pytest.mark.parametrize("by_peer", [False, True])
def test_a_channel_that_was_given_up_is_not_said_to_have_room(by_peer: bool) -> None:
    pair = Pair()
    channel = pair.client.tunnel.open("db:5432")
    assert pair.client.tunnel.write(channel, bytes(CHANNEL_WINDOW + 1)) == CHANNEL_WINDOW
    for batch in pair.client.batches(most=4096)[:1]:
        pair.gateway.take(batch)
    (pair.gateway if by_peer else pair.client).tunnel.reset(channel, "cancelled", "")
    pair.settle()
    assert ChannelDrained(channel) not in pair.client.events


def test_what_a_reset_channel_left_unread_does_not_use_up_the_tunnel() -> None:
    pair = Pair()
    pair.gateway.consumes = False
    for _ in range(20):
        channel = pair.client.tunnel.open("db:5432")
        pair.client.tunnel.write(channel, bytes(CHANNEL_WINDOW))
        pair.settle()
        assert len(pair.gateway.received[channel]) == CHANNEL_WINDOW
        pair.client.tunnel.reset(channel, "cancelled", "")
        pair.settle()
    assert len(pair.gateway.resets) == 20


def test_a_channel_more_than_a_tunnel_has_is_reset_at_the_gateway() -> None:
    pair = Pair(gateway=Peer(Tunnel(side=Side.GATEWAY, most_channels=2)))
    channels = [pair.client.tunnel.open("db:5432") for _ in range(3)]
    pair.settle()
    assert [*pair.gateway.wanted] == channels[:2]
    assert {each: reset.reason for each, reset in pair.client.resets.items()} == {
        channels[2]: "channel_limit"
    }


def test_a_client_opens_no_more_than_it_may() -> None:
    client = Tunnel(side=Side.CLIENT, most_channels=1)
    client.open("db:5432")
    with pytest.raises(TunnelFull):
        client.open("db:5432")


OPENED = Open(1, "db:5432")


@pytest.mark.parametrize(
    ("side", "frames"),
    [
        (Side.CLIENT, [OPENED]),
        (Side.CLIENT, [Alive(((1, 1),))]),
        (Side.CLIENT, [Segment(9, 0, b"x")]),
        (Side.GATEWAY, [Segment(1, 0, b"x")]),
        (Side.GATEWAY, [Fin(1, 0)]),
        (Side.GATEWAY, [Reset(1, 0, "gone", "")]),
        (Side.GATEWAY, [Window(1, 1)]),
        (Side.GATEWAY, [OPENED, Accepted(1)]),
        (Side.GATEWAY, [OPENED, Open(1, "another:1")]),
        (Side.GATEWAY, [Open(1, "")]),
        (Side.GATEWAY, [OPENED, Segment(1, CHANNEL_WINDOW, b"x")]),
        (Side.GATEWAY, [OPENED, Fin(1, 5), Fin(1, 6)]),
        (Side.GATEWAY, [OPENED, Fin(1, 5), Segment(1, 5, b"x")]),
        (Side.GATEWAY, [OPENED, Segment(1, 4, b"xx"), Fin(1, 5)]),
        (Side.GATEWAY, [OPENED, Fin(1, CHANNEL_WINDOW + 1)]),
        (Side.GATEWAY, [OPENED, Fin(1, 5), Reset(1, 4, "gone", "")]),
        (Side.GATEWAY, [Ack(((1, 1),))]),
        (Side.GATEWAY, [Ack(()), OPENED, Ack(())]),
        (Side.GATEWAY, [Alive(((1, 1),)), Alive(((1, 1),))]),
        (Side.GATEWAY, [OPENED, *(Segment(1, 2 * each + 1, b"x") for each in range(8194))]),
        (
            Side.GATEWAY,
            [
                frame
                for channel in range(1, 36)
                for frame in (
                    Open(channel, "db:5432"),
                    *(Segment(channel, 2 * each + 1, b"x") for each in range(8000)),
                )
            ],
        ),
        (
            Side.GATEWAY,
            [
                frame
                for channel in range(1, 10)
                for frame in (Open(channel, "db:5432"), Fin(channel, CHANNEL_WINDOW))
            ],
        ),
    ],
)
def test_what_no_peer_may_send_ends_the_tunnel(side: Side, frames: list[Frame]) -> None:
    peer = Peer(Tunnel(side=side))
    peer.take(batch_header(1, 1) + b"".join(map(encode, frames)))
    assert peer.over is not None
    assert peer.over.reason == "protocol_error"
    last = frames_of(peer.batch())[-1]
    assert isinstance(last, Close)
    assert last.reason == "protocol_error"


def test_few_bytes_that_wait_do_not_hold_a_long_batch() -> None:
    pair = Pair()
    slow, bulk = pair.client.tunnel.open("slow:1"), pair.client.tunnel.open("bulk:1")
    pair.client.tunnel.write(slow, b"few")
    pair.client.tunnel.write(bulk, bytes(200_000))
    (batch,) = pair.client.batches()
    pair.gateway.take(batch)
    held = {
        event.channel: memoryview(event.content).obj
        for event in pair.gateway.events
        if isinstance(event, ChannelReceived)
    }
    assert held[slow] == b"few"
    assert held[bulk] is batch


def test_a_client_that_leaves_numbers_of_channels_out_is_not_remembered_for_ever() -> None:
    peer = Peer(Tunnel(side=Side.GATEWAY))
    told = 0
    for number in range(1, 40):
        channels = range(2000 * number, 2000 * (number + 1), 2)
        frames = [each for one in channels for each in (Open(one, "x"), Reset(one, 0, "gone", ""))]
        acked = [Ack(((1, told),))] if told else []
        peer.take(batch_header(number, number) + b"".join(map(encode, [*acked, *frames])))
        told += len(peer.batches())
        if peer.over is not None:
            break
    assert peer.over is not None
    assert peer.over.message == "channels are not numbered one after the other"


def test_bytes_that_are_no_batch_end_the_tunnel() -> None:
    peer = Peer(Tunnel(side=Side.GATEWAY))
    peer.take(b"no batch at all, but long enough")
    assert peer.over is not None
    assert peer.over.reason == "protocol_error"


@pytest.mark.parametrize("target", ["", "x" * 256])
def test_a_target_that_is_none(target: str) -> None:
    with pytest.raises(Misuse):
        Tunnel(side=Side.CLIENT).open(target)


def test_a_batch_has_room_for_what_has_to_be_said() -> None:
    with pytest.raises(Misuse):
        Tunnel(side=Side.CLIENT).take_batch(carrier=1, most=4095, now=0.0)
