"""A client's polls at a gateway, in memory: when they leave, how long they are held, who wakes."""

from __future__ import annotations

import asyncio
import errno

import pytest

from fairlead_tunnel.endpoints import FIRST_ROOM, IDLE_SLOTS, WORKERS_PER_ENDPOINT
from fairlead_tunnel.handshake import AttachRefused
from fairlead_tunnel.http_posts import Answer, NotConnected
from fairlead_tunnel.poll_pace import FIRST_WINDOW
from fairlead_tunnel.poll_wire import HEAD_BYTES
from tests.fakes.poll_room import PollRoom, poll_room
from tests.fakes.virtual_time import run


def now() -> float:
    """Return the time of the loop."""
    return asyncio.get_running_loop().time()


async def opened(room: PollRoom) -> None:
    """Open a channel, with a byte each way."""
    await room.carrier.ready
    room.client.open()
    room.client.say(b"?")
    await room.gateway.heard(1)
    room.gateway.say(b"!")
    await room.client.heard(1)


def test_an_answer_waits_for_no_window() -> None:
    async def scenario() -> None:
        async with poll_room() as room:
            await opened(room)
            for _ in range(20):
                await asyncio.sleep(3.0)
                heard = len(room.client.received)
                started = now()
                room.gateway.say(b"news")
                await room.client.heard(heard + 4)
                assert now() == started

    run(scenario())


def test_what_the_target_says_at_once_rides_with_the_poll_that_asked() -> None:
    async def scenario() -> None:
        async with poll_room() as room:
            await opened(room)
            room.gateway.answers = True
            await asyncio.sleep(60.0)
            polls = len(room.posts.sent)
            for count in range(10):
                room.client.say(b"x")
                await room.client.heard(2 + count)
            assert len(room.posts.sent) - polls == 10

    run(scenario())


def test_a_silent_tunnel_polls_as_often_as_its_windows_end() -> None:
    async def scenario() -> None:
        async with poll_room() as room:
            await opened(room)
            await asyncio.sleep(60.0)
            polls = len(room.posts.sent)
            await asyncio.sleep(800.0)
            assert room.posts.under_way == IDLE_SLOTS
            assert len(room.posts.sent) - polls <= IDLE_SLOTS * 800 / FIRST_WINDOW + 1

    run(scenario())


def test_a_tunnel_without_channels_keeps_one_poll() -> None:
    async def scenario() -> None:
        async with poll_room() as room:
            await room.carrier.ready
            await asyncio.sleep(60.0)
            assert room.posts.under_way == 1
            assert not room.running.done()

    run(scenario())


def test_one_piece_of_news_wakes_one_poll() -> None:
    async def scenario() -> None:
        async with poll_room("http://a", "http://b") as room:
            await opened(room)
            await asyncio.sleep(60.0)
            assert room.posts.under_way == 2 * IDLE_SLOTS
            polls = len(room.posts.sent)
            room.gateway.say(b"news")
            await room.client.heard(5)
            await asyncio.sleep(0.01)
            assert len(room.posts.sent) - polls == 1

    run(scenario())


def test_several_polls_carry_one_channel_at_once_and_no_more_than_the_workers() -> None:
    async def scenario() -> None:
        async with poll_room() as room:
            await opened(room)
            for _ in range(8):
                room.client.say(bytes(1024 * 1024 - 1))
            await room.gateway.heard(8 * (1024 * 1024 - 1))
            assert room.posts.most_under_way > 1
            assert room.posts.most_under_way <= WORKERS_PER_ENDPOINT + IDLE_SLOTS

    run(scenario())


@pytest.mark.parametrize("which", [2, 3, 4, 5, 6])
def test_a_poll_that_is_swallowed_is_noticed_and_its_bytes_sent_again(which: int) -> None:
    async def scenario() -> None:
        async with poll_room(swallows=lambda number, url: number == which) as room:
            started = now()
            await opened(room)
            room.client.say(b"more")
            await room.gateway.heard(5)
            assert room.gateway.received == b"?more"
            assert room.client.received == b"!"
            assert now() - started < 2.0

    run(scenario())


