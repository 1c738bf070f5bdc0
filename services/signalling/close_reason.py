"""Why sessions are closed: one word each, with what may be made of it. Pure.

The words with a code are the table that gateways of other systems speak as well; the ones without
are ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class CloseReason(StrEnum):
    """Why a session is closed."""

    REQUESTED = "requested"
    LAUNCH_ENDED = "launch_ended"
    PEER_CLOSED = "peer_closed"
    GATEWAY_LOST = "gateway_lost"
    GATEWAY_BUSY = "gateway_busy"
    EXPIRED = "expired"
    OFFER_FAILED = "offer_failed"
    DRAINED = "drained"
    NORMAL = "normal"
    ERROR = "error"
    TIMEOUT = "timeout"
    SERVER_REFUSE = "server_refuse"
    CLIENT = "client"
    UNKNOWN = "unknown"
    INVALID_INSTRUCTION = "invalid_instruction"
    GUACD_REFUSE = "guacd_refuse"
    CONNECTION_LOST = "connection_lost"
    CONNECTION_FAILED = "connection_failed"
    TUNNEL_CLOSED = "tunnel_closed"
    ADMIN_CLOSED = "admin_closed"
    ERROR_RECORDING = "error_recording"
    GUACD_ERROR = "guacd_error"
    AI_CLOSED = "ai_closed"
    ADDRESS_RESOLUTION_FAILED = "address_resolution_failed"
    DECRYPTION_FAILED = "decryption_failed"
    CONFIGURATION_ERROR = "configuration_error"
    PROTOCOL_ERROR = "protocol_error"
    UPSTREAM_CLOSED = "upstream_closed"


@dataclass(frozen=True, slots=True)
class Closing:
    """What a reason means; `code` is None for our own words.

    `critical` asks for somebody to look, `user_initiated` says that a person or a program wanted
    it, `retryable` that another session may work.
    """

    code: int | None = None
    critical: bool = False
    user_initiated: bool = False
    retryable: bool = False


CLOSINGS: Final[Mapping[CloseReason, Closing]] = MappingProxyType(
    {
        CloseReason.REQUESTED: Closing(user_initiated=True),
        CloseReason.LAUNCH_ENDED: Closing(),
        CloseReason.PEER_CLOSED: Closing(user_initiated=True),
        CloseReason.GATEWAY_LOST: Closing(retryable=True),
        CloseReason.GATEWAY_BUSY: Closing(retryable=True),
        CloseReason.EXPIRED: Closing(retryable=True),
        CloseReason.OFFER_FAILED: Closing(retryable=True),
        CloseReason.DRAINED: Closing(retryable=True),
        CloseReason.NORMAL: Closing(0, user_initiated=True),
        CloseReason.ERROR: Closing(1, critical=True, retryable=True),
        CloseReason.TIMEOUT: Closing(2, retryable=True),
        CloseReason.SERVER_REFUSE: Closing(4, retryable=True),
        CloseReason.CLIENT: Closing(5, user_initiated=True),
        CloseReason.UNKNOWN: Closing(6),
        CloseReason.INVALID_INSTRUCTION: Closing(7, critical=True),
        CloseReason.GUACD_REFUSE: Closing(8, retryable=True),
        CloseReason.CONNECTION_LOST: Closing(9, retryable=True),
        CloseReason.CONNECTION_FAILED: Closing(10, retryable=True),
        CloseReason.TUNNEL_CLOSED: Closing(11, user_initiated=True),
        CloseReason.ADMIN_CLOSED: Closing(12, user_initiated=True),
        CloseReason.ERROR_RECORDING: Closing(13, critical=True),
        CloseReason.GUACD_ERROR: Closing(14, critical=True),
        CloseReason.AI_CLOSED: Closing(15),
        CloseReason.ADDRESS_RESOLUTION_FAILED: Closing(16, retryable=True),
        CloseReason.DECRYPTION_FAILED: Closing(17, critical=True),
        CloseReason.CONFIGURATION_ERROR: Closing(18, critical=True),
        CloseReason.PROTOCOL_ERROR: Closing(19, critical=True),
        CloseReason.UPSTREAM_CLOSED: Closing(20, retryable=True),
    }
)
_BY_WORD: Final = {reason.value: reason for reason in CloseReason} | {
    str(closing.code): reason for reason, closing in CLOSINGS.items() if closing.code is not None
}


def refusal_reason(text: str) -> CloseReason:
    """Return why a session ends whose first offer a gateway refuses for a reason of its own; what
    is not about the gateway is about the offer.
    """
    match text:
        case "gateway_draining":
            return CloseReason.DRAINED
        case "gateway_full":
            return CloseReason.GATEWAY_BUSY
        case _:
            return CloseReason.OFFER_FAILED


def close_reason(text: str) -> CloseReason:
    """Read a word or the number of a code; whatever is not in the table is UNKNOWN."""
    return _BY_WORD.get(text, CloseReason.UNKNOWN)
