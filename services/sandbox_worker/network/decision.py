"""What was decided about one connection, and the last of such decisions."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

_MOST_KEPT = 128


class Reason(StrEnum):
    """Why a connection was allowed, refused or cut."""

    ALLOWED = "allowed"
    NETWORK_NONE = "network_none"
    NOT_LISTED = "not_listed"
    PORT_NOT_LISTED = "port_not_listed"
    REQUEST_INVALID = "request_invalid"
    UNRESOLVED = "unresolved"
    ADDRESS_PRIVATE = "address_private"
    ADDRESS_OWN = "address_own"
    MESH_PORT = "mesh_port"
    UNREACHABLE = "unreachable"
    TLS_MISSING = "tls_missing"
    SNI_MISSING = "sni_missing"
    SNI_MISMATCH = "sni_mismatch"
    TIMED_OUT = "timed_out"
    BUSY = "busy"
    REVOKED = "revoked"


class Refused(Exception):
    """A connection is not to be; `address` is what was looked at last, or empty."""

    def __init__(self, reason: Reason, *, address: str = "") -> None:
        super().__init__(reason.value)
        self.reason = reason
        self.address = address


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision; `host` is empty when the request could not be read, `address` before one is
    chosen. A connection that was allowed and cut later has a second one, with REVOKED.
    """

    at: datetime
    host: str
    port: int
    address: str
    reason: Reason

    @property
    def allowed(self) -> bool:
        """Whether bytes were carried."""
        return self.reason is Reason.ALLOWED


class LastDecisions:
    """The last 128 decisions about one sandbox, oldest first."""

    def __init__(self) -> None:
        self._kept: deque[Decision] = deque(maxlen=_MOST_KEPT)

    def add(self, decision: Decision) -> None:
        """Keep one; the oldest goes."""
        self._kept.append(decision)

    def all(self) -> Sequence[Decision]:
        """Return those that are kept."""
        return tuple(self._kept)
