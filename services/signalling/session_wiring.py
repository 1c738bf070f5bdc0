"""Builds the session half of the front door: book, switchboard, broker and the gateways' desk."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from opentelemetry.trace import TracerProvider
from redis.asyncio import Redis

from chassis.clock import Clock
from chassis.ids import random_id
from chassis.telemetry import traceparent
from signalling.broker import Broker
from signalling.gateway_desk import GatewayDesk
from signalling.ice_servers import IceServers
from signalling.redis_sessions import RedisGateways, RedisSessions
from signalling.reservations import Reservations
from signalling.session_book import SessionBook
from signalling.session_name import SessionNames
from signalling.session_ports import ReachedLaunches, Targets
from signalling.session_timings import SessionTimings
from signalling.session_tracing import TracedDesk, TracedSessions, UntracedTargets
from signalling.settings import Settings
from signalling.switchboard import Switchboard
from signalling.target_watch import TargetWatch


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionHalf:
    """What is there before the launches are; they join at `sessions`, `desk` and
    `looking_after`.
    """

    book: SessionBook
    switchboard: Switchboard
    clock: Clock
    timings: SessionTimings
    key: bytes
    servers: IceServers
    tracer_provider: TracerProvider

    def sessions(self, launches: ReachedLaunches) -> TracedSessions:
        """Return the sessions of these launches."""
        names = SessionNames(key=self.key)
        broker = Broker(
            book=self.book,
            switchboard=self.switchboard,
            reservations=Reservations(
                book=self.book,
                switchboard=self.switchboard,
                launches=launches,
                names=names,
                clock=self.clock,
                timings=self.timings,
                servers=self.servers,
                traceparent=traceparent,
            ),
            names=names,
            clock=self.clock,
            timings=self.timings,
            traceparent=traceparent,
        )
        return TracedSessions(
            sessions=broker,
            tracer_provider=self.tracer_provider,
            trace_of=broker.trace_of,
            trace_of_launch=launches.traceparent,
        )

    def desk(self, launches: ReachedLaunches) -> TracedDesk:
        """Return the gateways' desk for these launches."""
        desk = GatewayDesk(
            book=self.book,
            switchboard=self.switchboard,
            launches=launches,
            clock=self.clock,
            timings=self.timings,
        )
        return TracedDesk(desk=desk, tracer_provider=self.tracer_provider)

    @asynccontextmanager
    async def looking_after(self, targets: Targets) -> AsyncIterator[None]:
        """Close in the block the connected sessions of what is gone."""
        async with asyncio.TaskGroup() as tasks:
            watch = TargetWatch(book=self.book, targets=UntracedTargets(targets))
            watching = tasks.create_task(watch.watch())
            try:
                yield
            finally:
                watching.cancel()


@asynccontextmanager
async def open_sessions(
    settings: Settings, *, redis: Redis, clock: Clock, key: bytes, tracer_provider: TracerProvider
) -> AsyncIterator[SessionHalf]:
    """Open the session half; while in the block it looks after sessions and gateways."""
    store = RedisSessions(redis=redis, origin=random_id("rep"))
    book = SessionBook(store=store, clock=clock, lenient_seconds=settings.session_seconds)
    lease_seconds = 3 * settings.gateway_heartbeat_seconds
    switchboard = Switchboard(
        book=book,
        directory=RedisGateways(redis=redis, lease_seconds=lease_seconds),
        clock=clock,
        heartbeat_seconds=settings.gateway_heartbeat_seconds,
        grace_seconds=settings.gateway_grace_seconds,
    )
    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(switchboard.watch())
        following = tasks.create_task(switchboard.follow(store.changes))
        try:
            yield SessionHalf(
                book=book,
                switchboard=switchboard,
                clock=clock,
                timings=SessionTimings(
                    session_seconds=settings.session_seconds,
                    offer_timeout_seconds=settings.offer_timeout_seconds,
                    connect_seconds=settings.connect_seconds,
                    relay_connect_seconds=settings.relay_connect_seconds,
                ),
                key=key,
                servers=settings.ice_servers(),
                tracer_provider=tracer_provider,
            )
        finally:
            watching.cancel()
            following.cancel()
