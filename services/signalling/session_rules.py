"""What each message does in each phase of a negotiation: one table, and nothing else decides."""

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
    INVALID = "invalid"
    """It cannot be; its sender is refused."""
    OVER = "over"
    """The session is closed; its sender is refused."""


_SIGNS: Final = {
    "t": Verdict.TAKE,
    "r": Verdict.REPEAT,
    "l": Verdict.LATE,
    "-": Verdict.IGNORE,
    "x": Verdict.INVALID,
    "o": Verdict.OVER,
}


def _row(signs: str) -> Mapping[Phase, Verdict]:
    return MappingProxyType(
        {phase: _SIGNS[sign] for phase, sign in zip(Phase, signs.split(), strict=True)}
    )


RULES: Final[Mapping[Word, Mapping[Phase, Verdict]]] = MappingProxyType(
    {
        # opened, offered, answered, connected, restarting, refused, closed.
        Word.OFFER: _row("     t r r r r r o"),
        Word.CANDIDATES: _row("t t t l t l o"),
        Word.RESTART: _row("   x x t t r t o"),
        Word.ANSWER: _row("    x t - - t - o"),
        Word.REFUSAL: _row("   - t - - t - -"),
        Word.FOUND: _row("     x t t - t - o"),
        Word.WISH: _row("      - - t t - t o"),
        Word.CONNECTED: _row(" x x t t t t o"),
        Word.CLOSE: _row("     t t t t t t -"),
    }
)
