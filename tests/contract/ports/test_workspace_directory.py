"""What the directory of workspaces promises, for the fake and for Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from chassis.redis_client import open_redis
from signalling.redis_places import RedisPlaces
from signalling.whereabouts import Directory
from tests.fakes.faults import Faults
from tests.fakes.workspaces import FakeWorkspaceDirectory

pytestmark = pytest.mark.asyncio
WORKSPACE = "wsp_" + "a" * 26


@pytest_asyncio.fixture(params=["fake", "redis"])
async def directory(request: pytest.FixtureRequest) -> AsyncIterator[Directory]:
    if request.param == "fake":
        yield FakeWorkspaceDirectory(faults=Faults())
        return
    async with open_redis(request.getfixturevalue("redis_url")) as redis:
        await redis.flushall()
        yield RedisPlaces(redis=redis, noun="workspace")


async def test_of_many_claims_of_a_key_one_host_wins(directory: Directory) -> None:
    assert await directory.host_of_key("t", "key") == ""
    kept = await asyncio.gather(
        *(directory.claim_key("t", "key", f"host {number}") for number in range(8))
    )
    assert len(set(kept)) == 1
    assert await directory.host_of_key("t", "key") == kept[0]
    assert await directory.claim_key("other", "key", "its own") == "its own"


async def test_a_place_is_kept_for_its_tenant(directory: Directory) -> None:
    assert await directory.host_of("t", WORKSPACE) == ""
    await directory.put("t", WORKSPACE, "host")
    await directory.put("t", WORKSPACE, "host")
    assert await directory.host_of("t", WORKSPACE) == "host"
    assert await directory.host_of("other", WORKSPACE) == ""


async def test_redis_forgets_after_a_day(redis: Redis) -> None:
    directory = RedisPlaces(redis=redis, noun="workspace")
    await directory.claim_key("t", "key", "host")
    await directory.put("t", WORKSPACE, "host")
    for key in ("fairlead:workspace-key:t:key", f"fairlead:workspace:t:{WORKSPACE}"):
        assert 24 * 3600 < await redis.ttl(key) <= 25 * 3600
