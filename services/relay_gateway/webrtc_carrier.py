"""Answers offers with aiortc: data channels only, complete answers, never a STUN server."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from relay_gateway.aiortc_library import AiortcLibrary
from relay_gateway.ports import ChannelOpening
from relay_gateway.session import SdpInvalid, WantedSession
from relay_gateway.webrtc_association import WebrtcAssociation

if TYPE_CHECKING:
    from aiortc import RTCPeerConnection

MOST_OFFER_BYTES = 64 * 1024
MOST_CANDIDATES = 100
"""RFC 8445, section 6.1.2.5: a checklist of 100 pairs is what an agent need take."""

log = logging.getLogger(__name__)


class WebrtcCarrier:
    """Makes associations."""

    def __init__(
        self, *, library: AiortcLibrary, opener: ChannelOpening, channels_per_session: int
    ) -> None:
        self._library = library
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

    async def answer(self, wanted: WantedSession) -> WebrtcAssociation:
        """Answer an offer; raises SdpInvalid. Cancelling leaves nothing behind."""
        offer = usable_offer(wanted.offer)
        await self._library.load()
        from aiortc import RTCConfiguration, RTCPeerConnection

        connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        association = WebrtcAssociation(
            connection=connection,
            session=wanted,
            opener=self._opener,
            channel_limit=self._channels_per_session,
            is_draining=lambda: self._draining,
        )
        try:
            await association.negotiate(_answer(connection, offer))
        except BaseException:
            await association.close()
            raise
        return association


def usable_offer(offer: str) -> str:
    """Return `offer` without candidates that only multicast DNS can resolve; raises SdpInvalid.

    Those come from browsers that hide their addresses; they connect all the same, as peer-reflexive
    candidates (RFC 8445, section 7.3.1.3), and no multicast leaves the gateway.
    """
    if len(offer.encode("utf-8", "replace")) > MOST_OFFER_BYTES:
        raise SdpInvalid("it is larger than 64 KiB")
    lines = offer.replace("\r\n", "\n").split("\n")
    sections = [line for line in lines if line.startswith("m=")]
    if len(sections) != 1 or not sections[0].startswith("m=application "):
        raise SdpInvalid("it must have one section, for data channels")
    for attribute in ("ice-ufrag", "ice-pwd", "fingerprint"):
        if not any(line.startswith(f"a={attribute}:") for line in lines):
            raise SdpInvalid(f"it lacks `a={attribute}`")
    candidates = [line for line in lines if line.startswith("a=candidate:")]
    if len(candidates) > MOST_CANDIDATES:
        raise SdpInvalid(f"it has more than {MOST_CANDIDATES} candidates")
    kept = [
        line
        for line in lines
        if not (line.startswith("a=candidate:") and _host(line).endswith(".local"))
    ]
    return "\r\n".join(kept)


def _host(candidate: str) -> str:
    parts = candidate.split()
    return parts[4].lower() if len(parts) > 4 else ""


async def _answer(connection: RTCPeerConnection, offer: str) -> str:
    from aiortc import RTCSessionDescription

    try:
        await connection.setRemoteDescription(RTCSessionDescription(sdp=offer, type="offer"))
        await connection.setLocalDescription(await connection.createAnswer())
    except Exception as error:
        # aiortc's parser raises whatever its lines run into: ValueError, KeyError, IndexError,
        # AttributeError, AssertionError and its own.
        log.info("offer not understood", extra={"cause": type(error).__name__})
        raise SdpInvalid("it is not a description that WebRTC knows") from error
    return connection.localDescription.sdp
