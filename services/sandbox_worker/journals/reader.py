"""One watcher's place in a journal: the next record, and how much output comes before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sandbox_worker.execution import Gap, GapReason, OutputRecord
from sandbox_worker.execution_errors import CursorGone
from sandbox_worker.journals.segments import Segment


class _Journal(Protocol):
    @property
    def last_sequence(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def segments(self) -> Sequence[Segment]: ...

    def recent(self, sequence: int) -> Sequence[OutputRecord]: ...

    async def read(self, segment: Segment, start: int) -> Sequence[OutputRecord]: ...

    def gap_reason(self, first: int, last: int) -> GapReason: ...

    def passed(self) -> None: ...

    def leave(self, reader: FileReader) -> None: ...


class FileReader:
    """Reads a journal forward from a cursor; nothing of it stays open between two reads.

    A `journal` without a hole before the record after `after` gives its records from there; raises
    CursorGone for one with a hole, unless all that is kept is asked for.
    """

    def __init__(self, *, journal: _Journal, after: int) -> None:
        self._journal = journal
        self._wanted = after + 1
        self._counts = after <= journal.last_sequence
        self._next, self._offset = 1, 0
        if after > 0:
            self._begin(after)
        self._standing = self._next

    @property
    def counts(self) -> bool:
        """Whether a program that waits for room waits for this reader."""
        return self._counts

    @property
    def next(self) -> int:
        """Number of the next record to be read."""
        return self._next

    @property
    def offset(self) -> int:
        """Bytes of output before that record."""
        return self._offset

    @property
    def standing(self) -> int:
        """Number of the first record that may still be on its way to the watcher."""
        return self._standing

    async def read(self) -> Sequence[OutputRecord] | Gap:
        if self._standing != self._next:
            self._standing = self._next
            self._journal.passed()
        while self._next <= self._journal.last_sequence:
            records = self._journal.recent(self._next)
            if not records:
                segment = self._segment()
                if segment is None:
                    return self._skip()
                start = segment.position(self._next, self._offset)
                records = await self._journal.read(segment, start)
                if not records:
                    # It was dropped meanwhile, or the disk has damaged it.
                    if segment.first in {each.first for each in self._journal.segments}:
                        return self._skip()
                    continue
            if wanted := self._pass(records):
                return wanted
        return ()

    def close(self) -> None:
        self._journal.leave(self)

    def _begin(self, after: int) -> None:
        journal = self._journal
        if after >= journal.last_sequence:
            self._next, self._offset = journal.last_sequence + 1, journal.size
            return
        holding = [each for each in journal.segments if each.first <= after + 1]
        if not holding:
            raise CursorGone(self._after_hole()[0])
        self._next, self._offset = holding[-1].first, holding[-1].offset

    def _segment(self) -> Segment | None:
        """Return the segment that holds the next record; None when no segment does."""
        holding = [each for each in self._journal.segments if each.first <= self._next]
        if holding and holding[-1].position(self._next, self._offset) < holding[-1].length:
            return holding[-1]
        return None

    def _skip(self) -> Gap:
        """Pass a hole: what was dropped, lost or damaged up to the next segment."""
        first, offset = self._after_hole()
        if self._next < self._wanted:
            # How much of the hole lies after the cursor is not known.
            raise CursorGone(first)
        gap = Gap(
            first=self._next,
            last=first - 1,
            size=offset - self._offset,
            reason=self._journal.gap_reason(self._next, first - 1),
        )
        self._next, self._offset = first, offset
        return gap

    def _after_hole(self) -> tuple[int, int]:
        for segment in self._journal.segments:
            if segment.first > self._next:
                return segment.first, segment.offset
        return self._journal.last_sequence + 1, self._journal.size

    def _pass(self, records: Sequence[OutputRecord]) -> Sequence[OutputRecord]:
        self._next += len(records)
        self._offset += sum(len(record.content) for record in records)
        return [record for record in records if record.sequence >= self._wanted]
