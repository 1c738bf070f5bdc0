"""Tunnels: channels over carriers, their limits and their ends."""

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
    Ping,
    Reset,
    Segment,
    batch_header,
    decode,
    encode,
)
from fairlead_tunnel.tunnel import (
    Side,
    Tunnel,
)
from fairlead_tunnel.tunnel_events import (
    CarriersNamed,
    ChannelAccepted,
    ChannelFinished,
    ChannelReceived,
    ChannelReset,
)
from tests.unit.fairlead_tunnel.tunnel_pair import MOST, Pair, Peer, frames_of


def test_the_first_bytes_ride_with_the_open() -> None:
    pair = Pair()
    channel = pair.client.tunnel.open("db:5432")
    pair.client.tunnel.write(channel, b"hello")
    (batch,) = pair.client.batches()
    assert decode(batch)[2] == [Open(channel, "db:5432"), Segment(channel, 0, b"hello")]
    pair.gateway.take(batch)
    assert pair.gateway.wanted == {channel: "db:5432"}
    assert pair.gateway.received == {channel: b"hello"}


def test_bytes_go_both_ways_and_end_both_ways() -> None:
    pair = Pair()
    channel = pair.client.tunnel.open("db:5432")
    pair.client.tunnel.write(channel, b"question")
    pair.client.tunnel.finish(channel)
    pair.talk()
    assert pair.gateway.finished == {channel}
    pair.gateway.tunnel.write(channel, b"answer")
    pair.talk()
    assert pair.client.accepted == {channel}
    assert pair.client.finished == set()
    pair.gateway.tunnel.finish(channel)
    pair.settle()
    assert pair.gateway.received == {channel: b"question"}
    assert pair.client.received == {channel: b"answer"}
    assert pair.client.finished == {channel}
    assert pair.client.tunnel.channels == pair.gateway.tunnel.channels == 0


def test_an_open_is_held_until_its_first_bytes() -> None:
    client = Peer(Tunnel(side=Side.CLIENT))
    channel = client.tunnel.open("db:5432", hold_until=0.001)
    assert client.batch(now=0.0005) is None
    assert client.tunnel.deadline() == 0.001
    client.tunnel.write(channel, b"first")
    assert frames_of(client.batch(now=0.0005)) == [
        Open(channel, "db:5432"),
        Segment(channel, 0, b"first"),
    ]
    assert client.batch(now=0.002) is None


def test_an_open_is_held_no_longer_than_said() -> None:
    client = Peer(Tunnel(side=Side.CLIENT))
    channel = client.tunnel.open("db:5432", hold_until=0.001)
    assert frames_of(client.batch(now=0.001)) == [Open(channel, "db:5432")]
    assert client.tunnel.deadline() is None


@pytest.mark.parametrize("how", ["finish", "reset"])
def test_a_close_releases_the_hold(how: str) -> None:
    client = Peer(Tunnel(side=Side.CLIENT))
    channel = client.tunnel.open("db:5432", hold_until=0.001)
    if how == "finish":
        client.tunnel.finish(channel)
        ends: Frame = Fin(channel, 0)
    else:
        client.tunnel.reset(channel, "cancelled", "")
        ends = Reset(channel, 0, "cancelled", "")
    assert frames_of(client.batch(now=0.0)) == [Open(channel, "db:5432"), ends]


def test_many_small_writes_keep_their_order_before_the_open_leaves() -> None:
    pair = Pair()
    channel = pair.client.tunnel.open("db:5432", hold_until=1.0)
    for number in range(100):
        pair.client.tunnel.write(channel, number.to_bytes(2, "big"))
    (batch,) = pair.client.batches()
    assert len(decode(batch)[2]) == 2
    pair.gateway.take(batch)
    assert pair.gateway.received[channel] == b"".join(
        number.to_bytes(2, "big") for number in range(100)
    )


