"""How long polls are held and waited for."""

from __future__ import annotations

import pytest

from fairlead_tunnel.poll_pace import (
    ACTIVE_HOLD,
    BUSY_HOLD,
    FIRST_WINDOW,
    REMEMBERED_SECONDS,
    SHORTEST_WINDOW,
    PollPace,
)


def empty(pace: PollPace, hold: float, now: float, elapsed: float | None = None) -> None:
    """Note an answer with nothing in it, after its whole time."""
    pace.answered(elapsed=hold if elapsed is None else elapsed, hold=hold, is_empty=True, now=now)


def test_idle_polls_are_held_ever_longer_until_something_happens() -> None:
    pace = PollPace()
    holds = []
    for _ in range(8):
        holds.append(pace.hold(0.0))
        empty(pace, holds[-1], 0.0)
    assert holds == [0.125, 0.25, 0.5, 1, 2, 4, 8, 8]
    pace.answered(elapsed=1.0, hold=8.0, is_empty=False, now=0.0)
    assert pace.hold(0.0) == BUSY_HOLD


def test_a_hop_that_ends_long_polls_gets_shorter_ones_for_a_while() -> None:
    pace = PollPace()
    for _ in range(7):
        empty(pace, pace.hold(0.0), 0.0)
    pace.unanswered(elapsed=5.0, hold=8.0, was_cut=True, now=0.0)
    assert pace.hold(1.0) == 2.5
    pace.unanswered(elapsed=1.2, hold=2.5, was_cut=True, now=1.0)
    assert pace.hold(2.0) == SHORTEST_WINDOW
    assert pace.hold(1.0 + REMEMBERED_SECONDS) == FIRST_WINDOW


@pytest.mark.parametrize(("empties", "pause"), [(1, 0.01), (3, 0.05), (10, 0.25), (30, 1.0)])
def test_a_hop_that_answers_at_once_is_not_asked_in_a_storm(empties: int, pause: float) -> None:
    pace = PollPace()
    for _ in range(empties):
        empty(pace, 8.0, 100.0, elapsed=0.001)
    assert pace.idle_at() == pytest.approx(100.0 + pause)
    pace.wake()
    assert pace.idle_at() == 0.0


def test_polls_that_lasted_as_long_as_they_should_are_followed_at_once() -> None:
    pace = PollPace()
    for now in range(40):
        empty(pace, pace.hold(now), float(now))
    assert pace.idle_at() == 0.0


def test_an_answer_is_waited_for_as_long_as_answers_take() -> None:
    pace = PollPace()
    assert pace.margin == 3.0
    for _ in range(30):
        pace.answered(elapsed=0.2, hold=ACTIVE_HOLD, is_empty=False, now=0.0)
    assert 0.25 <= pace.margin < 0.3
    pace.unanswered(elapsed=1.0, hold=ACTIVE_HOLD, was_cut=False, now=0.5)
    assert pace.margin < 0.3  # another one was answered meanwhile
    pace.unanswered(elapsed=1.0, hold=ACTIVE_HOLD, was_cut=False, now=2.0)
    assert 0.5 <= pace.margin < 0.6
    pace.answered(elapsed=0.2, hold=ACTIVE_HOLD, is_empty=False, now=2.0)
    assert pace.margin < 0.5
    for _ in range(20):
        pace.answered(elapsed=40.0, hold=ACTIVE_HOLD, is_empty=False, now=0.0)
    assert pace.margin == 30.0
