"""The session's state machine against a model that is written another way, in any order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from chassis.errors import FairleadError
from fairlead_limits.table import ROUND_CANDIDATES
from signalling.close_reason import CLOSINGS, CloseReason, close_reason
from signalling.ice_candidate import CandidateOutcome
from signalling.session import Session, SessionMode
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
)
from signalling.session_event import MOST_EVENTS, EventKind, SessionState
from signalling.session_rules import RULES, Phase, Word
from tests.fakes.clock import START
from tests.fakes.sessions import candidate

LATER = START + timedelta(seconds=60)
OFFERS = ("one", "two", "three", "four")
TEXTS = tuple(candidate(number) for number in range(6))


def opened(mode: SessionMode = SessionMode.TRICKLE) -> Session:
    return Session(
        session_id="ses_" + "a" * 26,
        tenant="default",
        launch_id="lch_" + "a" * 26,
        gateway_id="gtw_" + "a" * 26,
        created_at=START,
        expires_at=LATER,
        mode=mode,
    )


@dataclass
class Round:
    """What the model knows of one round."""

    offer: str
    answer: str = ""
    is_refused: bool = False
    is_up: bool = False
    given: list[str] = field(default_factory=list)
    given_all: bool = False
    found: list[str] = field(default_factory=list)
    found_all: bool = False
    is_wished: bool = False


class SessionAgainstModel(RuleBasedStateMachine):
    """The model keeps every round there ever was, and looks only at the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.session = opened()
        self.rounds: list[Round] = []
        self.early: list[str] = []
        self.early_all = False
        self.was_answered = False
        self.was_connected = False
        self.reason: CloseReason | None = None
        self.told: list[EventKind] = []
        self.seen: list[int] = []

    def take(self, step: Callable[[], Session], error: type[FairleadError] | None) -> bool:
        """Do a step that must raise `error`; say whether it changed something."""
        before = self.session
        if error is not None:
            with pytest.raises(error):
                step()
            return False
        self.session = step()
        assert self.session.version == before.version + (self.session is not before)
        for event in self.session.events:
            if event.sequence > before.sequence:
                self.told.append(event.kind)
                self.seen.append(event.sequence)
        return self.session is not before

    def is_spent(self, offer: str) -> bool:
        return offer in [known.offer for known in self.rounds]

    @property
    def now(self) -> Round | None:
        return self.rounds[-1] if self.rounds else None

    @rule(offer=st.sampled_from(OFFERS))
    def offer(self, offer: str) -> None:
        error: type[FairleadError] | None = None
        if self.reason is not None:
            error = SessionClosed
        elif self.now is not None and self.now.offer != offer:
            error = OfferConflict
        if self.take(lambda: self.session.with_offer(offer, expires_at=LATER), error):
            assert not self.rounds
            self.rounds.append(Round(offer, given=self.early, given_all=self.early_all))

    @rule(offer=st.sampled_from(OFFERS))
    def restart(self, offer: str) -> None:
        error: type[FairleadError] | None = None
        waits = self.now is not None and not self.now.answer and not self.now.is_refused
        if self.reason is not None:
            error = SessionClosed
        elif not self.was_answered:
            error = SessionStateInvalid
        elif offer != self.rounds[-1].offer and (waits or self.is_spent(offer)):
            error = OfferConflict
        changes = error is None and self.rounds[-1].offer != offer
        step = self.session.restarted
        assert self.take(lambda: step(offer, expires_at=LATER), error) is changes
        if changes:
            self.rounds.append(Round(offer))

    @rule(
        number=st.integers(0, 4),
        texts=st.lists(st.sampled_from((*TEXTS, "candidate:rubbish")), max_size=4),
        ended=st.booleans(),
    )
    def give(self, number: int, texts: list[str], ended: bool) -> None:
        current = max(1, len(self.rounds))
        error: type[FairleadError] | None = None
        if self.reason is not None:
            error = SessionClosed
        elif number > current:
            error = RoundInvalid
        outcomes: list[CandidateOutcome] = []

        def step() -> Session:
            after, found = self.session.with_candidates(number, texts, ended=ended)
            outcomes.extend(found)
            return after

        self.take(step, error)
        if error is not None:
            return
        assert len(outcomes) == len(texts)
        stale = 0 < number < current
        given = self.now.given if self.now else self.early
        over = self.now is not None and (self.now.is_up or self.now.is_refused)
        over = over or (self.now.given_all if self.now else self.early_all)
        for text, outcome in zip(texts, outcomes, strict=True):
            if text == "candidate:rubbish":
                assert outcome is CandidateOutcome.INVALID
            elif stale:
                assert outcome is CandidateOutcome.STALE
            elif text in given:
                assert outcome is CandidateOutcome.DUPLICATE
            elif over:
                assert outcome is CandidateOutcome.LATE
            else:
                assert outcome is CandidateOutcome.ACCEPTED
                given.append(text)
        if ended and not stale and not over:
            if self.now:
                self.now.given_all = True
            else:
                self.early_all = True

    @rule(answer=st.sampled_from(["yes", "again"]), number=st.integers(1, 4))
    def answer(self, answer: str, number: int) -> None:
        error: type[FairleadError] | None = None
        if self.reason is not None:
            error = SessionClosed
        elif self.now is None:
            error = SessionStateInvalid
        if self.take(lambda: self.session.with_answer(answer, round_number=number), error):
            assert self.now is not None
            assert number == len(self.rounds)
            assert not self.now.answer
            self.now.answer = answer
            self.was_answered = True

    @rule(number=st.integers(1, 4))
    def refuse(self, number: int) -> None:
        if self.take(lambda: self.session.refused("no", round_number=number), None):
            assert self.now is not None
            assert self.reason is None
            assert number == len(self.rounds)
            if number == 1:
                self.reason = CloseReason.OFFER_FAILED
            self.now.is_refused = True

    @rule(
        number=st.integers(1, 4),
        first=st.integers(0, 3),
        count=st.integers(0, 3),
        ended=st.booleans(),
    )
    def find(self, number: int, first: int, count: int, ended: bool) -> None:
        texts = list(TEXTS[first : first + count])
        now = self.now
        error: type[FairleadError] | None = None
        if self.reason is not None:
            error = SessionClosed
        elif now is None:
            error = SessionStateInvalid
        else:
            over = now.is_up or now.is_refused or now.found_all
            if number == len(self.rounds) and not over and first > len(now.found):
                error = CandidatesGap
        found = self.session.with_found
        if self.take(lambda: found(number, first, texts, ended=ended), error):
            assert now is not None
            now.found.extend(texts[len(now.found) - first :])
            now.found_all = ended

    @rule(number=st.integers(1, 4))
    def wish(self, number: int) -> None:
        error = SessionClosed if self.reason is not None else None
        if self.take(lambda: self.session.restart_wanted(number), error):
            assert self.now is not None
            assert number == len(self.rounds)
            assert not self.now.is_wished
            assert self.now.answer or self.now.is_refused
            self.now.is_wished = True

    @rule(number=st.integers(0, 5))
    def connect(self, number: int) -> None:
        error: type[FairleadError] | None = None
        if self.reason is not None:
            error = SessionClosed
        elif not self.was_answered:
            error = SessionStateInvalid
        step = self.session.connected
        if self.take(lambda: step(expires_at=LATER, round_number=number), error):
            assert self.now is not None
            if number in (0, len(self.rounds)) and self.now.answer:
                self.now.is_up = True
            self.was_connected = True

    @precondition(lambda self: len(self.rounds) > 2)
    @rule(reason=st.sampled_from(CloseReason))
    def close(self, reason: CloseReason) -> None:
        if self.take(lambda: self.session.closed(reason), None):
            assert self.reason is None
            self.reason = reason

    @invariant()
    def agrees(self) -> None:
        session, now = self.session, self.now
        assert session.close_reason is self.reason
        if self.reason is not None:
            assert session.phase is Phase.CLOSED
            assert not session.offer + session.answer
            assert not session.client_candidates + session.gateway_candidates
            assert session.events[-1].kind is EventKind.CLOSED
            assert self.told.count(EventKind.CLOSED) == 1
            return
        if now is None:
            assert session.state is SessionState.OPENED
            assert list(session.client_candidates) == self.early
            return
        assert (session.phase is Phase.CONNECTED) is now.is_up
        if self.was_connected:
            assert session.state is SessionState.CONNECTED
        else:
            assert (session.state is SessionState.ANSWERED) is self.was_answered
        assert (session.round, session.offer, session.answer) == (
            len(self.rounds),
            now.offer,
            now.answer,
        )
        assert list(session.client_candidates) == now.given
        assert list(session.gateway_candidates) == now.found
        assert (session.client_ended, session.gateway_ended) == (now.given_all, now.found_all)

    @invariant()
    def tells_everything_of_the_round_in_order(self) -> None:
        assert self.seen == list(range(1, self.session.sequence + 1))
        if self.reason is not None or self.now is None:
            return
        told = [event for event in self.session.events if event.kind is EventKind.CANDIDATES]
        assert [event.first for event in told[1:]] == [event.last for event in told[:-1]]
        assert (told[-1].last if told else 0) == len(self.now.found)
        assert {event.round for event in told} <= {len(self.rounds)}


