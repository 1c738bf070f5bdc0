"""What happens to a peer connection, as the use cases see it; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from relay_gateway.session import CloseReason


@dataclass(frozen=True, slots=True)
class Found:
    """A local candidate of the round under way."""

    candidate: str


@dataclass(frozen=True, slots=True)
class AllFound:
    """The round has no more local candidates."""


@dataclass(frozen=True, slots=True)
class PathUp:
    """Channels carry."""


@dataclass(frozen=True, slots=True)
class PathDown:
    """Nothing is heard of the peer; it may come back, and a restart may find another path."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The connection is over."""

    reason: CloseReason


Happening: TypeAlias = Found | AllFound | PathUp | PathDown | Ended
