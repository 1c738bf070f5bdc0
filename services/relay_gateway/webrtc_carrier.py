"""Answers offers with the WebRTC core that there is: data channels only."""

from __future__ import annotations

from collections.abc import Callable

from chassis.errors import FailedPrecondition
from fairlead_tunnel.carriers import TunnelDesk
from fairlead_tunnel.peer_connection import (
    CoreLacks,
    IcePolicy,
    PeerConnection,
    PeerCore,
    PeerPlan,
)
from relay_gateway.happening import Happening
from relay_gateway.offers import is_sealed, usable_offer
from relay_gateway.ports import Association, ChannelOpening, Dialling
from relay_gateway.session import ModeUnsupported, SealRefused, WantedSession
from relay_gateway.webrtc_association import WebrtcAssociation, servers_of


class CoreMissing(FailedPrecondition):
    """No WebRTC core is installed."""

    def __init__(self) -> None:
        super().__init__(
            "The relay-gateway needs a WebRTC core, and none is installed.",
            reason="aiortc_missing",
            remedy="Run: pip install 'fairlead[relay]'",
        )


class WebrtcCarrier:
    """Makes associations; `desk` is asked for once a channel comes that carries a tunnel."""

    def __init__(
        self,
        *,
        core: PeerCore,
        opener: ChannelOpening,
        dialler: Dialling,
        channels_per_session: int,
        desk: Callable[[], TunnelDesk],
        seal_secret: bytes = b"",
    ) -> None:
        self._core = core
        self._opener = opener
        self._dialler = dialler
        self._channels_per_session = channels_per_session
        self._desk = desk
        self._seal_secret = seal_secret
        self._draining = False

    def drain(self) -> None:
        """Open no new channels from now on, in any association."""
        self._draining = True

    @property
    def is_draining(self) -> bool:
        """Say whether new channels are refused."""
        return self._draining

    async def load(self) -> None:
        """Import the core, which may take a second; raises CoreMissing."""
        try:
            await self._core.load()
        except ImportError as error:
            raise CoreMissing from error

    async def answer(
        self, wanted: WantedSession, take: Callable[[Happening], None]
    ) -> WebrtcAssociation:
        """Answer an offer, sealed as the offer is.

        Raises SdpInvalid, ModeUnsupported, SealRefused. Cancelling leaves nothing behind.
        """
        offer = wanted.offer if is_sealed(wanted.offer) else usable_offer(wanted.offer)
        await self.load()
        connection = self._connect(wanted)
        association = WebrtcAssociation(
            connection=connection,
            can_restart=wanted.trickles,
            session=wanted,
            opener=self._opener,
            dialler=self._dialler,
            desk=self._desk,
            channel_limit=self._channels_per_session,
            is_draining=lambda: self._draining,
            take=take,
        )
        try:
            await association.negotiate(offer)
        except BaseException:
            await association.close()
            raise
        return association

    async def restart(self, association: Association, wanted: WantedSession) -> str:
        """Answer the offer of another round; raises SdpInvalid, RestartUnsupported, SealRefused."""
        return await association.restart(wanted)

    def _connect(self, wanted: WantedSession) -> PeerConnection:
        if is_sealed(wanted.offer) and not self._seal_secret:
            raise SealRefused(
                "The offer is sealed, and this gateway has no secret to open it: its operator sets"
                " FAIRLEAD_RELAY_SEAL_SECRET_FILE, or the client seals nothing."
            )
        try:
            connection = self._core.connect(_plan(wanted))
        except CoreLacks as error:
            raise ModeUnsupported(error.message) from error
        if not is_sealed(wanted.offer):
            return connection
        # Few gateways open sealed offers.
        from fairlead_tunnel.sealed_connection import SealedConnection

        return SealedConnection(
            connection=connection,
            secret=self._seal_secret,
            session=wanted.session_id,
            checked=usable_offer,
        )


def _plan(wanted: WantedSession) -> PeerPlan:
    policy = wanted.ice_policy if wanted.ice_policy in set(IcePolicy) else IcePolicy.ALL
    return PeerPlan(
        trickles=wanted.trickles,
        policy=IcePolicy(policy),
        servers=servers_of(wanted),
    )
