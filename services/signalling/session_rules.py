"""What each message does in each phase of a negotiation, or of a tunnel: one table, and nothing
else decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class Phase(StrEnum):
    """How far the round under way has come; finer than the state that clients see."""

    OPENED = "opened"
    OFFERED = "offered"
    ANSWERED = "answered"
    CONNECTED = "connected"
    RESTARTING = "restarting"
    REFUSED = "refused"
    WAITING = "waiting"
    """A tunnel whose client has not come yet."""
    ATTACHED = "attached"
    """A tunnel whose client has come."""
    CLOSED = "closed"


class Word(StrEnum):
    """What client or gateway can say."""

    OFFER = "offer"
    CANDIDATES = "candidates"
    RESTART = "restart"
    ANSWER = "answer"
    REFUSAL = "refusal"
    FOUND = "found"
    WISH = "wish for a restart"
    CONNECTED = "connected"
    CLOSE = "close"


class Verdict(StrEnum):
    """What a message does."""

    TAKE = "take"
    REPEAT = "repeat"
    """The same again changes nothing; another one is a conflict."""
    LATE = "late"
    """It changes nothing, and its sender is told so."""
    IGNORE = "ignore"
    """It changes nothing."""
    CONFLICT = "conflict"
    """A tunnel has no such message; its sender is refused."""
    INVALID = "invalid"
    """It cannot be; its sender is refused."""
    OVER = "over"
    """The session is closed; its sender is refused."""


_SIGNS: Final = {
    "t": Verdict.TAKE,
    "r": Verdict.REPEAT,
    "l": Verdict.LATE,
    "-": Verdict.IGNORE,
    "c": Verdict.CONFLICT,
    "x": Verdict.INVALID,
    "o": Verdict.OVER,
}


def _row(signs: str) -> Mapping[Phase, Verdict]:
    return MappingProxyType(
        {phase: _SIGNS[sign] for phase, sign in zip(Phase, signs.split(), strict=True)}
    )


RULES: Final[Mapping[Word, Mapping[Phase, Verdict]]] = MappingProxyType(
    {
        # opened, offered, answered, connected, restarting, refused, waiting, attached, closed.
        Word.OFFER: _row("     t r r r r r c c o"),
        Word.CANDIDATES: _row("t t t l t l c c o"),
        Word.RESTART: _row("   x x t t r t c c o"),
        Word.ANSWER: _row("    x t - - t - x x o"),
        Word.REFUSAL: _row("   - t - - t - t - -"),
        Word.FOUND: _row("     x t t - t - x x o"),
        Word.WISH: _row("      - - t t - t - - o"),
        Word.CONNECTED: _row(" x x t t t t t t o"),
        Word.CLOSE: _row("     t t t t t t t t -"),
    }
)