def test_what_a_lost_carrier_had_under_way_is_sent_again_at_the_same_offsets() -> None:
    pair = Pair()
    channel = pair.client.tunnel.open("db:5432")
    pair.client.tunnel.write(channel, b"one ")
    lost = pair.client.batch(carrier=1)
    assert lost is not None
    pair.client.tunnel.write(channel, b"two ")
    pair.client.tunnel.finish(channel)
    pair.client.tunnel.carrier_lost(1)
    again = pair.client.batch(carrier=2)
    assert frames_of(again) == [
        Open(channel, "db:5432"),
        Segment(channel, 0, b"one "),
        Segment(channel, 4, b"two "),
        Fin(channel, 8),
    ]
    assert again is not None
    pair.gateway.take(again)
    pair.gateway.take(lost)  # it was only late
    assert pair.gateway.received == {channel: b"one two "}
    assert pair.gateway.events.count(ChannelFinished(channel)) == 1
    assert [*pair.gateway.wanted] == [channel]


def test_a_batch_that_comes_twice_counts_once() -> None:
    pair = Pair()
    channel = pair.client.tunnel.open("db:5432")
    pair.client.tunnel.write(channel, b"hello")
    (batch,) = pair.client.batches()
    for _ in range(3):
        pair.gateway.take(batch)
    assert pair.gateway.received == {channel: b"hello"}
    assert len(pair.gateway.wanted) == 1


def test_batches_out_of_order_are_put_in_order() -> None:
    pair = Pair()
    channel = pair.client.tunnel.open("db:5432")
    content = bytes(range(256)) * 100
    pair.client.tunnel.write(channel, content)
    batches = pair.client.batches(most=4096)
    assert len(batches) > 8
    pair.gateway.take(batches[0])
    for batch in reversed(batches[1:]):
        pair.gateway.take(batch)
    assert pair.gateway.received == {channel: content}


def test_a_finished_channel_is_not_opened_again_by_a_repeated_open() -> None:
    pair = Pair()
    channel = pair.client.tunnel.open("db:5432")
    pair.client.tunnel.write(channel, b"x")
    pair.client.tunnel.finish(channel)
    first = pair.client.batch()
    assert first is not None
    pair.gateway.take(first)
    pair.gateway.tunnel.finish(channel)
    (last,) = pair.gateway.batches()
    # The client says that it has everything, but the gateway's acknowledgement of that is lost.
    pair.client.tunnel.carrier_lost(1)
    again = pair.client.batch(carrier=2)
    pair.client.take(last)
    assert pair.client.finished == {channel}
    for batch in pair.client.batches(carrier=2, now=1.0):
        pair.gateway.take(batch)
    assert again is not None
    pair.gateway.take(again)
    assert [*pair.gateway.wanted] == [channel]
    pair.settle()
    assert pair.client.tunnel.channels == pair.gateway.tunnel.channels == 0


def test_what_is_under_way_takes_its_turn() -> None:
    pair = Pair()
    bulk = pair.client.tunnel.open("bulk:1")
    pair.client.tunnel.write(bulk, bytes(1024 * 1024))
    first = pair.client.batch()
    late = pair.client.tunnel.open("late:1")
    pair.client.tunnel.write(late, b"late")
    assert first is not None
    found = frames_of(pair.client.batch())
    assert Segment(late, 0, b"late") in found


def test_a_reset_tells_the_other_side_and_frees_both() -> None:
    pair = Pair()
    channel = pair.client.tunnel.open("db:5432")
    pair.client.tunnel.write(channel, b"hello")
    pair.talk()
    pair.gateway.tunnel.reset(channel, "dial_refused", "Nothing listens there.")
    pair.client.tunnel.write(channel, b"under way")
    pair.settle()
    assert pair.client.resets == {
        channel: ChannelReset(channel, "dial_refused", "Nothing listens there.")
    }
    assert pair.gateway.resets == {}
    assert pair.client.tunnel.channels == pair.gateway.tunnel.channels == 0
    assert pair.client.tunnel.writable(channel) == 0
    pair.client.tunnel.write(channel, b"nothing")  # it may not know yet
    assert pair.client.batches() == []


