"""The Redis client with its timeouts, and the place that turns its failures into ours.

Commands are limited to those of Redis 6.2: no hash-field expiry, no FUNCTION, no sharded pub/sub.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager

from redis import exceptions
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import ConstantBackoff

from chassis.errors import Unavailable

CONNECT_SECONDS = 2.0
COMMAND_SECONDS = 5.0
"""For each answer of Redis, of which a handshake has several."""
WHOLE_SECONDS = 6.0
"""For a command or a pipeline with all that it waits for: connecting, handshake, second try."""
LONGEST_BLOCK_MILLISECONDS = 4000
"""What a blocking command may ask for; more would run into the socket's timeout."""

REDIS_AWAY = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.OutOfMemoryError,
    exceptions.ReadOnlyError,
    exceptions.ClusterDownError,
)


# What a server that runs says when it takes no writes for now: it cannot save, lacks its replicas
# or its master, or is busy with a script. In a script's error the word stands in the middle.
_REFUSES_FOR_NOW = re.compile(r"\b(MISCONF|NOREPLICAS|MASTERDOWN|TRYAGAIN|BUSY)\b")


class RedisUnavailable(Unavailable):
    """Redis cannot be reached, is still loading or accepts no writes."""

    def __init__(self) -> None:
        super().__init__(
            "Redis is unavailable.",
            reason="redis_unavailable",
            remedy="Try again in a few seconds; if it stays so, check FAIRLEAD_REDIS_URL and"
            " FAIRLEAD_REDIS_PASSWORD_FILE.",
        )


class _CancellableConnection(AbstractConnection):
    """A connection on which a command ends when its task is cancelled, whatever it is just doing.

    redis-py 8.1 writes under `asyncio.wait_for`, which before Python 3.12 loses a cancellation that
    comes as the write is done (python/cpython#86296): who waits for the task waits for ever.
    """

    async def send_packed_command(
        self, command: bytes | str | Iterable[bytes], check_health: bool = True
    ) -> None:
        """Write a command; raises redis-py's ConnectionError and TimeoutError."""
        if not self.is_connected:
            await self.connect_check_health(check_health=False)
        # Without a time of its own it writes as it is called.
        seconds, self.socket_timeout = self.socket_timeout, None
        try:
            async with asyncio.timeout(seconds):
                await super().send_packed_command(command, check_health=False)
        except TimeoutError:
            raise exceptions.TimeoutError("Timeout writing to socket") from None
        finally:
            self.socket_timeout = seconds


@asynccontextmanager
async def _in_time() -> AsyncIterator[None]:
    """Give up after WHOLE_SECONDS; raises redis-py's TimeoutError."""
    try:
        async with asyncio.timeout(WHOLE_SECONDS):
            yield
    except TimeoutError:
        raise exceptions.TimeoutError("Timeout of the whole command") from None


class _BoundedRedis(Redis):
    """A client whose commands end in time, whatever Redis does.

    redis-py bounds each wait, not their sum: tries are nested in the tries of connecting, so that a
    Redis that takes connections and answers nothing held a command for minutes.
    """

    async def execute_command(self, *args: object, **options: object) -> object:
        """Execute a command."""
        async with _in_time():
            return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Pipeline:
        """Begin a pipeline that ends in time as well."""
        return _BoundedPipeline(
            self.connection_pool, self.response_callbacks, transaction, shard_hint
        )


class _BoundedPipeline(Pipeline):
    async def execute(self, raise_on_error: bool = True) -> list[object]:
        """Execute what is queued."""
        async with _in_time():
            return await super().execute(raise_on_error)


@asynccontextmanager
async def open_redis(url: str, password: str | None = None) -> AsyncIterator[Redis]:
    """Open a client for `url` (redis://, rediss:// or unix:///path) and close it at the end; a
    password in the URL goes before `password`.

    It connects at the first command, so a room starts while Redis is away. Replies are text. A
    command whose connection broke is tried once more: a command that must not run twice carries its
    own guard (compare-and-set). Every one ends within WHOLE_SECONDS, a subscription in twice that.
    """
    client = _BoundedRedis.from_url(
        url,
        password=password,
        decode_responses=True,
        socket_connect_timeout=CONNECT_SECONDS,
        socket_timeout=COMMAND_SECONDS,
        retry=Retry(ConstantBackoff(0.05), retries=1),
    )
    pool = client.connection_pool
    kinds = (_CancellableConnection, pool.connection_class)
    pool.connection_class = type(pool.connection_class.__name__, kinds, {})
    try:
        yield client
    finally:
        await client.aclose()


@contextmanager
def redis_errors() -> Iterator[None]:
    """Raise RedisUnavailable when Redis is away; its other errors are faults of ours and pass."""
    try:
        yield
    except REDIS_AWAY as error:
        raise RedisUnavailable from error
    except exceptions.ResponseError as error:
        if _REFUSES_FOR_NOW.search(str(error)):
            raise RedisUnavailable from error
        raise