def test_a_slot_of_a_swallowed_poll_is_free_again() -> None:
    async def scenario() -> None:
        swallowed = {"now": False}
        async with poll_room(swallows=lambda number, url: swallowed["now"]) as room:
            await opened(room)
            swallowed["now"] = True
            await asyncio.sleep(30.0)  # every poll of now is swallowed
            assert room.carrier.pool.idle <= IDLE_SLOTS
            swallowed["now"] = False
            await asyncio.sleep(120.0)
            assert room.posts.under_way == IDLE_SLOTS
            room.gateway.say(b"back")
            await room.client.heard(5)
            assert room.client.received == b"!back"

    run(scenario())


def test_nobody_polls_while_all_endpoints_are_left_alone() -> None:
    async def scenario() -> None:
        is_down = {"now": False}
        refused = ConnectionRefusedError(errno.ECONNREFUSED, "nobody listens")
        async with poll_room(
            "http://a", "http://b", meets=lambda number, url: refused if is_down["now"] else None
        ) as room:
            await opened(room)
            is_down["now"] = True
            room.client.say(b"lost?")
            await asyncio.sleep(1.0)
            polls = len(room.posts.sent)
            await asyncio.sleep(1.5)
            assert len(room.posts.sent) == polls
            await asyncio.sleep(20.0)
            assert len(room.posts.sent) - polls <= 6  # one probe of each, at 3, 9 and 21 s
            is_down["now"] = False
            await room.gateway.heard(6)
            assert room.gateway.received == b"?lost?"

    run(scenario())


def test_a_hop_that_answers_at_once_with_nothing_is_asked_less() -> None:
    async def scenario() -> None:
        async with poll_room(meets=lambda number, url: PAGE if number > 1 else None) as room:
            await room.carrier.ready
            await asyncio.sleep(20.0)
            assert len(room.posts.sent) <= 3

    run(scenario())


PAGE = Answer(200, b"<html>Sign in", 0.0)


def test_news_wait_for_the_next_poll_when_nobody_polls() -> None:
    async def scenario() -> None:
        is_away = {"now": False}
        async with poll_room(swallows=lambda number, url: is_away["now"]) as room:
            await opened(room)
            is_away["now"] = True
            await asyncio.sleep(9.0)  # what the gateway held is over
            room.gateway.say(b"news")
            is_away["now"] = False
            await room.client.heard(5)
            assert room.client.received == b"!news"

    run(scenario())


def test_a_gateway_gives_polls_up_when_nobody_polls_for_a_minute() -> None:
    async def scenario() -> None:
        is_away = {"now": False}
        async with poll_room(swallows=lambda number, url: is_away["now"]) as room:
            await opened(room)
            is_away["now"] = True
            await asyncio.sleep(69.0)
            assert room.gateway.driver.carriers == 0
            is_away["now"] = False
            with pytest.raises(AttachRefused) as refused:
                await room.running
            assert refused.value.reason == "carrier_unknown"
            assert room.client.over_reason == ""  # another carrier may go on

    run(scenario())


def test_a_gateway_that_ended_while_nobody_polled_says_why() -> None:
    async def scenario() -> None:
        is_away = {"now": False}
        async with poll_room(swallows=lambda number, url: is_away["now"]) as room:
            await opened(room)
            is_away["now"] = True
            await asyncio.sleep(9.0)
            room.gateway.driver.close("drained", "The gateway stops.")
            is_away["now"] = False
            await room.carrier.gone
            assert room.client.over_reason == "drained"

    run(scenario())


def test_the_last_word_of_a_client_arrives() -> None:
    async def scenario() -> None:
        async with poll_room() as room:
            await opened(room)
            room.client.driver.close("closed", "Enough.")
            await room.running
            assert room.gateway.over_reason == "closed"
            assert room.posts.under_way == 0

    run(scenario())


