"""What a gateway knows of sessions, ports and refusals; pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from chassis.errors import (
    FailedPrecondition,
    InvalidArgument,
    ResourceExhausted,
    Unavailable,
)


class CloseReason(StrEnum):
    """Why a session is closed, as signalling is told."""

    PEER_CLOSED = "peer_closed"
    CONNECTION_FAILED = "connection_failed"
    REQUESTED = "requested"
    DRAINED = "drained"
    """The gateway stops; another one may take its place."""


@dataclass(frozen=True, slots=True)
class IceServer:
    """A STUN or TURN server for one session; name and password are for TURN only."""

    urls: tuple[str, ...]
    username: str = ""
    credential: str = ""


@dataclass(frozen=True, slots=True)
class WantedSession:
    """A session that signalling wants here, with all that it knows of the round under way.

    `offer` is empty when none has come yet, and always of a tunnel; `ice_policy` is `all`, `relay`
    or `direct`.
    """

    session_id: str
    offer: str
    expires_at: datetime
    traceparent: str = ""
    round: int = 1
    trickles: bool = False
    candidates: tuple[str, ...] = ()
    ended: bool = False
    ice_servers: tuple[IceServer, ...] = ()
    ice_policy: str = "all"
    is_tunnel: bool = False


class SdpInvalid(InvalidArgument):
    """An offer cannot be answered."""

    def __init__(self, cause: str) -> None:
        super().__init__(
            f"The offer cannot be answered: {cause}.",
            reason="sdp_invalid",
            remedy="Send a complete SDP offer with one application section for data channels.",
        )


class OfferTimeout(Unavailable):
    """An offer was not answered in time."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            "The gateway could not answer the offer in time.",
            reason="offer_timeout",
            remedy="Open another session.",
            fields={"session_id": session_id},
        )


class RestartUnsupported(FailedPrecondition):
    """The session cannot have another round."""

    def __init__(self) -> None:
        super().__init__(
            "This gateway cannot restart the session.",
            reason="restart_unsupported",
            remedy="Open another session.",
        )


class ModeUnsupported(FailedPrecondition):
    """The gateway's WebRTC core cannot do what the session asks for."""

    def __init__(self, cause: str) -> None:
        super().__init__(
            cause,
            reason="mode_unsupported",
            remedy="Open a session of mode complete, or build the native core.",
        )


class SealRefused(InvalidArgument):
    """A sealed offer cannot be opened."""

    def __init__(self, cause: str) -> None:
        super().__init__(
            cause,
            reason="seal_refused",
            remedy="Give the client and the gateway the same secret, or seal nothing.",
        )


class GatewayFull(ResourceExhausted):
    """As many sessions are held as are taken."""

    def __init__(self) -> None:
        super().__init__(
            "The gateway holds as many sessions as it takes.",
            reason="gateway_full",
            remedy="Open another session, so that another gateway is chosen.",
        )


class GatewayDraining(Unavailable):
    """Nothing new is taken."""

    def __init__(self) -> None:
        super().__init__(
            "The gateway is about to stop and takes nothing new.",
            reason="gateway_draining",
            remedy="Open another session.",
        )


class SessionOver(FailedPrecondition):
    """A ticket leads to a session that has ended, or whose tunnel is attached."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            "The session of this tunnel is over.",
            reason="session_closed",
            remedy="Open another session.",
            fields={"session_id": session_id},
        )


class ChannelLimit(ResourceExhausted):
    """A session has as many open channels as it may have."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"The session has {limit} open channels, which is the most that it may have.",
            reason="channel_limit",
            remedy="Close connections, or open another session.",
        )


class ChannelUnknown(InvalidArgument):
    """A channel is not one that a gateway carries."""

    def __init__(self) -> None:
        super().__init__(
            "A channel leads to `tcp:<port>`, `tcp:<host>:<port>` or `terminal:<execution>`; a data"
            " channel is ordered and reliable, with protocol `fairlead.bytes.v1`.",
            reason="channel_unknown",
        )


class PortNotGranted(FailedPrecondition):
    """Signalling refuses a connection to a port, with its own reason."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message, reason=reason)


class PortTimeout(Unavailable):
    """The worker did not bring a connection in time; port 0 is a terminal."""

    def __init__(self, port: int = 0) -> None:
        what = f"port {port} of the sandbox" if port else "the terminal"
        super().__init__(
            f"The host did not connect {what} in time.",
            reason="port_timeout",
            remedy="Try again in some seconds.",
        )


class OpeningsExceeded(ResourceExhausted):
    """As many connections are being opened as are waited for."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"The gateway is opening {limit} connections already.",
            reason="too_many_openings",
            remedy="Try again in a moment.",
        )
