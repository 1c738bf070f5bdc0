"""The ways to `http://` and `https://` addresses: a WebSocket, two requests, or polls."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from fairlead_tunnel.carriers import TunnelTicket
from fairlead_tunnel.driver_sides import CarrierDriver
from fairlead_tunnel.endpoints import Endpoint, EndpointPool, Health, Lease, Outcome
from fairlead_tunnel.handshake import TUNNEL_ID_BYTES, AttachRefused, HandshakeInvalid
from fairlead_tunnel.http_posts import HttpPosts
from fairlead_tunnel.message_carrier import ClientPipe, MessageCarrier
from fairlead_tunnel.poll_carrier import PollCarrier
from fairlead_tunnel.poll_pace import PollPace
from fairlead_tunnel.poll_posts import PollPosts
from fairlead_tunnel.poll_wire import request_head
from fairlead_tunnel.records import MAX_BATCH_BYTES
from fairlead_tunnel.ways import CONNECT_SECONDS, Kind, greeted, raise_if_left_alone

_REFUSED: Final = b"\x01"


class PipeWay:
    """A pipe to one address, as `connect` makes it; `seconds` bounds that, and the handshake."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        kind: Kind,
        connect: Callable[[str], Awaitable[ClientPipe]],
        health: Health,
        seconds: float = CONNECT_SECONDS,
    ) -> None:
        self.kind = kind
        self.name = endpoint.url
        self._endpoint = endpoint
        self._connect = connect
        self._health = health
        self._seconds = seconds

    async def reach(self) -> ReachedPipe:
        """Connect; see `Way.reach`."""
        raise_if_left_alone(self._health, self._endpoint.health)
        async with asyncio.timeout(self._seconds):
            pipe = await self._connect(self.name)
        return ReachedPipe(pipe, self._health, self._seconds)


class ReachedPipe:
    """A pipe over which nothing was said; its messages have batches of `most_bytes`."""

    def __init__(
        self,
        pipe: ClientPipe,
        health: Health,
        seconds: float,
        *,
        most_bytes: int = MAX_BATCH_BYTES,
    ) -> None:
        self._pipe = pipe
        self._health = health
        self._seconds = seconds
        self._most_bytes = most_bytes

    async def attach(self, *, ticket: TunnelTicket, driver: CarrierDriver) -> MessageCarrier:
        """Attach a carrier; see `Reached.attach`."""
        if not self._pipe.can_write:
            raise ConnectionResetError("the gateway ended the connection")
        number, handshake = ticket.handshake()
        carrier = MessageCarrier(
            driver=driver,
            number=number,
            handshake=handshake,
            pipe=self._pipe,
            most_bytes=self._most_bytes,
        )
        carrier.begin()
        return await greeted(carrier, ticket, health=self._health, seconds=self._seconds)

    def drop(self) -> None:
        """Close it."""
        self._pipe.abort()


class PollsWay:
    """Polls of all addresses; what was learnt of an endpoint is kept for the next carrier."""

    kind = Kind.POLLS

    def __init__(self, endpoints: Sequence[Endpoint], *, seconds: float = CONNECT_SECONDS) -> None:
        self.name = "polls of " + ", ".join(each.url for each in endpoints)
        self._endpoints = endpoints
        self._pool: EndpointPool | None = None
        self._seconds = seconds
        self._running: set[asyncio.Task[None]] = set()

    async def reach(self) -> ReachedPolls:
        """Ask all endpoints for a tunnel that nobody has: a gateway says so; see `Way.reach`."""
        loop = asyncio.get_running_loop()
        if self._pool is None:
            self._pool = EndpointPool(self._endpoints, now=loop.time())
        posts = HttpPosts()
        asking = PollPosts(posts=posts, pace=PollPace())
        leases = [self._pool.take_active(loop.time()) for _ in self._endpoints]
        tasks = [
            asyncio.ensure_future(_asked(asking, self._pool, lease))
            for lease in leases
            if lease is not None
        ]
        try:
            async with asyncio.timeout(self._seconds):
                for answered in asyncio.as_completed(tasks):
                    if await answered:
                        return ReachedPolls(self._pool, posts, self._running, self._seconds)
            raise ConnectionError("no gateway answers")
        except BaseException:
            posts.close()
            raise
        finally:
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)


async def _asked(posts: PollPosts, pool: EndpointPool, lease: Lease) -> bool:
    """Say whether a gateway answers behind an endpoint."""
    outcome = Outcome.ABANDONED
    try:
        body = request_head(secrets.token_bytes(TUNNEL_ID_BYTES), 0)
        outcome, answer, _ = await posts.post(lease, body, hold=0.0)
        if answer is not None and not answer.body.startswith(_REFUSED):
            outcome = Outcome.FOREIGN
        return outcome is Outcome.ANSWERED
    finally:
        pool.give_back(lease, outcome, asyncio.get_running_loop().time())


class ReachedPolls:
    """Endpoints of which one or more lead to a gateway."""

    def __init__(
        self,
        pool: EndpointPool,
        posts: HttpPosts,
        running: set[asyncio.Task[None]],
        seconds: float,
    ) -> None:
        self._pool = pool
        self._posts = posts
        self._running = running
        self._seconds = seconds

    async def attach(self, *, ticket: TunnelTicket, driver: CarrierDriver) -> PollCarrier:
        """Attach a carrier; see `Reached.attach`."""
        carrier = PollCarrier(driver=driver, ticket=ticket, pool=self._pool, posts=self._posts)
        polling = asyncio.ensure_future(_polled(carrier, self._posts))
        self._running.add(polling)
        polling.add_done_callback(self._running.discard)
        try:
            async with asyncio.timeout(self._seconds):
                ticket.keep(await asyncio.shield(carrier.ready))
        except BaseException:
            polling.cancel()
            raise
        return carrier

    def drop(self) -> None:
        """Close the connections."""
        self._posts.close()


async def _polled(carrier: PollCarrier, posts: HttpPosts) -> None:
    """Poll to the end; why it came is told by `ready` and by the tunnel."""
    try:
        with contextlib.suppress(AttachRefused, HandshakeInvalid, OSError):
            await carrier.run()
    finally:
        posts.close()
