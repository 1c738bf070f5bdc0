"""Signalling as it runs: whether it is ready, and how it stops taking work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from redis.asyncio import Redis

from chassis.redis_client import redis_errors
from chassis.rpc_server import RpcServer
from signalling.event_stream import EventStreams
from signalling.launch_errors import Draining


class Launches(Protocol):
    """The launch half, as far as stopping goes."""

    async def drain(self) -> None:
        """Take no new launches and end the streams."""
        ...


@dataclass(slots=True, kw_only=True)
class FrontDoor:
    """The service; the ports are the bound ones, 0 until they are."""

    launches: Launches
    streams: EventStreams
    redis: Redis
    public: RpcServer | None = None
    http_port: int = 0
    is_draining: bool = False

    async def drain(self) -> None:
        """Take no new launches and let every watcher go; the next start takes up what runs."""
        self.is_draining = True
        if self.public is not None:
            await self.public.drain()
        await self.launches.drain()
        self.streams.close()

    async def check_redis(self) -> None:
        """Raise RedisUnavailable when Redis does not answer."""
        with redis_errors():
            await self.redis.ping()

    async def check_serving(self) -> None:
        """Raise Draining when it is about to stop."""
        if self.is_draining:
            raise Draining
