"""When a silent path is asked, and when it is given up."""

from __future__ import annotations

from itertools import pairwise

from fairlead_tunnel.path_watch import PathWatch, Step

ASK, WAIT, GIVE_UP = Step.ASK, Step.WAIT, Step.GIVE_UP


def looks(
    watch: PathWatch, times: list[float], *, received: int = 0, unsent: int = 0
) -> list[Step]:
    return [watch.look(now, received=received, unsent=unsent) for now in times]


def test_a_path_on_which_nothing_comes_is_asked_twice_and_given_up() -> None:
    steps = looks(PathWatch(0.0), [0.5, 1.0, 1.5, 2.5, 3.0, 4.0, 5.0])
    assert steps == [WAIT, ASK, WAIT, ASK, WAIT, WAIT, GIVE_UP]


def test_bytes_that_come_or_leave_are_a_sign_of_life() -> None:
    watch = PathWatch(0.0)
    for now in range(1, 20):
        assert watch.look(now, received=now, unsent=0) is WAIT
    watch.look(20, received=19, unsent=1000)
    for now in range(21, 40):  # a slow link takes a little each second
        assert watch.look(now, received=19, unsent=1000 - now) is WAIT
    assert watch.look(40, received=19, unsent=961) is ASK


def test_more_to_send_is_no_sign_of_life() -> None:
    watch = PathWatch(0.0)
    steps = [watch.look(now, received=0, unsent=round(100 * now)) for now in (1.0, 2.5, 5.0)]
    assert steps == [ASK, ASK, GIVE_UP]


def test_a_path_that_only_answers_is_asked_less_and_less() -> None:
    watch, asked, received, now = PathWatch(0.0), list[float](), 0, 0.0
    while len(asked) < 7:
        now += 0.25
        step = watch.look(now, received=received, unsent=0)
        if step is ASK:
            asked.append(now)
            received += 1
    pauses = [later - earlier for earlier, later in pairwise(asked)]
    assert pauses == [2.25, 4.25, 8.25, 15.25, 15.25, 15.25]


def test_a_slow_answer_makes_it_more_patient() -> None:
    watch, received = PathWatch(0.0), 0
    now = 0.0
    for _ in range(20):
        while watch.look(now, received=received, unsent=0) is not ASK:
            now += 0.5
        now += 0.9
        received += 1
        assert watch.look(now, received=received, unsent=0) is WAIT
    now += 20
    assert watch.look(now, received=received, unsent=0) is ASK
    assert watch.look(now + 0.9, received=received, unsent=0) is WAIT


def gives_up(watch: PathWatch, now: float, *, received: int = 0) -> float:
    """Return after how long a path is given up on which nothing comes from now on."""
    start = now
    while watch.look(now, received=received, unsent=0) is not GIVE_UP:
        now += 0.25
    return now - start


def test_a_path_that_was_attached_for_a_silent_one_is_given_longer_until_it_answers() -> None:
    watch = PathWatch(0.0)
    assert gives_up(watch, 0.0) < 5
    waits = []
    for _ in range(6):
        watch.begin(0.0, was_silent=True)
        waits.append(gives_up(watch, 0.0))
    assert 6 < waits[0] < 8
    assert waits == sorted(waits)
    assert waits[-1] == waits[-2] < 60
    watch.begin(0.0, was_silent=True)
    assert looks(watch, [1.0, 5.0]) == [ASK, WAIT]
    assert watch.look(5.5, received=1, unsent=0) is WAIT  # answered: it takes that long
    assert watch.look(7.5, received=1, unsent=0) is ASK
    assert watch.look(11.0, received=1, unsent=0) is WAIT


def test_an_answer_to_either_question_makes_it_more_patient() -> None:
    watch = PathWatch(0.0)
    assert looks(watch, [1.0, 2.5, 4.0]) == [ASK, ASK, WAIT]
    assert watch.look(4.5, received=1, unsent=0) is WAIT
    assert watch.look(6.5, received=1, unsent=0) is ASK
    assert watch.look(9.0, received=1, unsent=0) is WAIT
