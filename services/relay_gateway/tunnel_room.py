"""Takes clients that come with tickets of this start of the gateway."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from chassis.clock import Clock
from chassis.errors import FairleadError
from fairlead_tunnel.carriers import TunnelDesk
from fairlead_tunnel.driver_sides import CarrierDriver
from fairlead_tunnel.handshake import AttachRefused
from fairlead_tunnel.ticket import SECRET_BYTES, Grant, TicketKey
from relay_gateway.carried_tunnel import CarriedTunnel
from relay_gateway.message import TunnelTerms
from relay_gateway.session import WantedSession
from relay_gateway.switchboard import Switchboard
from relay_gateway.tunnel_session import TunnelSession

log = logging.getLogger(__name__)


class MakeTunnel(Protocol):
    """Makes the tunnel of a session: `LoopTunnel` or `PumpedTunnel`, with what either needs."""

    def __call__(
        self,
        *,
        session: TunnelSession,
        is_draining: Callable[[], bool],
        forget: Callable[[], None],
    ) -> CarriedTunnel:
        """Make it, without carriers."""
        ...


def either(preferred: MakeTunnel, other: MakeTunnel) -> MakeTunnel:
    """Return what makes tunnels by the first, and by the other once the first's pump has failed."""

    def make(
        *, session: TunnelSession, is_draining: Callable[[], bool], forget: Callable[[], None]
    ) -> CarriedTunnel:
        try:
            return preferred(session=session, is_draining=is_draining, forget=forget)
        except RuntimeError as error:
            log.warning("the pump of tunnels has failed", extra={"fault": str(error)})
            return other(session=session, is_draining=is_draining, forget=forget)

    return make


class TunnelRoom:
    """The gateway's tunnels; `desk` meets each carrier, whatever it runs over.

    Key and secret are made here and die with the process, so that no ticket and no hello of an
    earlier start opens anything.
    """

    def __init__(
        self,
        *,
        gateway_id: str,
        switchboard: Switchboard,
        make_tunnel: MakeTunnel,
        clock: Clock,
        random: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._switchboard = switchboard
        self._make_tunnel = make_tunnel
        self._key = X25519PrivateKey.from_private_bytes(random(32))
        self._secret = random(SECRET_BYTES)
        self.desk = TunnelDesk(
            tickets=TicketKey(secret=self._secret, gateway_id=gateway_id),
            private_key=self._key.private_bytes_raw(),
            begin=self._begin,
            unix_time=lambda: clock.now().timestamp(),
            random=random,
        )

    def terms(self, urls: Sequence[str]) -> TunnelTerms:
        """Return what signalling makes tickets with, for clients that reach those URLs."""
        return TunnelTerms(self._key.public_key().public_bytes_raw(), self._secret, urls)

    def _begin(self, grant: Grant) -> CarrierDriver:
        wanted = WantedSession(
            session_id=grant.session,
            offer="",
            expires_at=datetime.fromtimestamp(grant.expires, UTC),
            is_tunnel=True,
        )
        try:
            session = self._switchboard.carry(wanted)
        except FairleadError as error:
            raise AttachRefused(error.reason, error.message) from None
        tunnel = self._make_tunnel(
            session=session,
            is_draining=lambda: self._switchboard.is_draining,
            forget=lambda: self.desk.forget(bytes.fromhex(grant.tunnel)),
        )
        session.carry(tunnel)
        return tunnel.driver
