"""What is told of a session, numbered from 1; descriptions stay in the session itself. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

MOST_EVENTS = 256
"""How many events of a session are kept."""


class SessionState(StrEnum):
    """How far a negotiation has come."""

    OPENED = "opened"
    OFFERED = "offered"
    ANSWERED = "answered"
    CONNECTED = "connected"
    CLOSED = "closed"


class EventKind(StrEnum):
    """What an event tells."""

    STATE = "state"
    ANSWER = "answer"
    CANDIDATES = "candidates"
    RESTART_WANTED = "restart_wanted"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class SessionEvent:
    """One event; `state` belongs to STATE.

    CANDIDATES are those of the round's from `first` up to, not including, `last`, and say whether
    no more will come.
    """

    sequence: int
    kind: EventKind
    round: int = 0
    state: SessionState | None = None
    first: int = 0
    last: int = 0
    ended: bool = False


OF_A_ROUND = frozenset({EventKind.ANSWER, EventKind.CANDIDATES, EventKind.RESTART_WANTED})
"""Events that nobody needs once their round is over."""
