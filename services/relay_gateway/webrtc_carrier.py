"""Answers offers with the WebRTC core that there is: data channels only."""

from __future__ import annotations

from collections.abc import Callable

from chassis.errors import FailedPrecondition
from fairlead_tunnel.peer_connection import CoreLacks, IcePolicy, IceServer, PeerCore, PeerPlan
from relay_gateway.happening import Happening
from relay_gateway.offers import usable_offer
from relay_gateway.ports import Association, ChannelOpening
from relay_gateway.session import ModeUnsupported, WantedSession
from relay_gateway.webrtc_association import WebrtcAssociation


class CoreMissing(FailedPrecondition):
    """No WebRTC core is installed."""

    def __init__(self) -> None:
        super().__init__(
            "The relay-gateway needs a WebRTC core, and none is installed.",
            reason="aiortc_missing",
            remedy="Run: pip install 'fairlead[relay]'",
        )


class WebrtcCarrier:
    """Makes associations."""

    def __init__(
        self, *, core: PeerCore, opener: ChannelOpening, channels_per_session: int
    ) -> None:
        self._core = core
        self._opener = opener
        self._channels_per_session = channels_per_session
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
        """Answer an offer; raises SdpInvalid, ModeUnsupported. Cancelling leaves nothing behind."""
        offer = usable_offer(wanted.offer)
        await self.load()
        try:
            connection = self._core.connect(_plan(wanted))
        except CoreLacks as error:
            raise ModeUnsupported(error.message) from error
        association = WebrtcAssociation(
            connection=connection,
            can_restart=wanted.trickles,
            session=wanted,
            opener=self._opener,
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
        """Answer the offer of another round; raises SdpInvalid, RestartUnsupported."""
        return await association.restart(usable_offer(wanted.offer))


def _plan(wanted: WantedSession) -> PeerPlan:
    policy = wanted.ice_policy if wanted.ice_policy in set(IcePolicy) else IcePolicy.ALL
    return PeerPlan(
        trickles=wanted.trickles,
        policy=IcePolicy(policy),
        servers=tuple(
            IceServer(server.urls, server.username, server.credential)
            for server in wanted.ice_servers
        ),
    )
