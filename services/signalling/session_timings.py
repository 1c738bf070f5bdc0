"""How long the steps of a session may take."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from signalling.ice_servers import IcePolicy
from signalling.session import SessionMode


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

    def first_limit(self, mode: SessionMode, *, opened: datetime) -> datetime:
        """Return until when a session waits for its offer; a tunnel for the gateway's word that its
        client has come, which may do so until its ticket ends.
        """
        if mode is SessionMode.TUNNEL:
            return self.ticket_end(opened) + timedelta(seconds=self.connect_seconds)
        return opened + timedelta(seconds=self.session_seconds)

    def ticket_end(self, opened: datetime) -> datetime:
        """Return until when the ticket of a tunnel is good."""
        return opened + timedelta(seconds=self.session_seconds)