TestSessionAgainstModel = SessionAgainstModel.TestCase
TestSessionAgainstModel.settings = settings(max_examples=100, stateful_step_count=40)


def test_the_table_has_every_word_in_every_phase() -> None:
    assert set(RULES) == set(Word)
    for verdicts in RULES.values():
        assert set(verdicts) == set(Phase)


def up(mode: SessionMode = SessionMode.TRICKLE) -> Session:
    offered = opened(mode).with_offer("one", expires_at=LATER)
    return offered.with_answer("yes").connected(expires_at=LATER)


def test_complete_sessions_take_no_candidates_and_no_restart() -> None:
    session = up(SessionMode.COMPLETE)
    with pytest.raises(ModeConflict):
        session.with_candidates(0, TEXTS, ended=True)
    with pytest.raises(RestartUnsupported):
        session.restarted("two", expires_at=LATER)
    assert session.with_found(1, 0, TEXTS, ended=True) is session
    assert session.restart_wanted(1) is session


def test_a_connection_of_the_old_round_that_is_told_late_does_not_end_the_new_one() -> None:
    answered = opened().with_offer("one", expires_at=LATER).with_answer("yes")
    session = answered.restarted("two", expires_at=LATER).connected(expires_at=LATER)
    assert (session.state, session.phase) == (SessionState.CONNECTED, Phase.RESTARTING)
    session, outcomes = session.with_candidates(2, TEXTS[:1], ended=False)
    assert outcomes == [CandidateOutcome.ACCEPTED]


