"""Ranges of numbers against plain sets of them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead_tunnel.ranges import RangeSet

CHANGES = st.lists(st.tuples(st.booleans(), st.integers(0, 40), st.integers(0, 40)), max_size=30)


@given(CHANGES)
def test_ranges_hold_what_a_set_holds(changes: list[tuple[bool, int, int]]) -> None:
    ranges, numbers = RangeSet(), set[int]()
    for adds, start, end in changes:
        if adds:
            ranges.add(start, end)
            numbers |= set(range(start, end))
        else:
            ranges.discard(start, end)
            numbers -= set(range(start, end))
        listed = [*ranges]
        assert {each for first, last in listed for each in range(first, last)} == numbers
        assert all(first < last for first, last in listed)
        assert all(one[1] < two[0] for one, two in pairwise(listed))
        assert [each for each in range(41) if each in ranges] == sorted(numbers)
        assert len(ranges) == len(listed)


@given(CHANGES, st.integers(0, 40), st.integers(0, 40))
def test_what_is_missing(changes: list[tuple[bool, int, int]], start: int, end: int) -> None:
    ranges = RangeSet()
    for _, first, last in changes:
        ranges.add(first, last)
    missing = ranges.missing(start, end)
    found = [each for first, last in missing for each in range(first, last)]
    assert found == [each for each in range(start, end) if each not in ranges]
    assert all(first < last for first, last in missing)


def test_the_first_of_none() -> None:
    with pytest.raises(IndexError):
        RangeSet().first()
