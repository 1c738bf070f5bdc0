"""An announcement is there while its process lives, comes back by itself and leaves at the end."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest
from redis.asyncio import Redis

from chassis.announcement import Announcer
from chassis.redis_client import open_redis
from tests.eventually import eventually
from tests.redis_fixture import RedisServer

KEY = "fairlead:test:announced"


async def until_announced(redis: Redis) -> dict[str, str]:
    async def look() -> dict[bytes | str, bytes | str]:
        return await redis.hgetall(KEY)

    found = await eventually(look)
    return {str(name): str(value) for name, value in found.items() if name != "announcer"}


@pytest.mark.asyncio
async def test_it_is_there_at_once_under_a_lease_and_gone_at_the_end(redis: Redis) -> None:
    async with Announcer(redis=redis, key=KEY, payload=lambda: {"host_id": "hst_1", "n": "1"}):
        assert await until_announced(redis) == {"host_id": "hst_1", "n": "1"}
        assert 5_000 < await redis.pttl(KEY) <= 15_000
    assert not await redis.exists(KEY)


@pytest.mark.asyncio
async def test_it_comes_back_within_a_period_after_redis_lost_it(redis: Redis) -> None:
    async with Announcer(redis=redis, key=KEY, payload=lambda: {"n": "1"}, period_seconds=0.02):
        await redis.flushall()
        assert await until_announced(redis) == {"n": "1"}


@pytest.mark.asyncio
async def test_what_is_no_longer_in_the_payload_goes(redis: Redis) -> None:
    payload = {"address": "a", "draining": "1"}
    announcer = Announcer(redis=redis, key=KEY, payload=lambda: payload)
    async with announcer:
        del payload["draining"]
        assert await announcer.announce()
        assert await until_announced(redis) == {"address": "a"}


@pytest.mark.asyncio
async def test_a_successors_announcement_stays_when_the_predecessor_leaves(redis: Redis) -> None:
    async with AsyncExitStack() as successors:
        async with Announcer(redis=redis, key=KEY, payload=lambda: {"epoch": "1"}):
            await successors.enter_async_context(
                Announcer(redis=redis, key=KEY, payload=lambda: {"epoch": "2"})
            )
        assert await redis.hget(KEY, "epoch") == "2"
    assert not await redis.exists(KEY)


@pytest.mark.asyncio
async def test_redis_away_is_logged_once_and_so_is_its_return(
    own_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with open_redis(own_redis.url) as redis:
        own_redis.stop()
        announcer = Announcer(
            redis=redis, key=KEY, payload=lambda: {"n": "1"}, ttl_seconds=5, period_seconds=1
        )
        async with announcer:
            assert not await announcer.announce()
            assert not await announcer.announce()
            own_redis.start()
            assert await until_announced(redis) == {"n": "1"}
            await announcer.announce()
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("WARNING", "announcement failed"),
        ("INFO", "announcement is back"),
    ]


@pytest.mark.asyncio
async def test_a_redis_that_refuses_writes_for_a_while_does_not_end_it(
    own_redis: RedisServer,
) -> None:
    async with open_redis(own_redis.url) as redis:
        await redis.config_set("min-replicas-to-write", "1")
        announcer = Announcer(redis=redis, key=KEY, payload=lambda: {"n": "1"}, period_seconds=0.02)
        async with announcer:
            assert not await announcer.announce()
            await asyncio.sleep(0.1)
            await redis.config_set("min-replicas-to-write", "0")
            assert await until_announced(redis) == {"n": "1"}


@pytest.mark.asyncio
async def test_leaving_does_not_wait_long_for_a_redis_that_is_away(own_redis: RedisServer) -> None:
    async with open_redis(own_redis.url) as redis:
        async with asyncio.timeout(60) as limit:
            async with Announcer(redis=redis, key=KEY, payload=lambda: {"n": "1"}):
                own_redis.stop()
        assert not limit.expired()