@pytest.mark.parametrize(
    ("told", "phase"), [(1, Phase.ANSWERED), (2, Phase.CONNECTED), (0, Phase.CONNECTED)]
)
def test_a_path_that_is_told_in_mid_restart_is_that_of_its_round(told: int, phase: Phase) -> None:
    session = up().restarted("two", expires_at=LATER).with_answer("yes", round_number=2)
    session = session.connected(expires_at=LATER, round_number=told)
    assert (session.state, session.phase) == (SessionState.CONNECTED, phase)
    session = session.connected(expires_at=LATER, round_number=1)
    assert session.phase is phase


def test_a_round_takes_so_many_candidates() -> None:
    session = opened()
    for start in range(0, ROUND_CANDIDATES, 64):
        texts = [candidate(number) for number in range(start, start + 64)]
        session, outcomes = session.with_candidates(0, texts, ended=False)
        assert set(outcomes) == {CandidateOutcome.ACCEPTED}
    same, outcomes = session.with_candidates(0, [candidate(999)], ended=False)
    assert outcomes == [CandidateOutcome.TOO_MANY]
    assert same is session


def test_events_are_kept_so_many_and_older_cursors_are_gone() -> None:
    session = opened().with_offer("one", expires_at=LATER).with_answer("yes")
    for number in range(ROUND_CANDIDATES):
        session = session.with_found(1, number, [candidate(number)], ended=False)
    assert session.sequence == 3 + ROUND_CANDIDATES
    assert len(session.events) == MOST_EVENTS
    with pytest.raises(EventsGone):
        session.events_after(2)
    assert [event.sequence for event in session.events_after(3)][:2] == [4, 5]
    assert len(session.events_after(0)) == MOST_EVENTS
    with pytest.raises(CursorAhead):
        session.events_after(session.sequence + 1)


def test_the_table_of_reasons() -> None:
    assert set(CLOSINGS) == set(CloseReason)
    codes = [closing.code for closing in CLOSINGS.values() if closing.code is not None]
    assert sorted(codes) == [0, 1, 2, *range(4, 21)]
    retryable = {
        closing.code for closing in CLOSINGS.values() if closing.retryable and closing.code
    }
    assert retryable == {1, 2, 4, 8, 9, 10, 16, 20}
    assert close_reason("12") is CloseReason.ADMIN_CLOSED
    assert close_reason("gateway_lost") is CloseReason.GATEWAY_LOST
    assert close_reason("3") is close_reason("") is CloseReason.UNKNOWN
