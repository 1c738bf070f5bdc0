"""The client's timeouts and errors, against a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest
from redis import exceptions
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from chassis import redis_client
from chassis.errors import Kind
from chassis.redis_client import (
    LONGEST_BLOCK_MILLISECONDS,
    RedisUnavailable,
    open_redis,
    redis_errors,
)
from tests.eventually import eventually
from tests.redis_fixture import RedisServer


@pytest.mark.asyncio
async def test_replies_are_text(redis: Redis) -> None:
    await redis.set("k", "ü")
    assert await redis.get("k") == "ü"


@pytest.mark.asyncio
async def test_a_redis_that_is_away_is_unavailable_and_comes_back(own_redis: RedisServer) -> None:
    async with open_redis(own_redis.url) as redis:
        await redis.set("k", "1")
        own_redis.stop()
        with pytest.raises(RedisUnavailable) as caught, redis_errors():
            await redis.get("k")
        assert caught.value.kind is Kind.UNAVAILABLE
        assert caught.value.reason == "redis_unavailable"
        assert caught.value.remedy
        own_redis.start()
        with redis_errors():
            assert await redis.get("k") is None


@pytest.mark.asyncio
async def test_a_password_is_shown_and_needed(own_redis: RedisServer) -> None:
    async with open_redis(own_redis.url) as redis:
        await redis.config_set("requirepass", "a/b c")
    async with open_redis(own_redis.url, "a/b c") as redis:
        assert await redis.ping()
    async with open_redis(own_redis.url) as redis:
        with pytest.raises(RedisUnavailable), redis_errors():
            await redis.ping()


Asking = Callable[[Redis], Awaitable[object]]


async def subscribe(redis: Redis) -> None:
    async with redis.pubsub() as channel:
        await channel.subscribe("c")


@pytest.mark.asyncio
@pytest.mark.parametrize("is_connected", [True, False])
@pytest.mark.parametrize(
    "ask",
    [
        lambda redis: redis.get("k"),
        lambda redis: redis.register_script("return 1")(),
        lambda redis: redis.pipeline(transaction=False).get("k").get("l").execute(),
        lambda redis: redis.pipeline(transaction=True).get("k").execute(),
    ],
    ids=["command", "script", "pipeline", "transaction"],
)
async def test_a_redis_that_hangs_is_unavailable_in_time_and_comes_back(
    own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch, ask: Asking, is_connected: bool
) -> None:
    # A single answer may take for ever here: it is the whole that ends in time.
    monkeypatch.setattr(redis_client, "COMMAND_SECONDS", 600)
    monkeypatch.setattr(redis_client, "WHOLE_SECONDS", 0.2)
    async with asyncio.timeout(60), open_redis(own_redis.url) as redis:
        if is_connected:
            await ask(redis)
        own_redis.hang()
        for _ in range(2):
            with pytest.raises(RedisUnavailable), redis_errors():
                await ask(redis)
        own_redis.resume()
        monkeypatch.undo()
        with redis_errors():
            await ask(redis)
            await redis.set("k", "1")
            assert await redis.get("k") == "1"


@pytest.mark.asyncio
async def test_a_subscription_at_a_redis_that_hangs_is_given_up(
    own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_client, "COMMAND_SECONDS", 0.2)
    async with asyncio.timeout(60), open_redis(own_redis.url) as redis:
        own_redis.hang()
        with pytest.raises(RedisUnavailable), redis_errors():
            await subscribe(redis)
        own_redis.resume()
        await subscribe(redis)


@pytest.mark.asyncio
async def test_a_hang_is_over_before_anybody_gives_up(own_redis: RedisServer) -> None:
    async with asyncio.timeout(60), open_redis(own_redis.url) as redis:
        await redis.set("k", "1")
        own_redis.hang()
        asking = asyncio.ensure_future(cast("Awaitable[str]", redis.get("k")))
        asyncio.get_running_loop().call_later(0.1, own_redis.resume)
        assert await asking == "1"


@pytest.mark.asyncio
async def test_a_command_that_is_cancelled_as_it_is_written_is_cancelled(
    own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    drain = asyncio.StreamWriter.drain
    async with open_redis(own_redis.url) as redis:
        await redis.ping()
        asking = asyncio.ensure_future(redis.blpop(["k"], timeout=1))

        async def drain_and_cancel(writer: asyncio.StreamWriter) -> None:
            await drain(writer)
            asyncio.get_running_loop().call_soon(asking.cancel)

        monkeypatch.setattr(asyncio.StreamWriter, "drain", drain_and_cancel)
        with pytest.raises(asyncio.CancelledError):
            await asking
        monkeypatch.undo()
        assert await redis.ping()


@pytest.mark.asyncio
async def test_a_command_that_cannot_be_written_is_given_up_in_time(
    own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(_: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with open_redis(own_redis.url) as redis:
        connection = await redis.connection_pool.get_connection()  # type: ignore[no-untyped-call]
        connection.socket_timeout = 0.05
        monkeypatch.setattr(asyncio.StreamWriter, "drain", never)
        with pytest.raises(exceptions.TimeoutError, match="writing"):
            await connection.send_packed_command(b"", check_health=False)
        assert not connection.is_connected
        await redis.connection_pool.release(connection)


@pytest.mark.asyncio
async def test_opening_a_client_does_not_need_redis() -> None:
    async with open_redis("unix:///nowhere/s") as redis:
        with pytest.raises(RedisUnavailable), redis_errors():
            await redis.ping()


@pytest.mark.asyncio
async def test_a_fault_of_ours_is_not_called_an_outage(redis: Redis) -> None:
    await redis.set("k", "text")
    with pytest.raises(ResponseError), redis_errors():
        await redis.incr("k")


@pytest.mark.asyncio
async def test_a_redis_that_refuses_writes_for_a_while_is_unavailable(
    own_redis: RedisServer,
) -> None:
    async with open_redis(own_redis.url) as redis:
        await redis.config_set("min-replicas-to-write", "1")
        with pytest.raises(RedisUnavailable), redis_errors():
            await redis.set("k", "1")
        with pytest.raises(RedisUnavailable), redis_errors():
            await redis.eval("return redis.call('SET', KEYS[1], '1')", 1, "k")


@pytest.mark.asyncio
async def test_a_redis_without_memory_is_unavailable(own_redis: RedisServer) -> None:
    async with open_redis(own_redis.url) as redis:
        await redis.config_set("maxmemory", "1")
        with pytest.raises(RedisUnavailable), redis_errors():
            await redis.set("k", "1")


@pytest.mark.asyncio
async def test_a_blocking_read_waits_and_wakes(redis: Redis) -> None:
    assert LONGEST_BLOCK_MILLISECONDS < 5000

    async def read() -> object:
        return await redis.xread({"events": "$"}, block=LONGEST_BLOCK_MILLISECONDS)

    async def blocked() -> object:
        return (await redis.info("clients"))["blocked_clients"]

    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(read())
        await eventually(blocked)
        identity = await redis.xadd("events", {"a": "b"})
    assert await reading == [["events", [(identity, {"a": "b"})]]]


@pytest.mark.asyncio
async def test_a_cancelled_blocking_read_leaves_the_client_usable(redis: Redis) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await redis.xread({"events": "$"}, block=LONGEST_BLOCK_MILLISECONDS)
    await redis.set("k", "1")
    assert await redis.get("k") == "1"
