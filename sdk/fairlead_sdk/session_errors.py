"""What goes wrong with sessions on this side."""

from __future__ import annotations

from fairlead_sdk.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    FairleadError,
    InvalidArgument,
    Unavailable,
)
from fairlead_sdk.session_records import SessionClosed

_UNKNOWN = "the mesh does not say why"
_CAUSES = {
    "requested": "its owner has closed it",
    "launch_ended": "its launch or sandbox has ended",
    "peer_closed": "the client has ended it",
    "gateway_lost": "its gateway was lost",
    "gateway_busy": "the gateway holds as many sessions as it takes",
    "expired": "nobody has connected it in time",
    "offer_failed": "the gateway could not answer its offer",
    "drained": "its gateway stops",
    "normal": "it has ended as it should",
    "timeout": "the gateway did not answer in time",
    "connection_lost": "the connection to the gateway was lost",
    "connection_failed": "the gateway and the client could not connect",
    "tunnel_closed": "its tunnel was closed",
    "admin_closed": "an administrator has closed it",
    "ai_closed": "a policy has closed it",
}
"""Why sessions end, by reason, where nobody has said it in a sentence."""
_BLOCKED = "See whether UDP between this machine and the gateway is blocked."


class WebrtcMissing(FailedPrecondition):
    """The extra that sessions need is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "Forwarding needs aiortc, which is not installed: pip install 'fairlead-sdk[webrtc]'.",
            reason="webrtc_missing",
            remedy="Run: pip install 'fairlead-sdk[webrtc]'",
        )


class CoreUnable(InvalidArgument):
    """The WebRTC core of this machine cannot do what was asked for."""

    def __init__(self, message: str) -> None:
        super().__init__(
            message, reason="unsupported", remedy="Use mode complete, or build the native core."
        )


class SealSecretInvalid(InvalidArgument):
    """A secret for seals has not 32 bytes."""

    def __init__(self) -> None:
        super().__init__(
            "A secret that seals sessions has 32 bytes.",
            reason="seal_secret_invalid",
            remedy="Give the bytes of the gateway's secret: 64 hexadecimal digits are 32 bytes.",
        )


_SEAL_REMEDY = (
    "Give client and gateway the same secret: --seal-secret-file or FAIRLEAD_SEAL_SECRET_FILE here,"
    " FAIRLEAD_RELAY_SEAL_SECRET_FILE at the gateway; or seal nothing."
)


class SealedOfferRefused(FailedPrecondition):
    """The gateway does not open a sealed offer."""

    def __init__(self, message: str) -> None:
        super().__init__(message, reason="seal_refused", remedy=_SEAL_REMEDY)


class SealRejected(FailedPrecondition):
    """What the gateway answered is not sealed as it should be."""

    def __init__(self, message: str) -> None:
        super().__init__(
            message,
            reason="seal_rejected",
            remedy=_SEAL_REMEDY,
        )


class OpenTimeout(DeadlineExceeded):
    """The mesh did not open a session in time."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"The mesh did not open a session within {seconds:g} seconds.",
            reason="open_timeout",
            remedy="Try again in some seconds; if it stays so, see whether its Redis answers.",
        )


class ConnectTimeout(DeadlineExceeded):
    """The gateway answered, but no path to it was found in time."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"The gateway could not be reached within {seconds:g} seconds.",
            reason="connect_timeout",
            remedy=_BLOCKED,
        )


class ConnectionFailed(Unavailable):
    """No path to the gateway was found, or its answer made no sense."""

    def __init__(self) -> None:
        super().__init__(
            "The gateway could not be reached over UDP.",
            reason="connection_failed",
            remedy=_BLOCKED,
        )


class SessionEnded(Unavailable):
    """The mesh closed the session; `fields` say whether another one may work."""

    def __init__(self, closed: SessionClosed) -> None:
        self.closed = closed
        super().__init__(
            closed.message or f"The session was closed: {_CAUSES.get(closed.reason, _UNKNOWN)}.",
            reason=closed.reason or "session_closed",
            remedy="Open another session." if closed.retryable else "",
            fields={"retryable": str(closed.retryable).lower()},
        )


class RestartFailed(FailedPrecondition):
    """No other path was negotiated; `fields` name the cause."""

    def __init__(self, cause: str) -> None:
        super().__init__(
            "The session could not be restarted.",
            reason="restart_failed",
            remedy="Open another session.",
            fields={"cause": cause},
        )


class TunnelLost(Unavailable):
    """The association with the gateway ended."""

    def __init__(self) -> None:
        super().__init__(
            "The connection to the gateway was lost.",
            reason="tunnel_lost",
            remedy="Forward again; the launch may also have ended.",
        )


_AGAIN = frozenset({"gateway_not_ready", "unavailable", "gateway_timeout"})
_FINAL = frozenset({"offer_refused", "gateway_gone", "gateway_busy"})
_GONE = frozenset({"gateway_gone", "gateway_busy", "gateway_lost", "drained"})
_KINDS = (Unavailable, DeadlineExceeded)


def may_pass(error: FairleadError | TimeoutError) -> bool:
    """Say whether the same call may succeed a little later."""
    if isinstance(error, TimeoutError):
        return True
    return error.reason in _AGAIN or (isinstance(error, _KINDS) and error.reason not in _FINAL)


def is_gone(error: FairleadError) -> bool:
    """Say whether the session's gateway has gone or takes none, so that another session may get
    another gateway.
    """
    return error.reason in _GONE
