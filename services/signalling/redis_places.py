"""Where workspaces and sandboxes are, in Redis: `fairlead:<noun>:<tenant>:<id>` and
`fairlead:<noun>-key:<tenant>:<key>` name a host. What is lost here is asked of the hosts.
"""

from __future__ import annotations

from redis.asyncio import Redis

from chassis.redis_client import redis_errors

_SECONDS = 25 * 3600
"""Longer than a lease, and than what was released is remembered by its host."""


class RedisPlaces:
    """The directory of one noun, `workspace` or `sandbox`."""

    def __init__(self, *, redis: Redis, noun: str) -> None:
        self._redis = redis
        self._noun = noun

    async def claim_key(self, tenant: str, key: str, host_id: str) -> str:
        """Keep the host of an idempotency key; return the one that was kept before, if there is."""
        name = self._key_name(tenant, key)
        with redis_errors():
            async with self._redis.pipeline(transaction=True) as both:
                both.set(name, host_id, nx=True, ex=_SECONDS)
                both.get(name)
                _, kept = await both.execute()
        return str(kept)

    async def host_of_key(self, tenant: str, key: str) -> str:
        """Return the host of an idempotency key; empty when it is not known."""
        with redis_errors():
            return str(await self._redis.get(self._key_name(tenant, key)) or "")

    async def put(self, tenant: str, what: str, host_id: str) -> None:
        """Keep where something is."""
        with redis_errors():
            await self._redis.set(self._name(tenant, what), host_id, ex=_SECONDS)

    async def host_of(self, tenant: str, what: str) -> str:
        """Return where something is; empty when it is not known."""
        with redis_errors():
            return str(await self._redis.get(self._name(tenant, what)) or "")

    def _name(self, tenant: str, what: str) -> str:
        return f"fairlead:{self._noun}:{tenant}:{what}"

    def _key_name(self, tenant: str, key: str) -> str:
        return f"fairlead:{self._noun}-key:{tenant}:{key}"
