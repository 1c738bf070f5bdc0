"""The client's negotiation: its table, and what comes in its windows."""

from __future__ import annotations

import pytest

from fairlead_tunnel.negotiation import (
    MakeOffer,
    Negotiation,
    NegotiationState,
    Outgoing,
    SendCandidates,
    SendOffer,
    TakeAnswer,
    TakeCandidates,
)

S = NegotiationState


def offering(*, trickles: bool = True, found: tuple[str, ...] = ()) -> tuple[Negotiation, Outgoing]:
    """A negotiation whose first offer is on its way, and the offer."""
    it = Negotiation(trickles=trickles)
    it.begin()
    assert it.next_step() == MakeOffer(1)
    for candidate in found:
        it.candidate_found(candidate)
    it.offer_made(1, "offer")
    offer = it.next_message()
    assert offer == SendOffer(1, "offer")
    return it, offer


def answered(found: tuple[str, ...] = ()) -> Negotiation:
    it, offer = offering(found=found)
    it.sent(offer, 1)
    it.answer(1, "answer")
    assert it.next_step() == TakeAnswer(1, "answer")
    return it


def connected() -> Negotiation:
    it = answered()
    it.path_up()
    assert it.state is S.CONNECTED
    return it


def in_state(state: NegotiationState) -> Negotiation:
    it = Negotiation(trickles=True)
    if state is S.IDLE:
        return it
    it.begin()
    it.next_step()
    if state is S.MAKING:
        return it
    if state in (S.OFFERING, S.OFFERED):
        it, offer = offering()
        if state is S.OFFERED:
            it.sent(offer, 1)
        return it
    it = answered() if state is S.ANSWERED else connected()
    if state is S.CLOSED:
        it.close()
    return it


INPUTS = {
    "begin": lambda it: it.begin(),
    "offer_made": lambda it: it.offer_made(1, "offer"),
    "offer_taken": lambda it: it.offer_taken(1),
    "answer": lambda it: it.answer(1, "answer"),
    "old_answer": lambda it: it.answer(0, "answer"),
    "next_answer": lambda it: it.answer(2, "answer"),
    "offer_failed": lambda it: it.failed(SendOffer(1, "offer"), is_final=False),
    "offer_refused": lambda it: it.failed(SendOffer(1, "offer"), is_final=True),
    "found": lambda it: it.candidate_found("a"),
    "gathered": lambda it: it.gathering_done(),
    "candidates": lambda it: it.candidates(1, ("z",), False),
    "path_up": lambda it: it.path_up(),
    "path_down": lambda it: it.path_down(),
    "restart": lambda it: it.restart(),
    "restart_asked": lambda it: it.restart_asked(1),
    "stale_wish": lambda it: it.restart_asked(0),
    "close": lambda it: it.close(),
}
CHANGES = {
    (S.IDLE, "begin"): S.MAKING,
    (S.MAKING, "offer_made"): S.OFFERING,
    (S.OFFERING, "offer_taken"): S.OFFERED,
    (S.OFFERING, "answer"): S.ANSWERED,
    (S.OFFERED, "answer"): S.ANSWERED,
    (S.OFFERED, "offer_failed"): S.OFFERING,
    (S.OFFERING, "offer_refused"): S.CLOSED,
    (S.OFFERED, "offer_refused"): S.CLOSED,
    (S.ANSWERED, "path_up"): S.CONNECTED,
    (S.CONNECTED, "path_down"): S.ANSWERED,
    (S.ANSWERED, "restart"): S.MAKING,
    (S.CONNECTED, "restart"): S.MAKING,
    (S.ANSWERED, "restart_asked"): S.MAKING,
    (S.CONNECTED, "restart_asked"): S.MAKING,
    **{(state, "close"): S.CLOSED for state in S},
}


@pytest.mark.parametrize("state", list(S))
@pytest.mark.parametrize("name", list(INPUTS))
def test_each_input_in_each_state_does_what_the_table_says(
    state: NegotiationState, name: str
) -> None:
    it = in_state(state)
    assert it.state is state
    INPUTS[name](it)
    assert it.state is CHANGES.get((state, name), state)


def test_what_was_found_before_the_offer_is_taken_leaves_as_one_message_in_order() -> None:
    it, offer = offering(found=("a", "b"))
    it.candidate_found("c")
    assert it.next_message() is None
    it.sent(offer, 1)
    assert it.next_message() == SendCandidates(1, ("a", "b", "c"), False)
    assert it.next_message() is None


def test_a_live_candidate_leaves_at_once_and_the_end_alone() -> None:
    it = answered()
    it.candidate_found("a")
    first = it.next_message()
    assert first == SendCandidates(1, ("a",), False)
    it.sent(first)
    it.gathering_done()
    last = it.next_message()
    assert last == SendCandidates(1, (), True)
    it.sent(last)
    assert it.next_message() is None


def test_the_end_goes_with_the_last_candidates() -> None:
    it = answered(("a", "b"))
    it.gathering_done()
    assert it.next_message() == SendCandidates(1, ("a", "b"), True)


def test_a_candidate_during_a_flush_follows_it() -> None:
    it = answered(("a",))
    flush = it.next_message()
    assert isinstance(flush, SendCandidates)
    it.candidate_found("b")
    assert it.next_message() is None
    it.sent(flush)
    assert it.next_message() == SendCandidates(1, ("b",), False)


def test_a_flush_that_fails_is_sent_again_with_what_came_meanwhile_behind_it() -> None:
    it = answered(("a", "b"))
    flush = it.next_message()
    assert isinstance(flush, SendCandidates)
    it.candidate_found("c")
    it.gathering_done()
    it.failed(flush, is_final=False)
    assert it.next_message() == SendCandidates(1, ("a", "b", "c"), True)


