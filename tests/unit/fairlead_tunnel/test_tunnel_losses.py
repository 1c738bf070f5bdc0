"""Tunnels whose acknowledgements are lost, or cannot say everything at once."""

from __future__ import annotations

from fairlead_tunnel.flights import MOST_UNDER_WAY
from fairlead_tunnel.frames import Ack, Ping
from fairlead_tunnel.tunnel import CHANNEL_WINDOW
from tests.unit.fairlead_tunnel.tunnel_pair import MOST, Pair, frames_of


def test_an_acknowledgement_that_another_carrier_lost_is_said_again() -> None:
    pair = Pair()
    pair.gateway.accepts = False
    pair.client.tunnel.open("db:5432")
    (batch,) = pair.client.batches(carrier=1)
    pair.gateway.take(batch)
    assert frames_of(pair.gateway.batch(carrier=2, answer=True)) == [Ack(((1, 1),))]
    pair.gateway.tunnel.carrier_lost(1)
    assert pair.gateway.batch(carrier=3) is None
    pair.gateway.tunnel.carrier_lost(2)
    assert frames_of(pair.gateway.batch(carrier=3)) == [Ack(((1, 1),))]
    assert pair.gateway.batch(carrier=3) is None


def test_an_acknowledgement_in_a_poll_that_was_answered_is_not_said_again() -> None:
    pair = Pair()
    channel = pair.client.tunnel.open("db:5432")
    pair.talk()
    pair.gateway.tunnel.write(channel, b"news")
    pair.client.take(pair.gateway.batches(carrier=1)[0])
    assert pair.client.batch(carrier=2, answer=True) is not None
    pair.client.tunnel.carrier_lost(2, heard=True)
    assert pair.client.batch(carrier=3, answer=True) is None
    pair.client.tunnel.write(channel, b"more")
    assert pair.client.batch(carrier=3) is not None
    pair.client.tunnel.carrier_lost(3, heard=True)  # it arrived in part
    pair.gateway.take(pair.client.batches(carrier=4)[0])
    assert pair.gateway.received[channel] == b"more"


def test_what_another_carrier_is_about_to_tell_is_told_again_to_who_waits_for_it() -> None:
    pair = Pair()
    pair.gateway.accepts = False
    pair.client.tunnel.open("db:5432")
    pair.gateway.take(pair.client.batches(carrier=1)[0])
    assert pair.gateway.batch(carrier=2, answer=True) is not None
    assert pair.gateway.batch(carrier=1, answer=True) is None
    pair.gateway.tunnel.restate()
    assert frames_of(pair.gateway.batch(carrier=1, answer=True)) == [Ack(((1, 1),))]


def test_polls_with_nothing_to_say_are_not_answered_when_the_acknowledgement_came() -> None:
    pair = Pair()
    pair.gateway.accepts = False
    pair.client.tunnel.open("db:5432")
    pair.gateway.take(pair.client.batches(carrier=1)[0])
    told = pair.gateway.batch(carrier=1, answer=True)
    assert told is not None
    pair.client.take(told)
    for number in (2, 3):
        poll = pair.client.tunnel.take_batch(
            carrier=number, most=MOST, now=0.0, alive=((number, number),)
        )
        assert poll is not None
        pair.gateway.take(b"".join(poll.pieces))
        assert pair.gateway.batch(carrier=number, answer=True) is None


def test_more_than_an_acknowledgement_can_say_is_said_by_the_next_ones() -> None:
    pair = Pair()
    channel = pair.client.tunnel.open("db:5432")
    pair.talk()
    pair.client.tunnel.write(channel, bytes(1024 * 1024))
    for number in range(600):
        batch = pair.client.batch(carrier=1 + number % 2, most=4096)
        if batch is not None and number % 2:
            pair.gateway.take(batch)
    pair.client.tunnel.carrier_lost(1)
    for now in range(20):
        pair.talk(now=float(now))
    assert len(pair.gateway.received[channel]) == 1024 * 1024
    assert pair.client.tunnel.writable(channel) == CHANNEL_WINDOW


def test_all_batches_but_the_first_may_come_early() -> None:
    pair = Pair()
    channel = pair.client.tunnel.open("db:5432")
    batches = []
    for _ in range(MOST_UNDER_WAY + 1):
        pair.client.tunnel.write(channel, b"x")
        batches += pair.client.batches()
    assert len(batches) == MOST_UNDER_WAY
    for batch in batches[1:]:
        pair.gateway.take(batch)
    assert pair.gateway.over is None
    pair.gateway.take(batches[0])
    assert pair.gateway.received[channel] == b"x" * MOST_UNDER_WAY


def test_a_ping_that_is_lost_is_sent_again() -> None:
    pair = Pair()
    pair.client.tunnel.ping()
    assert frames_of(pair.client.batch(carrier=1)) == [Ping()]
    pair.client.tunnel.carrier_lost(1)
    (again,) = pair.client.batches(carrier=2)
    assert frames_of(again) == [Ping()]
    pair.gateway.take(again)
    (told,) = pair.gateway.batches(now=1.0)
    pair.client.take(told)
    pair.client.tunnel.carrier_lost(2)
    assert pair.client.batch(carrier=3) is None
