"""Keeps a Redis hash under a lease, so that others see this process for as long as it lives."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping
from typing import Self

from redis.asyncio import Redis
from redis.exceptions import RedisError

log = logging.getLogger(__name__)

# DEL first, so that a field which is no longer in the payload goes.
_ANNOUNCE = """
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], unpack(ARGV, 2))
redis.call('PEXPIRE', KEYS[1], ARGV[1])
"""
# A successor may have announced itself at the same key already; its hash stays.
_WITHDRAW = """
if redis.call('HGET', KEYS[1], 'announcer') == ARGV[1] then redis.call('DEL', KEYS[1]) end
"""
_WITHDRAW_SECONDS = 1.0


class Announcer:
    """Writes `payload()` to `key` every `period_seconds`, for `ttl_seconds`; removes it at the end.

    While Redis is away, or refuses, it keeps trying each period and logs once. The hash has one
    more field, `announcer`, a random token of this object.
    """

    def __init__(
        self,
        *,
        redis: Redis,
        key: str,
        payload: Callable[[], Mapping[str, str]],
        ttl_seconds: float = 15,
        period_seconds: float = 5,
    ) -> None:
        self._redis = redis
        self._key = key
        self._payload = payload
        self._ttl_milliseconds = int(ttl_seconds * 1000)
        self._period_seconds = period_seconds
        self._token = secrets.token_hex(8)
        self._away = False
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.announce()
        self._task = asyncio.create_task(self._keep(), name=f"announce {self._key}")
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        try:
            async with asyncio.timeout(_WITHDRAW_SECONDS):
                await self._redis.eval(_WITHDRAW, 1, self._key, self._token)
        except (RedisError, TimeoutError):
            log.debug("announcement not withdrawn", extra={"key": self._key})

    async def announce(self) -> bool:
        """Write the hash now, for a change that should not wait; says whether Redis took it."""
        fields = {**self._payload(), "announcer": self._token}
        flat = [text for field in fields.items() for text in field]
        try:
            async with asyncio.timeout(self._period_seconds):
                await self._redis.eval(_ANNOUNCE, 1, self._key, str(self._ttl_milliseconds), *flat)
        except (RedisError, TimeoutError) as error:
            if not self._away:
                log.warning(
                    "announcement failed", extra={"key": self._key, "cause": type(error).__name__}
                )
            self._away = True
            return False
        if self._away:
            log.info("announcement is back", extra={"key": self._key})
        self._away = False
        return True

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._period_seconds)
            await self.announce()