def test_a_reset_meets_a_reset() -> None:
    pair = Pair()
    channel = pair.client.tunnel.open("db:5432")
    pair.talk()
    pair.client.tunnel.reset(channel, "cancelled", "")
    pair.gateway.tunnel.reset(channel, "connection_reset", "")
    pair.settle()
    assert pair.client.resets == pair.gateway.resets == {}
    assert pair.client.tunnel.channels == pair.gateway.tunnel.channels == 0


def test_acknowledgements_wait_a_while_for_something_to_ride_with() -> None:
    pair = Pair()
    pair.gateway.accepts = False
    pair.client.tunnel.open("db:5432")
    (batch,) = pair.client.batches(now=10.0)
    pair.gateway.take(batch, 10.0)
    assert pair.gateway.batch(now=10.0) is None
    due = pair.gateway.tunnel.deadline()
    assert due is not None
    assert 10.0 < due < 10.1
    assert frames_of(pair.gateway.batch(now=due)) == [Ack(((1, 1),))]
    assert pair.gateway.batch(now=due) is None


def test_a_carrier_that_answers_is_acknowledged_at_once() -> None:
    pair = Pair()
    pair.gateway.accepts = False
    pair.client.tunnel.open("db:5432")
    (batch,) = pair.client.batches()
    pair.gateway.take(batch)
    assert frames_of(pair.gateway.batch(answer=True)) == [Ack(((1, 1),))]
    assert pair.gateway.batch(answer=True) is None


def test_many_bytes_are_acknowledged_at_once() -> None:
    pair = Pair()
    channel = pair.client.tunnel.open("db:5432")
    pair.talk()
    pair.client.tunnel.write(channel, bytes(MOST))
    for batch in pair.client.batches():
        pair.gateway.take(batch)
    assert any(isinstance(each, Ack) for each in frames_of(pair.gateway.batch()))


def test_a_ping_is_answered() -> None:
    pair = Pair()
    pair.client.tunnel.ping()
    batch = pair.client.batch()
    assert frames_of(batch) == [Ping()]
    assert batch is not None
    pair.gateway.take(batch)
    assert frames_of(pair.gateway.batch(now=1.0)) == [Ack(((1, 1),))]


def test_what_older_polls_had_under_way_is_sent_again_when_they_are_not_alive() -> None:
    pair = Pair()
    channel = pair.client.tunnel.open("db:5432")
    pair.talk()
    pair.gateway.tunnel.write(channel, b"in the answer that is lost")
    lost = pair.gateway.batch(carrier=4)
    pair.gateway.tunnel.write(channel, b", in one that is not")
    kept = pair.gateway.batch(carrier=5)
    assert lost is not None
    assert kept is not None
    said = pair.client.tunnel.take_batch(carrier=6, most=MOST, now=0.0, alive=((5, 6),))
    assert said is not None
    pair.gateway.take(b"".join(said.pieces))
    assert pair.gateway.events[-1] == CarriersNamed(((5, 6),))
    again = pair.gateway.batch(carrier=6)
    assert Segment(channel, 0, b"in the answer that is lost") in frames_of(again)
    assert again is not None
    pair.client.take(kept)
    pair.client.take(again)
    assert pair.client.received == {channel: b"in the answer that is lost, in one that is not"}


def test_old_news_of_polls_is_not_taken_for_new() -> None:
    pair = Pair()
    channel = pair.client.tunnel.open("db:5432")
    pair.talk()
    older = pair.client.tunnel.take_batch(carrier=5, most=MOST, now=0.0, alive=((4, 4), (6, 6)))
    newer = pair.client.tunnel.take_batch(carrier=6, most=MOST, now=0.0, alive=((4, 6),))
    assert older is not None
    assert newer is not None
    pair.gateway.tunnel.write(channel, b"x")
    pair.gateway.batch(carrier=5)
    pair.gateway.take(b"".join(newer.pieces))
    pair.gateway.take(b"".join(older.pieces))
    batch = pair.gateway.batch(carrier=6)
    assert batch is None or not any(isinstance(each, Segment) for each in frames_of(batch))


