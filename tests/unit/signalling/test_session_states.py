"""The session's state machine against a model, in any order of words."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from chassis.errors import FairleadError
from signalling.session import (
    TRANSITIONS,
    CloseReason,
    OfferConflict,
    Session,
    SessionClosed,
    SessionState,
    SessionTransitionInvalid,
)
from tests.fakes.clock import START

LATER = START + timedelta(seconds=60)


def opened() -> Session:
    return Session(
        session_id="ses_" + "a" * 26,
        tenant="default",
        launch_id="lch_" + "a" * 26,
        gateway_id="gtw_" + "a" * 26,
        created_at=START,
        expires_at=LATER,
    )


class SessionAgainstModel(RuleBasedStateMachine):
    """The model is a state, the first offer, the first answer and the first close reason."""

    def __init__(self) -> None:
        super().__init__()
        self.session = opened()
        self.state = SessionState.OPENED
        self.offer = ""
        self.answer = ""
        self.reason: CloseReason | None = None
        self.version = 1

    def refused(self, error: type[FairleadError], step: object) -> None:
        assert callable(step)
        with pytest.raises(error):
            step()

    @rule(offer=st.sampled_from(["one", "two"]))
    def take_offer(self, offer: str) -> None:
        if self.state is SessionState.CLOSED:
            self.refused(SessionClosed, lambda: self.session.with_offer(offer))
        elif self.state is SessionState.OPENED:
            self.session = self.session.with_offer(offer)
            self.state, self.offer = SessionState.OFFERED, offer
            self.version += 1
        elif offer == self.offer:
            assert self.session.with_offer(offer) is self.session
        else:
            self.refused(OfferConflict, lambda: self.session.with_offer(offer))

    @rule(answer=st.sampled_from(["yes", "again"]))
    def take_answer(self, answer: str) -> None:
        def step() -> Session:
            return self.session.with_answer(answer, expires_at=LATER)

        match self.state:
            case SessionState.CLOSED:
                self.refused(SessionClosed, step)
            case SessionState.OPENED:
                self.refused(SessionTransitionInvalid, step)
            case SessionState.OFFERED:
                self.session = step()
                self.state, self.answer = SessionState.ANSWERED, answer
                self.version += 1
            case _:
                assert step() is self.session

    @rule()
    def connect(self) -> None:
        def step() -> Session:
            return self.session.connected(expires_at=LATER)

        match self.state:
            case SessionState.CLOSED:
                self.refused(SessionClosed, step)
            case SessionState.ANSWERED | SessionState.CONNECTED:
                self.session = step()
                self.state = SessionState.CONNECTED
                self.version += 1
            case _:
                self.refused(SessionTransitionInvalid, step)

    @precondition(lambda self: self.version > 2)
    @rule(reason=st.sampled_from(CloseReason))
    def close(self, reason: CloseReason) -> None:
        before = self.session
        self.session = self.session.closed(reason)
        if self.state is SessionState.CLOSED:
            assert self.session is before
            return
        self.state, self.reason, self.offer, self.answer = SessionState.CLOSED, reason, "", ""
        self.version += 1

    @invariant()
    def agrees(self) -> None:
        assert self.session.state is self.state
        assert self.session.offer == self.offer
        assert self.session.answer == self.answer
        assert self.session.close_reason is self.reason
        assert self.session.version == self.version


TestSessionAgainstModel = SessionAgainstModel.TestCase


def test_every_state_but_closed_can_close() -> None:
    for state, following in TRANSITIONS.items():
        assert (SessionState.CLOSED in following) is (state is not SessionState.CLOSED)


def test_every_state_is_reached() -> None:
    reached = {SessionState.OPENED}
    for following in TRANSITIONS.values():
        reached |= following
    assert reached == set(SessionState)
