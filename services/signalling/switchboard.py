"""The gateways that are connected to this process: whom a session can get, and what each gateway is
told.

Level-triggered: a gateway that comes (back) states what it holds and gets everything that is wanted
of it, so that nothing that was said on a lost stream matters.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from types import MappingProxyType

from chassis.clock import Clock
from chassis.errors import FairleadError
from signalling.association import Association, Unwant
from signalling.close_reason import CloseReason
from signalling.gateway import Gateway, GatewaysFull, GatewayUnavailable, least_loaded
from signalling.session import Session, SessionMode
from signalling.session_book import SessionBook
from signalling.session_errors import ModeUnsupported
from signalling.session_ports import GatewayDirectory, Notice
from signalling.tunnel import TunnelTerms

log = logging.getLogger(__name__)

_MISSED_HEARTBEATS = 3
_FOLLOW_AGAIN_SECONDS = 0.5
_UNANSWERED_GRACE_SECONDS = 5.0
"""The longest that a gateway waits before it dials again: one that lives is back by then."""


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
        book.tell_gateway = self.tell
        self._associations: dict[str, Association] = {}
        self._elsewhere: Sequence[Gateway] = ()
        self._lost_at: dict[str, float] = {}

    def connected(self) -> Collection[str]:
        """Return the ids of the gateways that are connected here."""
        return tuple(self._associations)

    def is_present(self, gateway_id: str) -> bool:
        """Say whether a gateway is connected, here or as far as is known at another replica."""
        return gateway_id in self._associations or any(
            gateway.gateway_id == gateway_id for gateway in self._elsewhere
        )

    async def choose(self, mode: SessionMode = SessionMode.COMPLETE, only: str = "") -> str:
        """Return the id of the gateway for a new session, here or at another replica; with `only`
        that one or none.

        Raises GatewayUnavailable, GatewaysFull and, where gateways are there and none can have the
        mode, ModeUnsupported.
        """
        try:
            return self._chosen(mode, only)
        except (GatewayUnavailable, GatewaysFull, ModeUnsupported):
            await self._look()
            return self._chosen(mode, only)

    async def tunnel_terms(self, gateway_id: str) -> TunnelTerms | None:
        """Return what tickets of a gateway are made with; None where it is not there."""
        found = self._known().get(gateway_id)
        if found is None:
            await self._look()
            found = self._known().get(gateway_id)
        return found.tunnel if found else None

    async def _look(self) -> None:
        """List the registered gateways, without one whose stream ended here meanwhile."""
        begun = self._clock.monotonic()
        with self._book.lenience():
            registered = await self._directory.list()
        self._elsewhere = [
            gateway
            for gateway in registered
            if self._lost_at.get(gateway.gateway_id, begun - 1) < begun
        ]

    def _overlook(self, gateway_id: str) -> None:
        """Count on a gateway no more until it registers again."""
        self._elsewhere = [each for each in self._elsewhere if each.gateway_id != gateway_id]

    def _known(self) -> Mapping[str, Gateway]:
        """Return the gateways that are connected, here or as far as is known elsewhere, by id."""
        gateways = {gateway.gateway_id: gateway for gateway in self._elsewhere}
        for gateway_id, association in self._associations.items():
            gateways[gateway_id] = association.gateway
        return gateways

    def _chosen(self, mode: SessionMode, only: str) -> str:
        silent = {name for name, here in self._associations.items() if self._is_silent(here)}
        gateways = [
            each
            for each in self._known().values()
            if each.gateway_id not in silent and only in ("", each.gateway_id)
        ]
        able = [gateway for gateway in gateways if gateway.can(mode)]
        if gateways and not able:
            raise ModeUnsupported
        return least_loaded(
            replace(gateway, sessions=max(gateway.sessions, self._book.held(gateway.gateway_id)))
            for gateway in able
        ).gateway_id

    def tell(self, session: Session) -> None:
        """Tell a session's gateway what is new; one that is away learns it from its welcome."""
        association = self._associations.get(session.gateway_id)
        if association is not None:
            association.tell(session)

    def forget(self, gateway_id: str, session_id: str) -> None:
        """Note that a gateway has closed a session by itself."""
        association = self._associations.get(gateway_id)
        if association is not None:
            association.forget(session_id)

    def unwant(self, gateway_id: str, session_id: str) -> None:
        """Tell a gateway to close a session, whatever it was told of it."""
        association = self._associations.get(gateway_id)
        if association is not None:
            association.forget(session_id)
            association.give(Unwant(session_id))

    async def connect(
        self,
        gateway: Gateway,
        held: Collection[str],
        ended: Mapping[str, CloseReason] = MappingProxyType({}),
    ) -> tuple[Association, Sequence[Session]]:
        """Take a gateway that holds the sessions `held`; return its association and what is wanted
        of it.

        A session that was answered and is not held any more is closed for the reason that `ended`
        has for it, else as `gateway_lost`. An earlier stream of the same gateway is ended.
        """
        association = Association(gateway=gateway, heard_at=self._clock.monotonic())
        earlier = self._associations.get(gateway.gateway_id)
        if earlier is not None:
            earlier.end("replaced")
        self._associations[gateway.gateway_id] = association
        self._lost_at.pop(gateway.gateway_id, None)
        try:
            for session in await self._book.of_gateway(gateway.gateway_id):
                if session.is_negotiated and session.session_id not in held:
                    reason = ended.get(session.session_id, CloseReason.GATEWAY_LOST)
                    await self._book.close(session.session_id, reason)
                else:
                    await self._book.expire_if_due(session)
        except BaseException:
            await self.disconnect(association)
            raise
        await self._register(association.gateway)
        # What came or went meanwhile is in the book; from here on changes are told.
        wanted = [
            session for session in self._book.live() if session.gateway_id == gateway.gateway_id
        ]
        association.welcome(wanted)
        log.info("gateway connected", extra={"gateway_id": gateway.gateway_id})
        return association, wanted

    def heard(
        self, association: Association, *, sessions: int, channels: int, draining: bool
    ) -> None:
        """Take a heartbeat."""
        association.heard_at = self._clock.monotonic()
        association.gateway = replace(
            association.gateway, sessions=sessions, channels=channels, draining=draining
        )

    async def renew(self, association: Association) -> bool:
        """Renew the lease of a gateway that was heard; say whether the store took it."""
        is_registered = await self._register(association.gateway)
        if association.gateway.gateway_id not in self._associations:
            await self._deregister(association.gateway.gateway_id)  # its stream ended meanwhile
        return is_registered

    async def disconnect(self, association: Association) -> None:
        """Note the end of a stream; its sessions wait for the gateway to come back."""
        gateway_id = association.gateway.gateway_id
        association.end("closed")
        if self._associations.get(gateway_id) is not association:
            return
        del self._associations[gateway_id]
        self._lost_at[gateway_id] = self._clock.monotonic()
        self._overlook(gateway_id)
        log.warning(
            "gateway disconnected",
            extra={"gateway_id": gateway_id, "reason": association.end_reason},
        )
        await self._deregister(gateway_id)
        if gateway_id not in self._associations:
            self._overlook(gateway_id)  # somebody looked before it was removed

    async def patrol(self) -> None:
        """Give up silent streams, close the sessions of gateways that stay away and those past
        their time.
        """
        now = self._clock.monotonic()
        for association in list(self._associations.values()):
            if self._is_silent(association):
                association.end("silent")
                await self.disconnect(association)
        await self._look()
        present = {gateway.gateway_id for gateway in self._elsewhere} | set(self._associations)
        for gateway_id in {session.gateway_id for session in self._book.live()} - present:
            self._lost_at.setdefault(gateway_id, now)  # another replica was lost with it
        for gateway_id, lost_at in list(self._lost_at.items()):
            if gateway_id in present:
                del self._lost_at[gateway_id]
            elif now - lost_at >= self._grace:
                await self._give_up(gateway_id)
            elif now - lost_at >= _UNANSWERED_GRACE_SECONDS:
                await self._close_unanswered(gateway_id)
        for session in self._book.live():
            await self._book.expire_if_due(session)

    def _is_silent(self, association: Association) -> bool:
        """Say whether a gateway was not heard for the time that its registration lasts: until the
        next patrol it is here and not chosen.
        """
        until = association.heard_at + _MISSED_HEARTBEATS * self.heartbeat_seconds
        return self._clock.monotonic() >= until

    async def _give_up(self, gateway_id: str) -> None:
        for session in await self._book.of_gateway(gateway_id):
            if gateway_id in self._associations:  # it came back meanwhile
                return
            await self._book.close(session.session_id, CloseReason.GATEWAY_LOST)
        self._lost_at.pop(gateway_id, None)

    async def _close_unanswered(self, gateway_id: str) -> None:
        """Close the sessions that nothing is lost of: their clients wait, and may have another."""
        for session in await self._book.of_gateway(gateway_id):
            if session.is_unanswered and gateway_id not in self._associations:
                await self._book.close(session.session_id, CloseReason.GATEWAY_LOST)

    async def watch(self, period_seconds: float = 1.0) -> None:
        """Patrol for ever; a store that is away is tried again."""
        while True:
            try:
                await self.patrol()
            except FairleadError as error:
                # Gateways that cannot come back while the store is away are not lost for that.
                now = self._clock.monotonic()
                self._lost_at = dict.fromkeys(self._lost_at, now)
                log.warning("sessions not looked after", extra={"reason": error.reason})
            await asyncio.sleep(period_seconds)

    async def follow(
        self, changes: Callable[[], AsyncGenerator[Sequence[Notice] | None, None]]
    ) -> None:
        """Follow what other replicas change, for ever; where the notices were interrupted, look at
        everything again.
        """
        while True:
            try:
                async with aclosing(changes()) as batches:
                    async for batch in batches:
                        if batch is None:
                            await self._book.look_again(self.connected())
                        else:
                            await self._book.hear(batch, self.connected())
            except FairleadError as error:
                log.warning("other replicas not followed", extra={"reason": error.reason})
            await asyncio.sleep(_FOLLOW_AGAIN_SECONDS)

    def end_all(self) -> None:
        """Give up every stream, for a stop; the gateways come back to whoever serves next."""
        for association in list(self._associations.values()):
            association.end("stopping")

    async def gateways(self) -> Sequence[Gateway]:
        """Return the registered gateways, by id."""
        return await self._directory.list()

    async def _register(self, gateway: Gateway) -> bool:
        try:
            with self._book.lenience():
                await self._directory.put(gateway)
        except FairleadError as error:
            log.warning("gateway not registered", extra={"reason": error.reason})
            return False
        return True

    async def _deregister(self, gateway_id: str) -> None:
        try:
            await self._directory.remove(gateway_id)
        except FairleadError as error:
            log.warning("gateway not deregistered", extra={"reason": error.reason})
