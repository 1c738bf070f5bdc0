"""Where workspaces are, in Redis: `fairlead:workspace:<tenant>:<id>` and
`fairlead:workspace-key:<tenant>:<key>` name a host. What is lost here is asked of the hosts.
"""

from __future__ import annotations

from redis.asyncio import Redis

from chassis.redis_client import redis_errors

_SECONDS = 25 * 3600
"""Longer than a lease, and than a released workspace is remembered by its host."""


class RedisWorkspaces:
    """The directory of workspaces."""

    def __init__(self, *, redis: Redis) -> None:
        self._redis = redis

    async def claim_key(self, tenant: str, key: str, host_id: str) -> str:
        """Keep the host of an idempotency key; return the one that was kept before, if there is."""
        with redis_errors():
            async with self._redis.pipeline(transaction=True) as both:
                both.set(_key_key(tenant, key), host_id, nx=True, ex=_SECONDS)
                both.get(_key_key(tenant, key))
                _, kept = await both.execute()
        return str(kept)

    async def host_of_key(self, tenant: str, key: str) -> str:
        """Return the host of an idempotency key; empty when it is not known."""
        with redis_errors():
            return str(await self._redis.get(_key_key(tenant, key)) or "")

    async def put(self, tenant: str, workspace_id: str, host_id: str) -> None:
        """Keep where a workspace is."""
        with redis_errors():
            await self._redis.set(_key(tenant, workspace_id), host_id, ex=_SECONDS)

    async def host_of(self, tenant: str, workspace_id: str) -> str:
        """Return where a workspace is; empty when it is not known."""
        with redis_errors():
            return str(await self._redis.get(_key(tenant, workspace_id)) or "")


def _key(tenant: str, workspace_id: str) -> str:
    return f"fairlead:workspace:{tenant}:{workspace_id}"


def _key_key(tenant: str, key: str) -> str:
    return f"fairlead:workspace-key:{tenant}:{key}"
