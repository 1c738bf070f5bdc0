"""The directory of snapshots in Redis, by which placement finds the hosts that hold one."""

from __future__ import annotations

import asyncio
import secrets

from redis.asyncio import Redis

from chassis.redis_client import RedisUnavailable, redis_errors
from workspace_provisioner.workspaces import Snapshot

_TTL_SECONDS = 7 * 24 * 3600
_MOST_COMMITS = 256
_PATIENCE_SECONDS = 1.0


class RedisSnapshotDirectory:
    """Writes `fairlead:snapshot:<tenant>:<project digest>:<commit or digest>`, sets of host ids
    kept for 7 days.

    Beside them it counts, in `fairlead:published:<host id>:<process>`, what this process has
    written, and so notices a Redis that lost it or that came back older.
    """

    def __init__(self, *, redis: Redis, host_id: str) -> None:
        self._redis = redis
        self._host_id = host_id
        self._mark = f"fairlead:published:{host_id}:{secrets.token_hex(8)}"
        self._written = 0

    async def publish(self, snapshot: Snapshot) -> None:
        key = snapshot.key
        names = [*snapshot.commits[:_MOST_COMMITS], *filter(None, [snapshot.digest])]
        self._written += 1
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                with redis_errors():
                    async with self._redis.pipeline(transaction=False) as pipeline:
                        for name in names:
                            entry = f"fairlead:snapshot:{key.tenant}:{key.digest}:{name}"
                            pipeline.sadd(entry, self._host_id)
                            pipeline.expire(entry, _TTL_SECONDS)
                        pipeline.set(self._mark, self._written, ex=_TTL_SECONDS)
                        await pipeline.execute()
        except TimeoutError:
            raise RedisUnavailable from None

    async def is_current(self) -> bool:
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                with redis_errors():
                    found = await self._redis.get(self._mark)
        except TimeoutError:
            raise RedisUnavailable from None
        return found is not None and int(found) == self._written
