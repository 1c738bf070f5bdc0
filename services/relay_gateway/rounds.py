"""The gateway's side of one session's negotiation, without I/O: each round is answered once, each
candidate passed on once in either direction, and all of it can be stated again.

What each input does, by the round that it is of:

    input                an older round   the round under way             a later round
    wanted               ignored          candidates merged by number     answered next
    candidates given     ignored          merged by number                merged once wanted
    candidate found      -                told after the answer           -
    answer, refusal      ignored          told                            -

Numbers make delivery exact: what is known already is skipped, and candidates that would leave a gap
are left to the next statement of all, which follows every lost stream.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from fairlead_limits.table import ROUND_CANDIDATES
from relay_gateway.message import Answered, Candidates, Refusal, Report
from relay_gateway.session import WantedSession


@dataclass(frozen=True, slots=True)
class AnswerOffer:
    """Answer this offer; the first one makes the connection, a later one restarts it."""

    wanted: WantedSession


@dataclass(frozen=True, slots=True)
class TakeCandidate:
    """Give the connection a candidate of the client."""

    candidate: str


@dataclass(frozen=True, slots=True)
class TakeEnd:
    """Tell the connection that the client has no more candidates."""


Step: TypeAlias = AnswerOffer | TakeCandidate | TakeEnd


@dataclass(slots=True)
class _Round:
    """One offer and what belongs to it."""

    wanted: WantedSession
    given: list[str] = field(default_factory=list)
    given_all: bool = False
    applied: int = 0
    applied_all: bool = False
    outcome: str | Refusal | None = None
    is_told: bool = False
    found: list[str] = field(default_factory=list)
    found_all: bool = False
    told: int = 0
    told_all: bool = False

    def merge(self, first: int, candidates: tuple[str, ...], ended: bool) -> None:
        """Add what is not known yet; a gap adds nothing."""
        if first > len(self.given) or self.given_all:
            return
        self.given += candidates[len(self.given) - first :]
        del self.given[ROUND_CANDIDATES:]
        self.given_all = ended and first + len(candidates) >= len(self.given)


class Rounds:
    """The rounds of one session; see the table above."""

    def __init__(self, wanted: WantedSession) -> None:
        self._session_id = wanted.session_id
        self._trickles = wanted.trickles
        self._current: _Round | None = None
        self._next: _Round | None = None
        self._answered = 0
        self.want(wanted)

    @property
    def round(self) -> int:
        """The round that is answered or being answered; 0 before the first."""
        return self._current.wanted.round if self._current else 0

    @property
    def answered_round(self) -> int:
        """The last round that was answered, whose path it is that comes up; before there is one,
        the round that is being answered.
        """
        return self._answered or self.round

    @property
    def has_next(self) -> bool:
        """Say whether a later round is waiting, or the one under way is not answered yet."""
        return self._next is not None or (
            self._current is not None and self._current.outcome is None
        )

    def want(self, wanted: WantedSession) -> None:
        """Take what signalling knows of the session now."""
        if not wanted.offer:
            return
        known = self._of(wanted.round)
        newest = self._next or self._current
        if known is None and (newest is None or wanted.round > newest.wanted.round):
            known = self._next = _Round(wanted)
        if known is not None:
            known.merge(0, wanted.candidates, wanted.ended)

    def given(self, candidates: Candidates) -> None:
        """Take candidates of the client."""
        if (known := self._of(candidates.round)) is not None:
            known.merge(candidates.first, candidates.candidates, candidates.ended)

    def found(self, candidate: str) -> None:
        """Note a local candidate of the round under way."""
        if self._current and not self._current.found_all:
            self._current.found.append(candidate)
            del self._current.found[ROUND_CANDIDATES:]

    def found_all(self) -> None:
        """Note that the round has no more local candidates."""
        if self._current:
            self._current.found_all = True

    def next_step(self) -> Step | None:
        """Return what is to be done with the connection next; None while there is nothing."""
        if self._current and self._current.outcome is None:
            return None
        if self._next is not None:
            self._current, self._next = self._next, None
            return AnswerOffer(self._current.wanted)
        current = self._current
        if current is None or not self._trickles or not isinstance(current.outcome, str):
            return None
        if current.applied < len(current.given):
            current.applied += 1
            return TakeCandidate(current.given[current.applied - 1])
        if current.given_all and not current.applied_all:
            current.applied_all = True
            return TakeEnd()
        return None

    def answered(self, of_round: int, outcome: str | Refusal) -> None:
        """Note the answer to the offer of a round, or why there is none."""
        if self._current and self._current.wanted.round == of_round:
            self._current.outcome = outcome
            if isinstance(outcome, str):
                self._answered = of_round

    def news(self) -> list[Report]:
        """Return what signalling has not been told yet, and count it as told."""
        current = self._current
        if current is None or current.outcome is None:
            return []
        reports: list[Report] = []
        if not current.is_told:
            current.is_told = True
            reports.append(self._answer(current, current.outcome))
        is_more = current.told < len(current.found) or current.found_all > current.told_all
        if self._trickles and is_more and isinstance(current.outcome, str):
            fresh = tuple(current.found[current.told :])
            reports.append(self._candidates(current, current.told, fresh))
            current.told, current.told_all = len(current.found), current.found_all
        return reports

    def everything(self) -> list[Report]:
        """Return all that signalling is to know of the round, and count it as told."""
        if self._current is not None:
            self._current.is_told = self._current.told_all = False
            self._current.told = 0
        return self.news()

    def _of(self, number: int) -> _Round | None:
        for known in (self._current, self._next):
            if known is not None and known.wanted.round == number:
                return known
        return None

    def _answer(self, current: _Round, outcome: str | Refusal) -> Answered:
        return Answered(self._session_id, outcome, current.wanted.round)

    def _candidates(self, current: _Round, first: int, fresh: tuple[str, ...]) -> Candidates:
        return Candidates(self._session_id, current.wanted.round, first, fresh, current.found_all)
