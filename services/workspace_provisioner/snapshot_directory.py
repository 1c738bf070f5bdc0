"""The directory of snapshots in Redis, by which placement finds the hosts that hold one."""

from __future__ import annotations

import asyncio

from redis.asyncio import Redis

from chassis.redis_client import RedisUnavailable, redis_errors
from workspace_provisioner.workspaces import Snapshot

_TTL_SECONDS = 7 * 24 * 3600
_MOST_COMMITS = 256
_PATIENCE_SECONDS = 1.0


class RedisSnapshotDirectory:
    """Writes `fairlead:snapshot:<tenant>:<project digest>:<commit or digest>`, sets of host ids
    kept for 7 days.
    """

    def __init__(self, *, redis: Redis, host_id: str) -> None:
        self._redis = redis
        self._host_id = host_id

    async def publish(self, snapshot: Snapshot) -> None:
        key = snapshot.key
        names = [*snapshot.commits[:_MOST_COMMITS], *filter(None, [snapshot.digest])]
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                with redis_errors():
                    async with self._redis.pipeline(transaction=False) as pipeline:
                        for name in names:
                            entry = f"fairlead:snapshot:{key.tenant}:{key.digest}:{name}"
                            pipeline.sadd(entry, self._host_id)
                            pipeline.expire(entry, _TTL_SECONDS)
                        await pipeline.execute()
        except TimeoutError:
            raise RedisUnavailable from None
