"""Records that are to be written while Redis writes go together: none is lost, each has its own
answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace

import pytest
from redis.asyncio import Redis

from chassis.errors import Unavailable
from chassis.redis_client import open_redis
from signalling.close_reason import CloseReason
from signalling.launch_errors import LaunchNotHeld
from signalling.redis_sessions import RedisSessions
from signalling.session import Session
from signalling.session_ports import Notice
from tests.fakes.clock import START
from tests.redis_fixture import RedisServer

pytestmark = pytest.mark.asyncio

ORIGIN = "rep_" + "a" * 26


def opened(number: int = 0) -> Session:
    return Session(
        session_id=f"ses_{number:026}",
        tenant="default",
        launch_id="lch_" + "a" * 26,
        gateway_id="gtw_" + "a" * 26,
        created_at=START,
        expires_at=START,
    )


class HeldBack:
    """Scripts of a client, the first of which waits until it is let go."""

    def __init__(self, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
        self.scripts = 0
        self.waits = asyncio.Event()
        self.go_on = asyncio.Event()
        self._execute: Callable[..., Awaitable[object]] = redis.execute_command
        monkeypatch.setattr(redis, "execute_command", self._held)

    async def _held(self, *words: object, **options: object) -> object:
        if words[0] == "EVALSHA":
            self.scripts += 1
            self.waits.set()
            await self.go_on.wait()
        return await self._execute(*words, **options)


async def test_what_comes_while_redis_writes_goes_into_one_script(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RedisSessions(redis=redis, origin=ORIGIN)
    await store.save(opened(), ttl_seconds=60)
    ended = replace(opened(7), launch_id="lch_" + "z" * 26)
    await store.end_launch(ended.launch_id, remembered_seconds=60)
    held = HeldBack(redis, monkeypatch)
    first = asyncio.create_task(store.save(opened(1), ttl_seconds=60))
    await held.waits.wait()
    others = [
        asyncio.create_task(store.save(session, ttl_seconds=60))
        for session in (opened(2), replace(opened(), tenant="x"), ended, opened(3))
    ]
    leaving = asyncio.create_task(store.save(opened(4), ttl_seconds=60))
    await asyncio.sleep(0)  # they are in the queue
    leaving.cancel()
    held.go_on.set()
    assert await first
    written, conflict, refused, last = await asyncio.gather(*others, return_exceptions=True)
    assert (written, conflict, last) == (True, False, True)
    assert isinstance(refused, LaunchNotHeld)
    assert held.scripts == 2
    with pytest.raises(asyncio.CancelledError):
        await leaving
    kept = [opened(number) for number in range(5)]
    assert list(await store.of_gateway(opened().gateway_id)) == kept


async def test_more_than_one_script_takes_are_written_in_several(redis: Redis) -> None:
    store = RedisSessions(redis=redis, origin=ORIGIN)
    many = [opened(number) for number in range(150)]
    assert all(await asyncio.gather(*(store.save(each, ttl_seconds=60) for each in many)))
    assert list(await store.of_gateway(opened().gateway_id)) == many
    ends = [each.closed(CloseReason.REQUESTED) for each in many]
    assert all(await asyncio.gather(*(store.save(each, ttl_seconds=60) for each in ends)))
    assert list(await store.of_gateway(opened().gateway_id)) == []


async def test_replicas_are_told_of_each_change_of_a_script(redis: Redis) -> None:
    store = RedisSessions(redis=redis, origin=ORIGIN)
    elsewhere = RedisSessions(redis=redis, origin="rep_" + "b" * 26)
    many = [opened(number) for number in range(3)]
    await store.save(many[1], ttl_seconds=60)
    async with aclosing(elsewhere.changes()) as changes:
        assert await anext(changes) is None
        again = (*many, replace(many[0], tenant="x"))
        await asyncio.gather(*(store.save(each, ttl_seconds=60) for each in again))
        told = [Notice(each.session_id, each.gateway_id) for each in (many[0], many[2])]
        assert await anext(changes) == told


async def test_all_who_wait_are_told_that_redis_is_away(
    own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_redis(own_redis.url) as redis:
        store = RedisSessions(redis=redis, origin=ORIGIN)
        await store.save(opened(), ttl_seconds=60)
        own_redis.stop()
        held = HeldBack(redis, monkeypatch)
        first = asyncio.create_task(store.save(opened(1), ttl_seconds=60))
        await held.waits.wait()
        second = asyncio.create_task(store.save(opened(2), ttl_seconds=60))
        await asyncio.sleep(0)  # it is in the queue
        held.go_on.set()
        told = await asyncio.gather(first, second, return_exceptions=True)
        assert all(isinstance(each, Unavailable) for each in told)
        assert held.scripts == 1
        own_redis.start()
        assert await store.save(opened(3), ttl_seconds=60)
