"""Sets of whole numbers kept as ranges, for sequence numbers that mostly follow each other."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator


class RangeSet:
    """Disjoint ranges `[start, end)` in ascending order; ranges that touch are one."""

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __len__(self) -> int:
        """Return how many ranges there are."""
        return len(self._starts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Return the ranges, lowest first."""
        return zip(self._starts, self._ends, strict=True)

    def __contains__(self, number: int) -> bool:
        """Say whether one number is in the set."""
        place = bisect_right(self._starts, number)
        return place > 0 and number < self._ends[place - 1]

    def first(self) -> tuple[int, int]:
        """Return the lowest range; IndexError when the set is empty."""
        return self._starts[0], self._ends[0]

    def add(self, start: int, end: int) -> None:
        """Add `[start, end)`; an empty range changes nothing."""
        if start >= end:
            return
        if self._ends and self._starts[-1] <= start <= self._ends[-1]:
            self._ends[-1] = max(end, self._ends[-1])  # what comes in order needs no search
            return
        low = bisect_left(self._ends, start)
        high = bisect_right(self._starts, end)
        if low < high:
            start = min(start, self._starts[low])
            end = max(end, self._ends[high - 1])
        self._starts[low:high] = [start]
        self._ends[low:high] = [end]

    def discard(self, start: int, end: int) -> None:
        """Take `[start, end)` out, as far as it is in."""
        if start >= end or not self._starts:
            return
        if start <= self._starts[0] and end < self._ends[0]:
            self._starts[0] = max(end, self._starts[0])  # the front falls off without a search
            return
        low = bisect_right(self._ends, start)
        high = bisect_left(self._starts, end)
        if low >= high:
            return
        kept = []
        if self._starts[low] < start:
            kept.append((self._starts[low], start))
        if self._ends[high - 1] > end:
            kept.append((end, self._ends[high - 1]))
        self._starts[low:high] = [each[0] for each in kept]
        self._ends[low:high] = [each[1] for each in kept]

    def missing(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the parts of `[start, end)` that are not in the set, lowest first."""
        found = []
        place = bisect_right(self._ends, start)
        while start < end:
            if place == len(self._starts) or self._starts[place] >= end:
                found.append((start, end))
                break
            if start < self._starts[place]:
                found.append((start, self._starts[place]))
            start = self._ends[place]
            place += 1
        return found


def ranges_of(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return the ranges of these numbers, lowest first, each with its last number."""
    found = RangeSet()
    for number in numbers:
        found.add(number, number + 1)
    return [(start, end - 1) for start, end in found]
