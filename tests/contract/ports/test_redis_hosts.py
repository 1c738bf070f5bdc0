"""The hosts that signalling knows, against a real Redis."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from chassis.redis_client import open_redis
from signalling.redis_hosts import LEASE_SECONDS, RedisHosts
from tests.fakes.clock import FakeClock
from tests.redis_fixture import RedisServer

HOST = "hst_aaaaaaaaaaaaaaaaaaaaaaaaaa"


async def register(redis: Redis, *halves: str) -> None:
    for half in halves:
        key = f"fairlead:host:{HOST}:{half}"
        await redis.hset(key, "address", f"unix:/{half}")
        await redis.hset(key, "isolation", "process")


@pytest.mark.asyncio
async def test_a_host_needs_both_halves(redis: Redis) -> None:
    hosts = RedisHosts(redis=redis, clock=FakeClock())
    await register(redis, "workspace")
    await hosts.refresh()
    assert hosts.all() == []
    await register(redis, "sandbox")
    await hosts.refresh()
    assert [host.host_id for host in hosts.all()] == [HOST]


@pytest.mark.asyncio
async def test_what_else_a_host_keeps_there_is_not_a_half_of_it(redis: Redis) -> None:
    hosts = RedisHosts(redis=redis, clock=FakeClock())
    await register(redis, "workspace", "sandbox")
    await redis.set(f"fairlead:host:{HOST}:published:1", "7")
    await hosts.refresh()
    assert [host.host_id for host in hosts.all()] == [HOST]


@pytest.mark.asyncio
async def test_a_host_that_leaves_is_forgotten_at_once(redis: Redis) -> None:
    hosts = RedisHosts(redis=redis, clock=FakeClock())
    await register(redis, "workspace", "sandbox")
    await hosts.refresh()
    await redis.delete(f"fairlead:host:{HOST}:sandbox")
    await hosts.refresh()
    assert hosts.find(HOST) is None


@pytest.mark.asyncio
async def test_a_redis_that_lost_everything_costs_no_host_for_one_lease(
    own_redis: RedisServer,
) -> None:
    clock = FakeClock()
    async with open_redis(own_redis.url) as redis:
        hosts = RedisHosts(redis=redis, clock=clock)
        await register(redis, "workspace", "sandbox")
        await hosts.refresh()
        own_redis.stop()
        own_redis.start()
        await hosts.refresh()
        assert hosts.find(HOST) is not None
        clock.advance(LEASE_SECONDS + 1)
        await hosts.refresh()
        assert hosts.find(HOST) is None
        await register(redis, "workspace", "sandbox")
        await hosts.refresh()
        assert hosts.find(HOST) is not None
