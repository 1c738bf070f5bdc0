"""What the store of kept answers promises, for the fake and for Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from chassis.redis_client import open_redis
from signalling.kept_answers import KeptAnswer, KeptAnswers
from signalling.redis_answers import RedisAnswers
from tests.fakes.answers import FakeAnswers

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture(params=["fake", "redis"])
async def answers(request: pytest.FixtureRequest) -> AsyncIterator[KeptAnswers]:
    if request.param == "fake":
        yield FakeAnswers()
        return
    async with open_redis(request.getfixturevalue("redis_url")) as redis:
        await redis.flushall()
        yield RedisAnswers(redis=redis)


async def test_of_many_claims_one_wins(answers: KeptAnswers) -> None:
    found = await asyncio.gather(
        *(answers.claim("name", str(number), ttl_seconds=60) for number in range(8))
    )
    assert found.count(None) == 1
    (winner,) = {answer.digest for answer in found if answer is not None}
    assert found.index(None) == int(winner)
    assert await answers.claim("other", "digest", ttl_seconds=60) is None


async def test_an_answer_is_kept_and_a_failure_is_not(answers: KeptAnswers) -> None:
    assert await answers.claim("name", "digest", ttl_seconds=60) is None
    pending = await answers.claim("name", "digest", ttl_seconds=60)
    assert pending is not None
    assert pending.is_pending
    answer = KeptAnswer("digest", 200, "application/json", '{"é": 1}')
    await answers.keep("name", answer, ttl_seconds=60)
    assert await answers.claim("name", "digest", ttl_seconds=60) == answer
    await answers.drop("name")
    assert await answers.claim("name", "digest", ttl_seconds=60) is None


async def test_redis_forgets_after_the_time_to_live(redis: Redis) -> None:
    answers = RedisAnswers(redis=redis)
    await answers.claim("name", "digest", ttl_seconds=60)
    assert 59_000 < await redis.pttl("fairlead:idempotency:name") <= 60_000
    await answers.keep("name", KeptAnswer("digest", 200), ttl_seconds=90)
    assert 89_000 < await redis.pttl("fairlead:idempotency:name") <= 90_000
