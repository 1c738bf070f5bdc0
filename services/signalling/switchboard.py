"""The gateways that are connected to this process: whom a session can get, and what each gateway is
told.

Level-triggered: a gateway that comes (back) states what it holds and gets everything that is wanted
of it, so that nothing that was said on a lost stream matters.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from chassis.clock import Clock
from chassis.errors import FairleadError
from signalling.gateway import Gateway, least_loaded
from signalling.session import CloseReason, Session
from signalling.session_book import SessionBook
from signalling.session_ports import GatewayDirectory

log = logging.getLogger(__name__)

_OUTBOX_ORDERS = 256
_MISSED_HEARTBEATS = 3


@dataclass(frozen=True, slots=True)
class Want:
    """A session is wanted: answer its offer."""

    session: Session


@dataclass(frozen=True, slots=True)
class Unwant:
    """A session is not wanted any more."""

    session_id: str


@dataclass(frozen=True, slots=True)
class Grant:
    """The outcome of a wanted connection: why there is none, or nothing when the worker dialled."""

    request_id: int
    refusal: FairleadError | None = None


Order = Want | Unwant | Grant


class Association:
    """One gateway's stream: what it last said of itself, and the queue of what it is told."""

    def __init__(self, *, gateway: Gateway, heard_at: float) -> None:
        self.gateway = gateway
        self.heard_at = heard_at
        self.end_reason = ""
        self._orders: deque[Order] = deque()
        self._woken = asyncio.Event()

    def end(self, reason: str) -> None:
        """Give the stream up; the first reason stays."""
        self.end_reason = self.end_reason or reason
        self._woken.set()

    def give(self, order: Order) -> None:
        """Queue an order; a gateway that does not take its orders is disconnected, and heals when
        it comes back.
        """
        if len(self._orders) >= _OUTBOX_ORDERS:
            self.end("too_slow")
            return
        self._orders.append(order)
        self._woken.set()

    async def next_order(self) -> Order | None:
        """Wait for the next order; None once the stream is given up."""
        while not self.end_reason:
            if self._orders:
                return self._orders.popleft()
            self._woken.clear()
            await self._woken.wait()
        return None


class Switchboard:
    """Associations by gateway id, and the sessions that hang on them."""

    def __init__(
        self,
        *,
        book: SessionBook,
        directory: GatewayDirectory,
        clock: Clock,
        heartbeat_seconds: int,
        grace_seconds: float,
    ) -> None:
        self.heartbeat_seconds = heartbeat_seconds
        self._book = book
        self._directory = directory
        self._clock = clock
        self._grace = grace_seconds
        self._associations: dict[str, Association] = {}
        self._lost_at: dict[str, float] = {}

    def choose(self) -> str:
        """Return the id of the gateway for a new session; raises GatewayUnavailable or
        GatewaysFull.
        """
        held: dict[str, int] = {}
        for session in self._book.live():
            held[session.gateway_id] = held.get(session.gateway_id, 0) + 1
        return least_loaded(
            replace(
                association.gateway,
                sessions=max(association.gateway.sessions, held.get(gateway_id, 0)),
            )
            for gateway_id, association in self._associations.items()
        ).gateway_id

    def want(self, session: Session) -> None:
        """Tell a session's gateway of its offer; one that is away gets it with its welcome."""
        association = self._associations.get(session.gateway_id)
        if association is not None:
            association.give(Want(session))

    def unwant(self, gateway_id: str, session_id: str) -> None:
        """Tell a gateway to close a session; one that is away learns it from its welcome."""
        association = self._associations.get(gateway_id)
        if association is not None:
            association.give(Unwant(session_id))

    async def connect(
        self, gateway: Gateway, held: Collection[str]
    ) -> tuple[Association, Sequence[Session]]:
        """Take a gateway that holds the sessions `held`; return its association and what is wanted
        of it.

        A session that was answered and is not held any more is closed as `gateway_lost`. An earlier
        stream of the same gateway is ended.
        """
        association = Association(gateway=gateway, heard_at=self._clock.monotonic())
        earlier = self._associations.get(gateway.gateway_id)
        if earlier is not None:
            earlier.end("replaced")
        self._associations[gateway.gateway_id] = association
        self._lost_at.pop(gateway.gateway_id, None)
        try:
            wanted = []
            for session in await self._book.of_gateway(gateway.gateway_id):
                if session.is_negotiated and session.session_id not in held:
                    await self._book.close(session.session_id, CloseReason.GATEWAY_LOST)
                elif session.expires_at <= self._clock.now():
                    await self._book.close(session.session_id, CloseReason.EXPIRED)
                else:
                    wanted.append(session)
        except BaseException:
            await self.disconnect(association)
            raise
        await self._register(association.gateway)
        log.info("gateway connected", extra={"gateway_id": gateway.gateway_id})
        return association, wanted

    async def heard(
        self, association: Association, *, sessions: int, channels: int, draining: bool
    ) -> None:
        """Take a heartbeat and renew the gateway's lease."""
        association.heard_at = self._clock.monotonic()
        association.gateway = replace(
            association.gateway, sessions=sessions, channels=channels, draining=draining
        )
        await self._register(association.gateway)

    async def disconnect(self, association: Association) -> None:
        """Note the end of a stream; its sessions wait for the gateway to come back."""
        gateway_id = association.gateway.gateway_id
        association.end("closed")
        if self._associations.get(gateway_id) is not association:
            return
        del self._associations[gateway_id]
        self._lost_at[gateway_id] = self._clock.monotonic()
        log.warning(
            "gateway disconnected",
            extra={"gateway_id": gateway_id, "reason": association.end_reason},
        )
        try:
            await self._directory.remove(gateway_id)
        except FairleadError as error:
            log.warning("gateway not deregistered", extra={"reason": error.reason})

    async def patrol(self) -> None:
        """Give up silent streams, close the sessions of gateways that stay away and those past
        their time.
        """
        now = self._clock.monotonic()
        for association in list(self._associations.values()):
            if now - association.heard_at > _MISSED_HEARTBEATS * self.heartbeat_seconds:
                association.end("silent")
                await self.disconnect(association)
        for gateway_id, lost_at in list(self._lost_at.items()):
            if now - lost_at >= self._grace:
                await self._give_up(gateway_id)
        for session in self._book.live():
            if session.expires_at <= self._clock.now():
                closed = await self._book.expire(session.session_id)
                if closed is not None:
                    self.unwant(closed.gateway_id, closed.session_id)

    async def _give_up(self, gateway_id: str) -> None:
        for session in await self._book.of_gateway(gateway_id):
            if gateway_id in self._associations:  # it came back meanwhile
                return
            closed = await self._book.close(session.session_id, CloseReason.GATEWAY_LOST)
            if closed is not None:
                self.unwant(closed.gateway_id, closed.session_id)
        self._lost_at.pop(gateway_id, None)

    async def watch(self, period_seconds: float = 1.0) -> None:
        """Patrol for ever; a store that is away is tried again."""
        while True:
            try:
                await self.patrol()
            except FairleadError as error:
                log.warning("sessions not looked after", extra={"reason": error.reason})
            await asyncio.sleep(period_seconds)

    def end_all(self) -> None:
        """Give up every stream, for a stop; the gateways come back to whoever serves next."""
        for association in list(self._associations.values()):
            association.end("stopping")

    async def gateways(self) -> Sequence[Gateway]:
        """Return the registered gateways, by id."""
        return await self._directory.list()

    async def _register(self, gateway: Gateway) -> None:
        try:
            await self._directory.put(gateway)
        except FairleadError as error:
            log.warning("gateway not registered", extra={"reason": error.reason})
