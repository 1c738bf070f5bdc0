"""Notices a path that has died in silence: nothing comes, and nobody says why."""

from __future__ import annotations

from enum import Enum
from typing import Final

LEAST_QUIET: Final = 1.0
"""Nobody asks before nothing has come for so long."""
MOST_QUIET: Final = 15.0
_ASKS: Final = 2
_MOST_PATIENCE: Final = 16
_FIRST_RTT: Final = 0.333
_ACK_SECONDS: Final = 0.025


class Step(Enum):
    """What is to be done about a path."""

    WAIT = "wait"
    ASK = "ask"
    GIVE_UP = "give_up"


class PathWatch:
    """What is known of one path; times are seconds of one clock.

    Who has heard nothing for a while asks, and waits for as long as a probe timeout of QUIC (RFC
    9002, section 6.2), at least a second, then twice as long. While the answers are all that comes
    the while doubles, up to 15 s. Behind a hop that takes bytes faster than it passes them on an
    answer may take longer than any before: who gave up a path and found another one that way waits
    twice as long there, until something was answered.
    """

    def __init__(self, now: float) -> None:
        self._heard_at = now
        self._quiet = LEAST_QUIET
        self._asked = 0
        self._asked_at = self._first_asked_at = now
        self._smoothed = _FIRST_RTT
        self._variation = _FIRST_RTT / 2
        self._patience = 1
        self._received = 0
        self._unsent = 0

    def look(self, now: float, *, received: int, unsent: int) -> Step:
        """Say what to do, with how many bytes have come so far, and how many have not left.

        When fewer wait than at the last look the path has carried some.
        """
        has_moved = received != self._received or unsent < self._unsent
        self._received, self._unsent = received, unsent
        if has_moved:
            self._hear(now)
        elif not self._asked:
            if now - self._heard_at >= self._quiet:
                return self._ask(now)
        elif now - self._asked_at >= self._timeout * 2 ** (self._asked - 1):
            return Step.GIVE_UP if self._asked == _ASKS else self._ask(now)
        return Step.WAIT

    def begin(self, now: float, *, was_silent: bool = False) -> None:
        """Watch another path from now on; `was_silent`: the one before was given up for it."""
        self._heard_at = now
        self._quiet = LEAST_QUIET
        self._asked = self._received = self._unsent = 0
        if was_silent:
            self._patience = min(2 * self._patience, _MOST_PATIENCE)

    @property
    def _timeout(self) -> float:
        estimate = self._smoothed + 4 * self._variation + _ACK_SECONDS
        return max(estimate, LEAST_QUIET) * self._patience

    def _ask(self, now: float) -> Step:
        if not self._asked:
            self._first_asked_at = now
        self._asked += 1
        self._asked_at = now
        return Step.ASK

    def _hear(self, now: float) -> None:
        if self._asked:
            self._quiet = min(2 * self._quiet, MOST_QUIET)
            self._patience = 1
            sample = now - self._first_asked_at  # too long where the second one was answered
            self._variation += (abs(self._smoothed - sample) - self._variation) / 4
            self._smoothed += (sample - self._smoothed) / 8
        else:
            self._quiet = LEAST_QUIET
        self._heard_at = now
        self._asked = 0
