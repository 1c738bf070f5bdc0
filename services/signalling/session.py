"""A session: one negotiation between a client and a gateway or one tunnel, as a pure state machine.

Every change makes a new record; what each message does in each phase is `session_rules.RULES`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from functools import lru_cache

from fairlead_limits.table import ROUND_CANDIDATES
from signalling.close_reason import CloseReason
from signalling.ice_candidate import CandidateOutcome, sorted_out
from signalling.ice_servers import IcePolicy
from signalling.session_errors import (
    CandidatesGap,
    CursorAhead,
    EventsGone,
    ModeConflict,
    OfferConflict,
    RestartUnsupported,
    RoundInvalid,
    SessionClosed,
    SessionStateInvalid,
    TunnelConflict,
)
from signalling.session_event import (
    MOST_EVENTS,
    OF_A_ROUND,
    EventKind,
    SessionEvent,
    SessionState,
)
from signalling.session_rules import RULES, Phase, Verdict, Word

_SPENT_OFFERS = 16


class SessionMode(StrEnum):
    """How the peers meet: with all candidates inside the descriptions, with candidates that follow
    them, or by a ticket that the client shows the gateway.
    """

    COMPLETE = "complete"
    TRICKLE = "trickle"
    TUNNEL = "tunnel"


@dataclass(frozen=True, slots=True)
class Session:
    """One negotiation; `version` counts its changes and starts at 1. Times are in UTC.

    Offer, answer, refusal and candidates are those of the round under way. `connected_round` is
    the last round whose path was reported as up. `spent` are digests of the offers of earlier
    rounds, so that a late one starts nothing. `traceparent` (W3C) is the span that it
    belongs to: that of its launch's run, then that of its offer; the gateway's work is in that
    trace. `forgotten` is the number of the last event that was dropped because there were too many.
    """

    session_id: str
    tenant: str
    launch_id: str
    gateway_id: str
    created_at: datetime
    expires_at: datetime
    mode: SessionMode = SessionMode.COMPLETE
    ice_policy: IcePolicy = IcePolicy.ALL
    state: SessionState = SessionState.OPENED
    round: int = 1
    connected_round: int = 0
    offer: str = ""
    answer: str = ""
    refusal: str = ""
    client_candidates: tuple[str, ...] = ()
    client_ended: bool = False
    gateway_candidates: tuple[str, ...] = ()
    gateway_ended: bool = False
    spent: tuple[str, ...] = ()
    traceparent: str = ""
    close_reason: CloseReason | None = None
    close_detail: str = ""
    events: tuple[SessionEvent, ...] = ()
    sequence: int = 0
    forgotten: int = 0
    version: int = 1
    key_id: str = ""
    """The API key that it was opened with, whose end is its own."""

    @property
    def phase(self) -> Phase:
        """Return how far the round under way has come."""
        if self.state is SessionState.CLOSED:
            return Phase.CLOSED
        if self.is_tunnel:
            return Phase.ATTACHED if self.is_connected else Phase.WAITING
        if not self.offer:
            return Phase.OPENED
        if self.refusal:
            return Phase.REFUSED
        if not self.answer:
            return Phase.OFFERED if self.round == 1 else Phase.RESTARTING
        return Phase.CONNECTED if self.connected_round == self.round else Phase.ANSWERED

    @property
    def is_closed(self) -> bool:
        """Say whether it is over."""
        return self.state is SessionState.CLOSED

    @property
    def is_connected(self) -> bool:
        """Say whether its association is up."""
        return self.state is SessionState.CONNECTED

    @property
    def is_negotiated(self) -> bool:
        """Say whether the gateway has answered, so that it holds an association for it."""
        return self.state in (SessionState.ANSWERED, SessionState.CONNECTED)

    @property
    def is_unanswered(self) -> bool:
        """Say whether its client waits for the answer to the first offer."""
        return self.state is SessionState.OFFERED

    @property
    def trickles(self) -> bool:
        """Say whether candidates follow the descriptions."""
        return self.mode is SessionMode.TRICKLE

    @property
    def is_tunnel(self) -> bool:
        """Say whether its client comes with a ticket, and nothing is negotiated."""
        return self.mode is SessionMode.TUNNEL

    def with_offer(self, offer: str, *, expires_at: datetime, traceparent: str = "") -> Session:
        """Take the client's first offer; the same one again changes nothing, another one raises
        OfferConflict. As all of the client's words but the end, TunnelConflict for a tunnel.
        """
        if self._verdict(Word.OFFER) is Verdict.REPEAT:
            return self._same_offer(offer)
        return replace(
            self,
            state=SessionState.OFFERED,
            offer=offer,
            traceparent=traceparent or self.traceparent,
            expires_at=expires_at,
        )._telling(SessionEvent(0, EventKind.STATE, state=SessionState.OFFERED))

    def restarted(self, offer: str, *, expires_at: datetime, traceparent: str = "") -> Session:
        """Begin a round with the client's fresh offer; the same one again changes nothing.

        Raises RestartUnsupported for mode complete, OfferConflict for the offer of an earlier round
        or a second one of this round.
        """
        verdict = self._verdict(Word.RESTART)
        if not self.trickles:
            raise RestartUnsupported(self.session_id)
        if verdict is Verdict.REPEAT or offer == self.offer:
            return self._same_offer(offer)
        if _digest(offer) in self.spent:
            raise OfferConflict(self.session_id)
        return replace(
            self,
            round=self.round + 1,
            offer=offer,
            answer="",
            refusal="",
            client_candidates=(),
            client_ended=False,
            gateway_candidates=(),
            gateway_ended=False,
            spent=(*self.spent, _digest(self.offer))[-_SPENT_OFFERS:],
            traceparent=traceparent or self.traceparent,
            expires_at=self.expires_at if self.is_connected else expires_at,
            events=self._lasting_events(),
            version=self.version + 1,
        )

    def with_candidates(
        self, round_number: int, candidates: Sequence[str], *, ended: bool
    ) -> tuple[Session, Sequence[CandidateOutcome]]:
        """Take candidates of the client and say what became of each; round 0 is the one under way.

        Raises ModeConflict for mode complete and RoundInvalid for a round that has not begun.
        """
        verdict = self._verdict(Word.CANDIDATES)
        if not self.trickles:
            raise ModeConflict(self.session_id)
        if round_number > self.round:
            raise RoundInvalid(self.session_id, round_number, self.round)
        is_stale = 0 < round_number < self.round
        is_late = verdict is Verdict.LATE or self.client_ended
        outcomes, accepted = sorted_out(
            candidates, self.client_candidates, is_stale=is_stale, is_late=is_late
        )
        ends = ended and not is_stale and not is_late
        if not ends and not accepted:
            return self, outcomes
        after = replace(
            self,
            client_candidates=(*self.client_candidates, *accepted),
            client_ended=ends,
            version=self.version + 1,
        )
        return after, outcomes

    def with_answer(self, answer: str, *, round_number: int = 1) -> Session:
        """Take the gateway's answer; a repeated one, and one of another round, change nothing."""
        verdict = self._verdict(Word.ANSWER)
        if verdict is Verdict.IGNORE or round_number != self.round:
            return self
        told = SessionEvent(0, EventKind.ANSWER, round=self.round)
        if self.state is not SessionState.OFFERED:
            return replace(self, answer=answer)._telling(told)
        state = SessionState.ANSWERED
        return replace(self, answer=answer, state=state)._telling(
            told, SessionEvent(0, EventKind.STATE, state=state)
        )

    def refused(
        self,
        detail: str,
        *,
        round_number: int = 1,
        reason: CloseReason = CloseReason.OFFER_FAILED,
    ) -> Session:
        """Note that the gateway refuses the offer: the first one's refusal closes the session for
        `reason`, a later one's leaves the path that is up.
        """
        if self._verdict(Word.REFUSAL) is Verdict.IGNORE or round_number != self.round:
            return self
        if self.round == 1:
            return self.closed(reason, detail)
        return replace(self, refusal=detail or "refused", version=self.version + 1)

    def with_found(
        self, round_number: int, first: int, candidates: Sequence[str], *, ended: bool
    ) -> Session:
        """Take candidates of the gateway of which `first` were sent before; known ones and those of
        another round are skipped. Raises CandidatesGap when some are missing in between.
        """
        verdict = self._verdict(Word.FOUND)
        known = len(self.gateway_candidates)
        if (
            verdict is Verdict.IGNORE
            or not self.trickles
            or round_number != self.round
            or self.gateway_ended
            or known >= ROUND_CANDIDATES
        ):
            return self
        if first > known:
            raise CandidatesGap(self.session_id)
        fresh = tuple(candidates[known - first :])[: ROUND_CANDIDATES - known]
        if not fresh and not ended:
            return self
        last = known + len(fresh)
        return replace(
            self, gateway_candidates=(*self.gateway_candidates, *fresh), gateway_ended=ended
        )._telling(
            SessionEvent(
                0, EventKind.CANDIDATES, round=self.round, first=known, last=last, ended=ended
            )
        )

    def restart_wanted(self, round_number: int) -> Session:
        """Ask the client for a restart, once a round; a wish for another round is ignored."""
        if self._verdict(Word.WISH) is Verdict.IGNORE or not self.trickles:
            return self
        event = SessionEvent(0, EventKind.RESTART_WANTED, round=self.round)
        is_asked = any(replace(event, sequence=known.sequence) == known for known in self.events)
        return self if is_asked or round_number != self.round else self._telling(event)

    def connected(self, *, expires_at: datetime, round_number: int = 0) -> Session:
        """Note that it is connected by the path of a round, and until when that holds without
        another word. Round 0 is the one under way, if it is answered; the path of an earlier one
        leaves the one under way open, one that cannot be told changes no round.
        """
        self._verdict(Word.CONNECTED)
        up_round = self.connected_round
        named = round_number or self.round
        if named < self.round or (named == self.round and self.answer):
            up_round = max(up_round, named)
        if self.is_connected:
            return replace(
                self, connected_round=up_round, expires_at=expires_at, version=self.version + 1
            )
        return replace(
            self,
            state=SessionState.CONNECTED,
            connected_round=up_round,
            expires_at=expires_at,
        )._telling(SessionEvent(0, EventKind.STATE, state=SessionState.CONNECTED))

    def renewed(self, *, expires_at: datetime) -> Session:
        """Let a connected session hold until then; which round's path is up stays as told."""
        if not self.is_connected:
            return self
        return replace(self, expires_at=expires_at, version=self.version + 1)

    def closed(self, reason: CloseReason, detail: str = "") -> Session:
        """Close it; the first reason stays. What was negotiated is dropped from the record."""
        if RULES[Word.CLOSE][self.phase] is Verdict.IGNORE:
            return self
        return replace(
            self,
            state=SessionState.CLOSED,
            close_reason=reason,
            close_detail=detail,
            offer="",
            answer="",
            refusal="",
            client_candidates=(),
            gateway_candidates=(),
            spent=(),
            events=self._lasting_events(),
        )._telling(SessionEvent(0, EventKind.CLOSED))

    def events_after(self, cursor: int) -> Sequence[SessionEvent]:
        """Return the events after a number; raises EventsGone and CursorAhead."""
        if cursor > self.sequence:
            raise CursorAhead(self.session_id)
        if 0 < cursor < self.forgotten:
            raise EventsGone(self.session_id)
        return [event for event in self.events if event.sequence > cursor]

    def _verdict(self, word: Word) -> Verdict:
        """Return what a message does; raises SessionClosed, TunnelConflict and
        SessionStateInvalid.
        """
        phase = self.phase
        verdict = RULES[word][phase]
        if verdict is Verdict.OVER:
            raise SessionClosed(self.session_id, self.close_reason or CloseReason.UNKNOWN)
        if verdict is Verdict.CONFLICT:
            raise TunnelConflict(self.session_id, word)
        if verdict is Verdict.INVALID:
            raise SessionStateInvalid(self.session_id, word, phase)
        return verdict

    def _same_offer(self, offer: str) -> Session:
        if offer != self.offer:
            raise OfferConflict(self.session_id)
        return self

    def _lasting_events(self) -> tuple[SessionEvent, ...]:
        return tuple(event for event in self.events if event.kind not in OF_A_ROUND)

    def _telling(self, *events: SessionEvent) -> Session:
        """Return it as the next record, with events to which their numbers are given."""
        numbered = (
            _numbered(event, number) for number, event in enumerate(events, start=self.sequence + 1)
        )
        log = (*self.events, *numbered)
        dropped = log[:-MOST_EVENTS]
        return replace(
            self,
            events=log[-MOST_EVENTS:],
            sequence=self.sequence + len(events),
            forgotten=dropped[-1].sequence if dropped else self.forgotten,
            version=self.version + 1,
        )


@lru_cache(maxsize=256)
def _numbered(event: SessionEvent, number: int) -> SessionEvent:
    """Return an event with its number; most sessions have the same few, and share them."""
    return replace(event, sequence=number)


def _digest(offer: str) -> str:
    return hashlib.sha256(offer.encode()).hexdigest()[:16]
