"""Opens sessions: each reserves a gateway, for a launch that holds a sandbox or for one that is
about to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chassis.clock import Clock
from chassis.ids import is_id
from signalling.caller import current_key_id
from signalling.close_reason import CloseReason
from signalling.ice_servers import IcePolicy, IceServer, IceServers, RelayUnavailable, ice_policy
from signalling.launch_errors import LaunchNotHeld
from signalling.session import Session, SessionMode
from signalling.session_book import SessionBook
from signalling.session_errors import (
    GatewayNotReady,
    ModeInvalid,
    SessionKeyConflict,
    SessionNotFound,
    TunnelConflict,
)
from signalling.session_name import SessionNames
from signalling.session_ports import ReachedLaunches
from signalling.session_timings import SessionTimings
from signalling.switchboard import Switchboard
from signalling.tunnel import Tunnel, tunnel_of


class Reservations:
    """Sessions as they are opened, and what their clients get with them."""

    def __init__(
        self,
        *,
        book: SessionBook,
        switchboard: Switchboard,
        launches: ReachedLaunches,
        names: SessionNames,
        clock: Clock,
        timings: SessionTimings,
        servers: IceServers,
        traceparent: Callable[[], str],
    ) -> None:
        self._book = book
        self._switchboard = switchboard
        self._launches = launches
        self._names = names
        self._clock = clock
        self._timings = timings
        self._servers = servers
        self._traceparent = traceparent

    async def open(
        self,
        tenant: str,
        launch_id: str,
        mode: str,
        key: str | None,
        *,
        policy: str = "",
        conversation_id: str = "",
    ) -> Session:
        """Reserve a gateway for a launch that holds a sandbox; a key gives one session, and so does
        a conversation. The id of a session stands for its launch, and for its gateway alone.

        Raises ModeInvalid, ModeUnsupported, IcePolicyUnknown, TunnelConflict, RelayUnavailable,
        SessionNameRefused, SessionKeyConflict, LaunchNotHeld, SessionNotFound, GatewayUnavailable
        and GatewaysFull.
        """
        gateway_id = ""
        if is_id("ses", launch_id):
            launch_id, gateway_id = await self._beside(tenant, launch_id)
        wanted = _Wanted(tenant, launch_id, _mode(mode), ice_policy(policy), gateway_id)
        if wanted.mode is SessionMode.TUNNEL and wanted.ice_policy is not IcePolicy.ALL:
            raise TunnelConflict("", "ICE policy")
        session_id = self._names.given(tenant, key, conversation_id)
        if key is not None or conversation_id:
            try:
                return wanted.same(await self._book.get(session_id))
            except SessionNotFound:
                pass  # the name is new
        if wanted.ice_policy is IcePolicy.RELAY:
            self._servers.for_session(session_id, IcePolicy.RELAY, now=self._clock.now())
        reached = await self._launches.reached(tenant, launch_id)
        if not reached.held:
            raise LaunchNotHeld(launch_id)
        fresh = await self._fresh(session_id, wanted, reached.traceparent)
        session = await self._book.create(fresh)
        await self._close_if_ended(session)
        return wanted.same(session)

    async def of_launch(self, tenant: str, launch_id: str) -> Session:
        """Return the session of a launch's own offer; the first call reserves a gateway, although
        the launch may not hold a sandbox yet.
        """
        session_id = self._names.of_launch(tenant, launch_id)
        if self._book.has_ended(launch_id):
            raise LaunchNotHeld(launch_id)
        try:
            session = await self._book.get(session_id)
        except SessionNotFound:
            wanted = _Wanted(tenant, launch_id, SessionMode.COMPLETE, IcePolicy.ALL)
            session = await self._book.create(await self._fresh(session_id, wanted))
        await self._close_if_ended(session)
        return session

    def ice_servers(self, session: Session) -> Sequence[IceServer]:
        """Return the servers of a session, with fresh credentials; none for a tunnel, and once the
        settings lack the relay that it needs.
        """
        if session.is_tunnel:
            return ()
        try:
            return self._servers.for_session(
                session.session_id, session.ice_policy, now=self._clock.now()
            )
        except RelayUnavailable:
            return ()

    async def tunnel(self, session: Session) -> Tunnel | None:
        """Return what the client of a session attaches with, each time the same; None when it is no
        tunnel, or closed. Raises GatewayNotReady while its gateway is away.
        """
        if not session.is_tunnel or session.is_closed:
            return None
        terms = await self._switchboard.tunnel_terms(session.gateway_id)
        if terms is None:
            raise GatewayNotReady(session.session_id)
        return tunnel_of(session, terms, expires_at=self._timings.ticket_end(session.created_at))

    async def _fresh(self, session_id: str, wanted: _Wanted, traceparent: str = "") -> Session:
        now = self._clock.now()
        if wanted.mode is SessionMode.TUNNEL:  # no offer comes that the gateway's work belongs to
            traceparent = self._traceparent() or traceparent
        return Session(
            session_id=session_id,
            tenant=wanted.tenant,
            launch_id=wanted.launch_id,
            gateway_id=await self._switchboard.choose(wanted.mode, wanted.gateway_id),
            created_at=now,
            expires_at=self._timings.first_limit(wanted.mode, opened=now),
            mode=wanted.mode,
            ice_policy=wanted.ice_policy,
            traceparent=traceparent,
            key_id=current_key_id(),
        )

    async def _beside(self, tenant: str, session_id: str) -> tuple[str, str]:
        """Return launch and gateway of a session; one that is foreign or closed is not found."""
        session = await self._book.get(session_id)
        if session.tenant != tenant or session.is_closed:
            raise SessionNotFound(session_id)
        return session.launch_id, session.gateway_id

    async def _close_if_ended(self, session: Session) -> None:
        """Close a session whose launch ended while it was being stored."""
        if self._book.has_ended(session.launch_id):
            await self._book.close(session.session_id, CloseReason.LAUNCH_ENDED)
            raise LaunchNotHeld(session.launch_id)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What a session was asked for with; the same key must ask for the same."""

    tenant: str
    launch_id: str
    mode: SessionMode
    ice_policy: IcePolicy
    gateway_id: str = ""
    """The one that it has to be; empty for any."""

    def same(self, session: Session) -> Session:
        """Return a session that is what is wanted; raises SessionKeyConflict."""
        gateway_id = session.gateway_id if self.gateway_id else ""
        found = _Wanted(
            session.tenant, session.launch_id, session.mode, session.ice_policy, gateway_id
        )
        if found != self:
            raise SessionKeyConflict
        return session


def _mode(text: str) -> SessionMode:
    try:
        return SessionMode(text)
    except ValueError:
        raise ModeInvalid from None