def test_the_end_of_a_tunnel_is_told_once() -> None:
    pair = Pair()
    pair.client.tunnel.open("db:5432")
    pair.talk()
    pair.gateway.tunnel.close("gateway_draining", "The gateway is about to stop.")
    batch = pair.gateway.batch()
    assert frames_of(batch) == [
        Ack(((1, 1),)),
        Close("gateway_draining", "The gateway is about to stop."),
    ]
    assert pair.gateway.batch() is None
    assert batch is not None
    pair.client.take(batch)
    assert pair.client.over is not None
    assert pair.client.over.reason == "gateway_draining"
    assert pair.client.batch() is None
    with pytest.raises(Misuse):
        pair.client.tunnel.open("db:5432")


def test_a_tunnel_that_is_over_names_the_channels_that_nobody_has_heard_of() -> None:
    pair = Pair()
    tunnel = pair.client.tunnel
    told, held = tunnel.open("db:5432"), tunnel.open("db:5432", hold_until=9.0)
    assert pair.client.batch(carrier=1) is not None
    tunnel.carrier_lost(1)
    waiting = tunnel.open("db:5432")
    tunnel.write(waiting, b"hello")
    hello = tunnel.take_batch(carrier=2, most=MOST, now=0.0, alive=((2, 2),), opens=False)
    assert hello is not None
    frames = frames_of(b"".join(hello.pieces))
    assert frames == [Alive(((2, 2),)), Open(told, "db:5432")]
    assert tunnel.unsent() == [held, waiting]
    tunnel.close("tunnel_unknown", "The gateway has started anew.")
    assert tunnel.over is not None
    assert tunnel.over.unsent == {held, waiting}


def test_the_last_batch_of_a_gateway_says_which_channels_it_has_not_heard_of() -> None:
    pair = Pair()
    pair.gateway.accepts = False
    tunnel = pair.client.tunnel
    tunnel.open("db:5432")
    pair.gateway.take(b"".join(pair.client.batches()))
    crossing = tunnel.open("db:5432")
    assert pair.client.batch(carrier=1) is not None
    lost = tunnel.open("db:5432")
    assert pair.client.batch(carrier=2) is not None
    tunnel.carrier_lost(2)
    assert pair.client.batch(carrier=3) is not None
    pair.gateway.tunnel.close("drained", "The gateway stops.")
    last = pair.gateway.batch()
    assert last is not None
    pair.client.take(last)
    assert tunnel.over is not None
    assert tunnel.over.unsent == {crossing}
    assert lost not in tunnel.over.unsent  # it may have come over the carrier that was lost


def test_a_last_batch_that_does_not_say_what_came_leaves_it_open() -> None:
    pair = Pair()
    pair.client.tunnel.open("db:5432")
    assert pair.client.batch() is not None
    pair.client.take(batch_header(1, 1) + encode(Close("drained", "The gateway stops.")))
    assert pair.client.tunnel.over is not None
    assert pair.client.tunnel.over.unsent == set()


def test_what_a_hello_left_out_goes_with_the_next_batch() -> None:
    pair = Pair()
    channel = pair.client.tunnel.open("db:5432")
    assert pair.client.tunnel.take_batch(carrier=2, most=MOST, now=0.0, opens=False) is None
    assert frames_of(pair.client.batch(carrier=2)) == [Open(channel, "db:5432")]


def test_bytes_before_the_gateway_has_said_that_it_accepted() -> None:
    pair = Pair()
    channel = pair.client.tunnel.open("db:5432")
    pair.client.take(batch_header(1, 1) + encode(Segment(channel, 0, b"x")))
    pair.client.take(batch_header(2, 1) + encode(Accepted(channel)))
    assert pair.client.events == [ChannelAccepted(channel), ChannelReceived(channel, b"x")]
