"""Gateways as signalling sees them, and which of them a session gets. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from chassis.errors import ResourceExhausted, Unavailable
from signalling.session import SessionMode
from signalling.tunnel import TunnelTerms


class GatewayUnavailable(Unavailable):
    """No gateway takes sessions."""

    def __init__(self) -> None:
        super().__init__(
            "No gateway is connected that takes new sessions.",
            reason="gateway_unavailable",
            remedy="Try again in some seconds; if it stays so, look whether a relay-gateway runs.",
        )


class GatewaysFull(ResourceExhausted):
    """Every gateway holds as many sessions as it takes."""

    def __init__(self) -> None:
        super().__init__(
            "Every gateway holds as many sessions as it takes.",
            reason="gateway_full",
            remedy="Close sessions, or start another relay-gateway.",
        )


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where a worker dials a gateway with one connection, and the one-time ticket for it.

    `execution_id` is that of the terminal which is wanted instead of a port.
    """

    address: str
    ticket: bytes
    execution_id: str = ""


@dataclass(frozen=True, slots=True)
class Gateway:
    """One connected gateway; a capacity of 0 means that it names no bound.

    `can_trickle` says that it sends and takes candidates one by one, and restarts; `tunnel` is what
    tickets of its tunnels are made with, None where it takes no tunnels.
    """

    gateway_id: str
    connected_at: datetime
    capacity: int = 0
    sessions: int = 0
    channels: int = 0
    draining: bool = False
    can_trickle: bool = False
    tunnel: TunnelTerms | None = None

    @property
    def can_tunnel(self) -> bool:
        """Say whether it takes tunnels."""
        return self.tunnel is not None

    @property
    def is_full(self) -> bool:
        """Say whether it holds as many sessions as it takes."""
        return 0 < self.capacity <= self.sessions

    @property
    def load(self) -> float:
        """Share of its capacity that is taken; a gateway without a bound counts its sessions as
        thousandths.
        """
        return self.sessions / self.capacity if self.capacity else self.sessions / 1000

    def can(self, mode: SessionMode) -> bool:
        """Say whether it can have sessions of a mode."""
        match mode:
            case SessionMode.COMPLETE:
                return True
            case SessionMode.TRICKLE:
                return self.can_trickle
            case SessionMode.TUNNEL:
                return self.can_tunnel


def least_loaded(gateways: Iterable[Gateway]) -> Gateway:
    """Choose among gateways that do not drain; raises GatewayUnavailable or GatewaysFull."""
    taking = [gateway for gateway in gateways if not gateway.draining]
    if not taking:
        raise GatewayUnavailable
    free = [gateway for gateway in taking if not gateway.is_full]
    if not free:
        raise GatewaysFull
    return min(free, key=lambda gateway: (gateway.load, gateway.gateway_id))
