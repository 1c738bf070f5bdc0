"""The gateway's side of a negotiation: each candidate once, whatever repeats."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from relay_gateway.message import Answered, Candidates, Refusal
from relay_gateway.rounds import AnswerOffer, Rounds, Step, TakeCandidate, TakeEnd
from relay_gateway.session import WantedSession

ID = "ses_a"
WANTED = WantedSession(ID, "offer 1", datetime.now(UTC), trickles=True)
SECOND = replace(WANTED, offer="offer 2", round=2)


def steps(it: Rounds) -> list[Step]:
    found = []
    while (step := it.next_step()) is not None:
        found.append(step)
    return found


def answered(wanted: WantedSession = WANTED) -> Rounds:
    it = Rounds(wanted)
    assert it.next_step() == AnswerOffer(wanted)
    it.answered(1, "answer 1")
    return it


def test_candidates_of_the_client_wait_for_the_answer_and_are_taken_once() -> None:
    it = Rounds(replace(WANTED, candidates=("a", "b")))
    assert isinstance(it.next_step(), AnswerOffer)
    it.given(Candidates(ID, 1, 1, ("b", "c"), False))
    assert steps(it) == []
    it.answered(1, "answer 1")
    assert steps(it) == [TakeCandidate("a"), TakeCandidate("b"), TakeCandidate("c")]
    it.want(replace(WANTED, candidates=("a", "b", "c", "d"), ended=True))
    it.given(Candidates(ID, 1, 3, ("d",), True))
    assert steps(it) == [TakeCandidate("d"), TakeEnd()]
    it.given(Candidates(ID, 1, 4, ("late",), False))
    assert steps(it) == []


def test_candidates_behind_a_gap_wait_for_the_next_statement_of_all() -> None:
    it = answered()
    it.given(Candidates(ID, 1, 2, ("c",), True))
    assert steps(it) == []
    it.want(replace(WANTED, candidates=("a", "b", "c"), ended=True))
    assert steps(it) == [*(TakeCandidate(each) for each in "abc"), TakeEnd()]


def test_local_candidates_follow_the_answer_as_one_and_later_ones_at_once() -> None:
    it = Rounds(WANTED)
    it.next_step()
    it.found("x")
    it.found("y")
    assert it.news() == []
    it.answered(1, "answer 1")
    assert it.news() == [
        Answered(ID, "answer 1", 1),
        Candidates(ID, 1, 0, ("x", "y"), False),
    ]
    it.found("z")
    assert it.news() == [Candidates(ID, 1, 2, ("z",), False)]
    it.found_all()
    it.found("late")
    assert it.news() == [Candidates(ID, 1, 3, (), True)]
    assert it.news() == []
    assert it.everything() == [
        Answered(ID, "answer 1", 1),
        Candidates(ID, 1, 0, ("x", "y", "z"), True),
    ]


def test_without_trickling_only_the_answer_is_told_and_nothing_taken() -> None:
    it = answered(replace(WANTED, trickles=False, candidates=("a",)))
    it.found("x")
    assert it.news() == [Answered(ID, "answer 1", 1)]
    assert it.everything() == [Answered(ID, "answer 1", 1)]
    assert steps(it) == []


def test_a_later_round_is_answered_next_and_an_older_one_ignored() -> None:
    it = answered(replace(WANTED, candidates=("a",)))
    it.news()
    it.want(replace(SECOND, candidates=("r",)))
    it.given(Candidates(ID, 2, 1, ("s",), False))
    it.given(Candidates(ID, 1, 1, ("old",), False))
    assert it.has_next
    assert steps(it) == [AnswerOffer(replace(SECOND, candidates=("r",)))]
    it.found("x2")
    it.answered(1, "late")
    it.answered(2, "answer 2")
    assert not it.has_next
    assert it.news() == [Answered(ID, "answer 2", 2), Candidates(ID, 2, 0, ("x2",), False)]
    it.want(WANTED)
    assert steps(it) == [TakeCandidate("r"), TakeCandidate("s")]


def test_the_newest_of_several_rounds_is_answered() -> None:
    it = answered()
    it.want(SECOND)
    it.want(replace(SECOND, offer="offer 3", round=3))
    it.want(SECOND)
    assert steps(it) == [AnswerOffer(replace(SECOND, offer="offer 3", round=3))]


def test_a_round_that_comes_while_one_is_answered_waits_for_it() -> None:
    it = Rounds(WANTED)
    it.next_step()
    it.want(SECOND)
    assert steps(it) == []
    it.answered(1, "answer 1")
    assert steps(it) == [AnswerOffer(SECOND)]


def test_a_refused_round_is_told_and_takes_no_candidates() -> None:
    it = answered()
    it.news()
    it.want(replace(SECOND, candidates=("r",)))
    steps(it)
    it.found("x")
    it.answered(2, Refusal("sdp_invalid", "No."))
    assert it.news() == [Answered(ID, Refusal("sdp_invalid", "No."), 2)]
    assert steps(it) == []


def test_more_candidates_than_a_round_may_have_are_dropped() -> None:
    it = answered()
    it.given(Candidates(ID, 1, 0, tuple(map(str, range(500))), True))
    assert len(steps(it)) == 257
    for number in range(500):
        it.found(str(number))
    told = it.news()[-1]
    assert isinstance(told, Candidates)
    assert len(told.candidates) == 256


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=40))
def test_any_overlapping_deltas_and_statements_give_each_candidate_once_in_order(
    spans: list[tuple[int, int]],
) -> None:
    every = tuple(f"c{number}" for number in range(12))
    it = answered()
    taken: list[Step] = []
    for first, last in spans:
        if first == 0:
            it.want(replace(WANTED, candidates=every[:last], ended=last == 12))
        else:
            it.given(Candidates(ID, 1, first, every[first:last], last == 12 and first <= last))
        taken += steps(it)
    assert taken == [*map(TakeCandidate, every), TakeEnd()][: len(taken)]
    it.want(replace(WANTED, candidates=every, ended=True))
    taken += steps(it)
    assert taken == [*map(TakeCandidate, every), TakeEnd()]
