"""How long the steps of a session may take."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from signalling.ice_servers import IcePolicy


@dataclass(frozen=True, slots=True)
class SessionTimings:
    """How long things may take, in seconds; a path is made through a relay more slowly."""

    session_seconds: float = 60.0
    offer_timeout_seconds: float = 10.0
    connect_seconds: float = 24.0
    relay_connect_seconds: float = 60.0

    def connect_limit(self, policy: IcePolicy) -> timedelta:
        """Return how long a session may take from its offer to its connection."""
        is_relayed = policy is IcePolicy.RELAY
        return timedelta(seconds=self.relay_connect_seconds if is_relayed else self.connect_seconds)
