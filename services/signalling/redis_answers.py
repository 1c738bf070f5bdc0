"""Kept answers in Redis: `fairlead:idempotency:<name>`, JSON with a time to live."""

from __future__ import annotations

import json
from dataclasses import asdict

from redis.asyncio import Redis

from chassis.redis_client import redis_errors
from signalling.kept_answers import KeptAnswer


class RedisAnswers:
    """The store of kept answers."""

    def __init__(self, *, redis: Redis) -> None:
        self._redis = redis

    async def claim(self, name: str, digest: str, *, ttl_seconds: int) -> KeptAnswer | None:
        """Take a name for a request, and return None; or return what has the name already."""
        text = json.dumps(asdict(KeptAnswer(digest)))
        with redis_errors():
            while not await self._redis.set(_key(name), text, nx=True, ex=ttl_seconds):
                found = await self._redis.get(_key(name))
                if found is not None:  # else it expired in between
                    return _answer(str(found))
        return None

    async def keep(self, name: str, answer: KeptAnswer, *, ttl_seconds: int) -> None:
        """Keep the answer of a request that has the name."""
        with redis_errors():
            await self._redis.set(_key(name), json.dumps(asdict(answer)), ex=ttl_seconds)

    async def drop(self, name: str) -> None:
        """Give a name back."""
        with redis_errors():
            await self._redis.delete(_key(name))


def _key(name: str) -> str:
    return f"fairlead:idempotency:{name}"


def _answer(text: str) -> KeptAnswer:
    record = json.loads(text)
    return KeptAnswer(
        digest=record["digest"],
        status=record["status"],
        media_type=record["media_type"],
        body=record["body"],
    )
