"""Polls through a hop that loses, doubles, delays, shortens and refuses them."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Callable

import pytest

from fairlead_tunnel.endpoints import Endpoint
from tests.contract.tunnel.http_world import http_door, polling
from tests.contract.tunnel.pumped_ends import MakeWorld
from tests.contract.tunnel.talks import echo, whole
from tests.eventually import SECONDS, eventually
from tests.fakes.buffering_hop import Choice, Fate, buffering_hop

pytestmark = pytest.mark.asyncio
SIZE = 8 * 1024 * 1024
QUARTER = 256 * 1024
EARLY = bytes(2000)


async def transfer(
    any_world: MakeWorld, choose: Choice, *, most_request: int = 1 << 62, most_answer: int = 1 << 62
) -> None:
    """Echo some bytes through a hop that does that."""
    async with (
        asyncio.timeout(SECONDS),
        any_world() as it,
        http_door(it) as url,
        buffering_hop(url, choose) as hop,
    ):
        hop.most_request, hop.most_answer = most_request, most_answer
        async with polling(it, Endpoint(hop.url)):
            port = await it.listen(f"127.0.0.1:{await it.serve(echo)}")
            content = secrets.token_bytes(SIZE)
            assert await whole(port, content) == content
            await it.settled()
        assert len(it.gateways) == 1


@pytest.mark.parametrize(
    "fate", [each for each in Fate if each is not Fate.PASSES], ids=lambda fate: fate.name.lower()
)
async def test_every_eighth_poll_of_both_sizes_meets_it(any_world: MakeWorld, fate: Fate) -> None:
    await transfer(any_world, lambda number, body: fate if number % 8 == 3 else Fate.PASSES)


@pytest.mark.parametrize(
    "fate",
    [Fate.REQUEST_LOST, Fate.ANSWER_LOST, Fate.ANSWER_CUT, Fate.DOUBLED],
    ids=lambda fate: fate.name.lower(),
)
async def test_the_first_poll_which_brings_the_ticket_meets_it(
    any_world: MakeWorld, fate: Fate
) -> None:
    await transfer(any_world, lambda number, body: fate if number == 1 else Fate.PASSES)


async def test_a_tenth_of_requests_and_of_answers_are_dropped(any_world: MakeWorld) -> None:
    dice = random.Random(7)  # noqa: S311

    def choose(number: int, body: bytes) -> Fate:
        roll = dice.random()
        return Fate.REQUEST_LOST if roll < 0.1 else Fate.ANSWER_LOST if roll < 0.2 else Fate.PASSES

    await transfer(any_world, choose)


async def test_requests_that_are_too_large_get_smaller(any_world: MakeWorld) -> None:
    await transfer(any_world, lambda number, body: Fate.PASSES, most_request=QUARTER)


async def test_answers_that_are_cut_get_smaller(any_world: MakeWorld) -> None:
    await transfer(any_world, lambda number, body: Fate.PASSES, most_answer=QUARTER)


async def test_requests_that_are_cut_for_their_length_get_smaller(any_world: MakeWorld) -> None:
    await transfer(
        any_world, lambda number, body: Fate.REQUEST_LOST if len(body) > QUARTER else Fate.PASSES
    )


@pytest.mark.parametrize(
    "answer",
    [
        (200, b"<!DOCTYPE html><title>Sign in</title>"),
        (200, b'{"error": "quota"}'),
        (200, b""),
        (403, b"forbidden"),
        (404, b"nothing here"),
        (429, b"slow down"),
        (500, b"oops"),
    ],
    ids=["html", "quota", "empty", "403", "404", "429", "500"],
)
async def test_an_endpoint_that_is_none_is_left_alone(
    any_world: MakeWorld, answer: tuple[int, bytes]
) -> None:
    async with (
        asyncio.timeout(SECONDS),
        any_world() as it,
        http_door(it) as url,
        buffering_hop(url) as good,
        buffering_hop(url, lambda number, body: answer) as bad,
        polling(it, Endpoint(bad.url), Endpoint(good.url)),
    ):
        port = await it.listen(f"127.0.0.1:{await it.serve(echo)}")
        content = secrets.token_bytes(SIZE)
        assert await whole(port, content) == content
        await it.settled()
        assert bad.requests < 8


async def test_a_channel_of_which_only_a_hop_has_heard_may_begin_anew_elsewhere(
    any_world: MakeWorld,
) -> None:
    refusals: list[int] = []

    def choose(number: int, body: bytes) -> Fate | tuple[int, bytes]:
        if len(body) < len(EARLY):
            return Fate.PASSES
        refusals.append(number)
        return 429, b"slow down"

    async def refused() -> int:
        return len(refusals)

    async def given_up() -> list[str]:
        recall: Callable[[], None] = getattr(it.client.driver, "recall")  # noqa: B009
        recall()  # which is nothing to a channel that counts as sent
        given = getattr(it.client, "given", [])
        return [reason for *_, reason in (*it.client.endings, *given)]

    async with (
        asyncio.timeout(SECONDS),
        any_world() as it,
        http_door(it) as url,
        buffering_hop(url, choose) as hop,
        polling(it, Endpoint(hop.url)),
    ):
        it.client.hold_seconds = 10.0  # so that the OPEN leaves with its bytes
        port = await it.listen(f"127.0.0.1:{await it.serve(echo)}")
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(EARLY)
        await eventually(refused, lambda count: count > 0)

        await eventually(given_up, ["open_unsent"].__eq__)
        assert it.gateways[0].wants == []
        for connection in getattr(it.client, "connections", []):
            connection.close()
        writer.close()