def test_a_last_flush_that_fails_says_the_end_again() -> None:
    it = answered(("a",))
    it.gathering_done()
    flush = it.next_message()
    assert flush == SendCandidates(1, ("a",), True)
    it.failed(flush, is_final=False)
    assert it.next_message() == flush


def test_a_flush_that_is_refused_is_not_sent_again() -> None:
    it = answered(("a",))
    flush = it.next_message()
    assert flush is not None
    it.failed(flush, is_final=True)
    assert it.next_message() is None


@pytest.mark.parametrize("ending", ["close", "path_up"])
@pytest.mark.parametrize("outcome", ["sent", "failed"])
def test_nothing_is_sent_when_it_closes_or_connects_during_a_flush(
    ending: str, outcome: str
) -> None:
    it = answered(("a",))
    flush = it.next_message()
    assert flush is not None
    it.candidate_found("b")
    INPUTS[ending](it)
    it.candidate_found("c")
    it.gathering_done()
    if outcome == "sent":
        it.sent(flush)
    else:
        it.failed(flush, is_final=False)
    assert it.next_message() is None


def test_more_than_a_message_takes_goes_in_several_and_the_end_in_the_last() -> None:
    names = tuple(f"c{number}" for number in range(70))
    it = answered(names)
    it.gathering_done()
    first = it.next_message()
    assert first == SendCandidates(1, names[:64], False)
    it.sent(first)
    assert it.next_message() == SendCandidates(1, names[64:], True)


def test_the_answer_may_come_by_the_watch_before_the_offers_reply() -> None:
    it, offer = offering(found=("a",))
    it.answer(1, "answer")
    assert it.next_message() == SendCandidates(1, ("a",), False)
    it.sent(offer, 1)
    it.answer(1, "answer")
    assert it.state is S.ANSWERED
    assert it.next_step() == TakeAnswer(1, "answer")
    assert it.next_step() is None


def test_an_offer_whose_reply_is_lost_after_the_answer_is_not_sent_again() -> None:
    it, offer = offering()
    it.answer(1, "answer")
    it.failed(offer, is_final=False)
    assert it.next_message() is None
    it.failed(offer, is_final=True)
    assert it.state is S.ANSWERED


def test_candidates_of_the_peer_wait_for_the_answer_and_are_applied_once() -> None:
    it, _ = offering()
    it.candidates(1, ("x", "y"), False)
    it.candidates(1, ("x", "y", "z"), False)
    assert it.next_step() is None
    it.answer(1, "answer")
    assert it.next_step() == TakeAnswer(1, "answer")
    assert it.next_step() == TakeCandidates(1, ("x", "y", "z"), False)
    it.candidates(1, ("z", "relay"), True)
    it.candidates(1, ("late",), True)
    it.candidates(0, ("old",), False)
    assert it.next_step() == TakeCandidates(1, ("relay",), True)
    assert it.next_step() is None


def test_without_trickling_no_candidate_is_sent_or_taken_and_nothing_restarts() -> None:
    it, offer = offering(trickles=False, found=("a",))
    it.sent(offer, 1)
    it.gathering_done()
    it.candidates(1, ("x",), True)
    it.answer(1, "answer")
    assert it.next_message() is None
    assert it.next_step() == TakeAnswer(1, "answer")
    it.path_up()
    it.restart()
    it.restart_asked(1)
    assert it.next_step() is None
    assert it.state is S.CONNECTED


def restarted() -> tuple[Negotiation, Outgoing]:
    it = connected()
    it.restart()
    assert it.next_step() == MakeOffer(2)
    it.candidate_found("r")
    it.offer_made(2, "again")
    offer = it.next_message()
    assert offer == SendOffer(2, "again")
    return it, offer


def test_a_restart_takes_candidates_again_and_ignores_the_old_round() -> None:
    it, offer = restarted()
    it.offer_made(1, "late")
    it.answer(1, "late")
    it.candidates(1, ("late",), False)
    it.restart_asked(1)
    it.sent(offer, 2)
    assert it.next_message() == SendCandidates(2, ("r",), False)
    it.answer(2, "answer 2")
    assert it.next_step() == TakeAnswer(2, "answer 2")
    it.path_up()
    assert it.state is S.CONNECTED


def test_a_refused_restart_leaves_the_old_path_or_nothing() -> None:
    it, offer = restarted()
    it.failed(offer, is_final=True)
    assert (it.state, it.round) == (S.CONNECTED, 1)
    it, offer = restarted()
    it.path_down()
    it.failed(offer, is_final=True)
    assert it.state is S.CLOSED


def test_rounds_are_numbered_by_the_mesh() -> None:
    it, offer = restarted()
    it.failed(offer, is_final=True)
    it.answer(2, "it had arrived all the same")
    it.restart()
    assert it.next_step() == MakeOffer(3)
    it.offer_made(3, "third")
    third = it.next_message()
    assert third == SendOffer(3, "third")
    it.sent(third, 4)
    it.answer(4, "answer 4")
    assert it.next_step() == TakeAnswer(4, "answer 4")
    it.restart_asked(3)
    assert it.state is S.ANSWERED
    it.restart_asked(4)
    assert it.next_step() == MakeOffer(5)


def test_both_sides_wanting_a_restart_at_once_make_one_round() -> None:
    it = connected()
    it.restart()
    it.restart_asked(1)
    it.restart_asked(1)
    assert it.next_step() == MakeOffer(2)
    assert it.next_step() is None
