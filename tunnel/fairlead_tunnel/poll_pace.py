"""How long polls are held and waited for, and when the next empty one goes out; without I/O."""

from __future__ import annotations

from typing import Final

ACTIVE_HOLD: Final = 0.025
"""For so long an answer of what a poll brought may ride with the poll itself."""
BUSY_HOLD: Final = 0.125
"""While bytes come, so that a lost answer is noticed soon."""
FIRST_WINDOW: Final = 8.0
SHORTEST_WINDOW: Final = 1.0
REMEMBERED_SECONDS: Final = 600.0

_FIRST_MARGIN: Final = 3.0
_LEAST_MARGIN: Final = 0.25
_MOST_MARGIN: Final = 30.0
_MOST_DOUBLINGS: Final = 4
_EARLY_SHARE: Final = 0.5


class PollPace:
    """What one client has learnt of how long polls take.

    Round trips are estimated as by TCP (RFC 6298, section 2).
    """

    def __init__(self) -> None:
        self._window = FIRST_WINDOW
        self._window_until = 0.0
        self._hold = BUSY_HOLD
        self._smoothed: float | None = None
        self._variation = 0.0
        self._doublings = 0
        self._answered_at = float("-inf")
        self._empties = 0
        self._idle_at = 0.0

    @property
    def margin(self) -> float:
        """How long to wait for the first byte of an answer beyond its hold, in seconds."""
        if self._smoothed is None:
            return _FIRST_MARGIN
        estimate = max(self._smoothed + 4 * self._variation, _LEAST_MARGIN)
        return min(estimate * float(1 << self._doublings), _MOST_MARGIN)

    def hold(self, now: float) -> float:
        """Return for how long the next idle poll is held, in seconds."""
        if now >= self._window_until:
            self._window = FIRST_WINDOW
        return min(self._hold, self._window)

    def idle_at(self) -> float:
        """Return from when on an idle poll may be sent."""
        return self._idle_at

    def wake(self) -> None:
        """Forget about empty answers: something happens here."""
        self._empties = 0
        self._idle_at = 0.0
        self._hold = BUSY_HOLD

    def answered(self, *, elapsed: float, hold: float, is_empty: bool, now: float) -> None:
        """Note an answer whose first byte came after `elapsed` seconds."""
        self._doublings = 0
        self._answered_at = now
        if hold <= ACTIVE_HOLD:
            self._sample(elapsed)
        if not is_empty:
            self.wake()
            return
        if hold <= ACTIVE_HOLD:
            return
        self._hold = min(self._hold * 2, FIRST_WINDOW)
        if elapsed >= hold * _EARLY_SHARE:
            self._empties = 0
            return
        # Somebody on the way answers at once: asking as often would be a storm.
        self._empties += 1
        self._idle_at = now + _pause(self._empties)

    def answered_since(self, started: float) -> bool:
        """Say whether any poll was answered since."""
        return self._answered_at >= started

    def unanswered(self, *, elapsed: float, hold: float, was_cut: bool, now: float) -> None:
        """Note a poll without an answer; `was_cut`: somebody ended it, and nobody here did."""
        if was_cut and hold > SHORTEST_WINDOW and SHORTEST_WINDOW <= elapsed < hold:
            self._window = max(elapsed / 2, SHORTEST_WINDOW)
            self._window_until = now + REMEMBERED_SECONDS
        elif not was_cut and not self.answered_since(now - elapsed):
            # Nothing was answered since: all may take longer now.
            self._doublings = min(self._doublings + 1, _MOST_DOUBLINGS)

    def _sample(self, elapsed: float) -> None:
        if self._smoothed is None:
            self._smoothed, self._variation = elapsed, elapsed / 2
            return
        self._variation += (abs(self._smoothed - elapsed) - self._variation) / 4
        self._smoothed += (elapsed - self._smoothed) / 8


def _pause(empties: int) -> float:
    if empties < 3:
        return 0.01
    if empties < 10:
        return 0.05
    return 0.25 if empties < 30 else 1.0
