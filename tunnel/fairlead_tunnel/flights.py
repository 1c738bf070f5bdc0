"""Which batches are under way, and which have arrived: numbers for exactly-once delivery."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from fairlead_tunnel.channel import Part
from fairlead_tunnel.frames import MAX_RANGES, Range
from fairlead_tunnel.ranges import RangeSet

MOST_UNDER_WAY: Final = 4096
MOST_PARTS: Final = 256 * 1024
"""So many parts of all batches may be under way, 150 bytes each beside what they carry."""
ACK_BYTES: Final = 256 * 1024
ACK_SECONDS: Final = 0.025


class Flight(NamedTuple):
    """What one batch carries, and over which carrier."""

    carrier: int
    parts: Sequence[Part]


class Departures:
    """The batches that this side sent and of which it does not know whether they arrived."""

    def __init__(self) -> None:
        self._next = 1
        self._flights: dict[int, Flight] = {}
        self._parts = 0

    @property
    def full(self) -> bool:
        """Say whether so many are under way that no more may leave."""
        return len(self._flights) >= MOST_UNDER_WAY or self._parts >= MOST_PARTS

    @property
    def lowest(self) -> int:
        """Return the oldest batch that is not settled; the next one when all are."""
        return next(iter(self._flights), self._next)

    def depart(self, carrier: int, parts: Sequence[Part]) -> tuple[int, int]:
        """Number a batch; returns its id and the `lowest` that it states."""
        batch_id = self._next
        if parts:
            self._flights[batch_id] = Flight(carrier, parts)
            self._parts += len(parts)
        lowest = self.lowest
        self._next += 1
        return batch_id, lowest

    def acked(self, ranges: Iterable[Range]) -> list[Part] | None:
        """Settle what has arrived and return what that carried; None: one was never sent.

        The ranges are disjoint.
        """
        found: list[Part] = []
        under_way = [*self._flights]  # ascending
        for first, last in ranges:
            if last >= self._next:
                return None
            for batch_id in under_way[
                bisect_left(under_way, first) : bisect_right(under_way, last)
            ]:
                found.extend(self._flights.pop(batch_id).parts)
        self._parts -= len(found)
        return found

    def lost(self, carriers: RangeSet) -> list[Part]:
        """Settle what went over these carriers, and return what has to be sent again."""
        gone = [key for key, flight in self._flights.items() if flight.carrier in carriers]
        found = [part for key in gone for part in self._flights.pop(key).parts]
        self._parts -= len(found)
        return found


class Arrivals:
    """The batches that came, each taken once, and when that has to be told to the other side."""

    def __init__(self) -> None:
        self._floor = 1
        self._arrived = RangeSet()
        self._bytes = 0
        self.due: float | None = None

    def take(self, batch_id: int, lowest: int, size: int) -> bool:
        """Note a batch; say whether it is the first time, and its sender still counts on it."""
        is_first = batch_id >= self._floor and batch_id not in self._arrived
        if is_first:
            self._arrived.add(batch_id, batch_id + 1)
            self._bytes += size
        if lowest > self._floor:
            self._floor = lowest
            self._arrived.discard(0, lowest)
        return is_first

    @property
    def scattered(self) -> bool:
        """Say whether more is missing in between than a sender may have under way."""
        return len(self._arrived) > MOST_UNDER_WAY

    def owe(self, now: float) -> None:
        """Have what came told soon: within 25 ms, or with whatever is sent before."""
        if self.due is None:
            self.due = now + ACK_SECONDS

    def is_due(self, now: float) -> bool:
        """Say whether it has to be told now, with nothing else to send."""
        return self.due is not None and (self._bytes >= ACK_BYTES or self.due <= now)

    def tell(self) -> list[Range]:
        """Return what an ACK says, the lowest ranges with both ends, and owe nothing any more."""
        self.due = None
        self._bytes = 0
        found: list[Range] = []
        for start, end in self._arrived:
            if len(found) == MAX_RANGES:
                break
            found.append((start, end - 1))
        return found