@pytest.mark.parametrize("turns", range(8))
def test_a_poll_is_lost_however_far_it_was_when_polling_ended(turns: int) -> None:
    async def scenario() -> None:
        async with poll_room() as room:
            await opened(room)
            await asyncio.sleep(60.0)
            room.client.say(b"lost?")
            for _ in range(turns):
                await asyncio.sleep(0)
            room.running.cancel()
            await asyncio.wait((room.running,))
            assert room.client.driver.carriers == 0
            assert room.carrier.pool.can_take(now())
            assert room.carrier.pool._active == room.carrier.pool.idle == 0

    run(scenario())


def cut_between_records(body: bytes) -> bytes:
    """Leave as many whole records of a poll's body as have 300 KiB together."""
    place = HEAD_BYTES if body.startswith(b"FLP") else 1
    if place == 1 and not body.startswith(b"\x00"):
        return body
    while len(body) > 300 * 1024:
        end = place + 12 + int.from_bytes(body[place + 8 : place + 12], "big")
        if end > 300 * 1024:
            return body[:place]
        place = end
    return body


@pytest.mark.parametrize("direction", ["up", "down"])
def test_bodies_that_are_cut_between_records_get_smaller(direction: str) -> None:
    async def scenario() -> None:
        async with poll_room() as room:
            await opened(room)
            sender, other = room.client, room.gateway
            if direction == "down":
                sender, other = other, sender
            room.posts.cuts = cut_between_records
            for _ in range(6):
                sender.say(bytes(1024 * 1024 - 1))
            await other.heard(1 + 6 * (1024 * 1024 - 1))
            endpoint = room.carrier.pool._endpoints[0]
            learnt = endpoint.up if direction == "up" else endpoint.down
            assert learnt.at(now()) < FIRST_ROOM

    run(scenario())


@pytest.mark.parametrize("rate", [50_000, 400_000])
def test_a_slow_way_up_gets_smaller_bodies_and_all_bytes(rate: int) -> None:
    async def scenario() -> None:
        async with poll_room() as room:
            await opened(room)
            room.posts.upload_rate = rate
            for _ in range(4):
                room.client.say(bytes(1024 * 1024 - 1))
            async with asyncio.timeout(600.0):
                await room.gateway.heard(1 + 4 * (1024 * 1024 - 1))
            assert room.carrier.pool._endpoints[0].up.at(now()) < FIRST_ROOM

    run(scenario())


def test_bodies_stay_as_large_as_they_are_where_nothing_at_all_is_answered() -> None:
    async def scenario() -> None:
        is_down = False
        async with poll_room() as room:
            room.posts.swallows = lambda number, url: is_down
            await opened(room)
            is_down = True
            await asyncio.sleep(10.0)  # what was under way is answered
            for _ in range(4):
                room.client.say(bytes(1024 * 1024 - 1))
            await asyncio.sleep(20.0)
            is_down = False
            await room.gateway.heard(1 + 4 * (1024 * 1024 - 1))
            assert room.carrier.pool._endpoints[0].up.at(now()) == FIRST_ROOM

    run(scenario())


@pytest.mark.parametrize(
    ("fault", "is_unsent"),
    [
        (NotConnected(ConnectionRefusedError(errno.ECONNREFUSED, "nobody listens")), True),
        (NotConnected(TimeoutError()), True),
        (Answer(429, b"slowly", 0.0), True),
        (Answer(413, b"too long", 0.0), True),
        (Answer(403, b"no", 0.0), False),
        (Answer(502, b"bad gateway", 0.0), False),
        (ConnectionResetError(errno.ECONNRESET, "it was reset"), False),
    ],
    ids=["refused", "timeout", "429", "413", "403", "502", "reset"],
)
def test_a_channel_counts_as_sent_once_its_poll_may_have_reached_a_gateway(
    fault: Answer | OSError, is_unsent: bool
) -> None:
    async def scenario() -> None:
        is_down = {"now": False}
        async with poll_room(meets=lambda number, url: fault if is_down["now"] else None) as room:
            await room.carrier.ready
            is_down["now"] = True
            room.client.open()
            room.client.say(b"?")
            await asyncio.sleep(1.0)
            assert room.client.driver._tunnel.unsent() == ([1] if is_unsent else [])
            if is_unsent:
                is_down["now"] = False
                await room.gateway.heard(1)
                assert room.client.driver._tunnel.unsent() == []

    run(scenario())
