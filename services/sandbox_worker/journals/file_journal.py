"""One execution's journal as segment files, bounded; what is kept in memory is what the disk has.

Only one task appends, and what it knows changes on the event loop only, after the disk has taken
it. A reader holds no file open: one that is slow finds out that it was overtaken by the numbers.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TypeVar

from sandbox_worker.brief_work import BriefWork
from sandbox_worker.execution import (
    MOST_RECORD_BYTES,
    Exit,
    Gap,
    GapReason,
    OnFull,
    OutputRecord,
    Piece,
)
from sandbox_worker.journals.budget import JournalBudget
from sandbox_worker.journals.encoding import FRAME_BYTES, LARGEST_FRAME, Ending, encode_ending
from sandbox_worker.journals.reader import FileReader
from sandbox_worker.journals.segments import Segment, SegmentFiles

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")
SEGMENTS = 8
"""A journal is dropped from in eighths of its bound."""

_BEHIND = 3
"""Segments that stay behind the slowest reader of a program that waits."""

_BRIEF_BYTES = 64 * 1024
"""Of content that is written, read or removed on the event loop."""

_READ_BYTES = 2 * LARGEST_FRAME
_RECENT_BYTES = 4 * MOST_RECORD_BYTES
"""What is kept in memory for readers on their way; as much as one read of a program's pipe."""

_LEAD_BYTES = 16 * MOST_RECORD_BYTES
"""How far a program that waits for its readers is ahead of those that keep up, which find that much
in memory as well.
"""

_STRIDE_BYTES = 4 * MOST_RECORD_BYTES
_STRIDE_SECONDS = 0.01
"""How long it waits, once per stride, for such a reader to come near; the journal has more room."""

_FULL = (errno.ENOSPC, errno.EDQUOT)
_MOST_LOST = 16
"""Ranges of lost records that are told apart."""

_RECENT_RECORDS = 1024
_MOST_RECORDS = 256
"""Records in one write: writev(2) takes 1024 parts."""


class FileJournal:
    """The journal of one execution."""

    def __init__(
        self,
        *,
        files: SegmentFiles,
        work: BriefWork,
        budget: JournalBudget,
        most_bytes: int,
        on_full: OnFull,
        head_length: int,
        segments: Sequence[Segment] = (),
        last_sequence: int = 0,
        size: int = 0,
        ended: bool = False,
        lost: Sequence[Gap] = (),
    ) -> None:
        self._files = files
        self._work = work
        self._budget = budget
        self._segment_bytes = most_bytes // SEGMENTS
        self._blocks = on_full is OnFull.BLOCK
        self._head_length = head_length
        self._segments = tuple(segments)
        self._dropped: list[Segment] = []
        self._last_sequence = last_sequence
        self._size = size
        self._appendable = False
        self._unbounded = False
        self._complete = True
        self._ended = ended
        self._finished = ended
        # What an earlier life has dropped is not known to have a reason.
        self._dropped_to = segments[0].first - 1 if segments else last_sequence
        self._drop_reason = GapReason.UNKNOWN
        self._lost = list(lost)
        # Held while files are written, or the newest one is replaced.
        self._turn = asyncio.Lock()
        self._readers: set[FileReader] = set()
        self._recent: deque[OutputRecord] = deque()
        self._recent_bytes = 0
        self._waited_at = 0
        self._is_near = True
        self._woken = asyncio.Event()

    @property
    def last_sequence(self) -> int:
        return self._last_sequence

    @property
    def complete(self) -> bool:
        return self._complete

    @property
    def size(self) -> int:
        """Bytes of output so far, those included that were lost or dropped."""
        return self._size

    @property
    def held(self) -> int:
        """Bytes on the disk."""
        return self._head_length + sum(segment.length for segment in self._segments)

    @property
    def has_ended(self) -> bool:
        return self._ended

    @property
    def is_read(self) -> bool:
        return bool(self._readers)

    @property
    def segments(self) -> Sequence[Segment]:
        """The segments as committed now, oldest first."""
        return self._segments

    async def append(
        self, pieces: Sequence[Piece], *, announce: Callable[[], None] = lambda: None
    ) -> None:
        ahead = self._numbered(pieces)
        while ahead:
            await self._wait_for_budget(ahead)
            segment = await self._place(ahead[0])
            while self._turn.locked():
                async with self._turn:
                    pass
                segment = await self._place(ahead[0])
            batch = self._batch(segment, ahead)
            dropped, self._dropped = self._dropped, []
            # Before the write: what calls for another try while it fails is not to be missed.
            self._woken.clear()
            work = partial(self._files.append, segment, batch, dropped=dropped)
            async with self._turn:
                written, error = await self._run(work, _content(batch), dropped)
                self._take(segment, batch[:written])
            ahead = ahead[written:]
            # Before anything waits: what it waits for may be a reader of these.
            announce()
            if error is None:
                await self._wait_for_near_readers()
            elif not await self._freed(error):
                self._lose(ahead, error)
                announce()
                return

    async def finish(self, exit_: Exit) -> bool:
        if not self._ended:
            self._ended = True
            self._budget.ended(self)
        ending = encode_ending(Ending(exit=exit_, size=self._size, lost=tuple(self._lost)))
        if not self._finished:
            try:
                async with self._turn:
                    await self._work.run(lambda: self._files.end_head(ending, self._head_length))
            except OSError as error:
                log.error("an exit is not on disk yet", extra={"cause": error.strerror})
                return False
            self._finished = True
        return True

    async def remove(self) -> None:
        self._budget.leave(self)
        async with self._turn:
            segments = (*self._dropped, *self._segments)
            self._segments = ()
            self._recent.clear()
            await self._run(lambda: self._files.remove(segments), 0, segments)

    def may_evict(self, *, newest: bool) -> bool:
        if not any(segment.length for segment in self._segments):
            return False
        if len(self._segments) == 1 and not self._finished:
            if not (newest or self._ended) or self._turn.locked():
                return False
            after = self._last_sequence + 1
        elif self._ended or not self._blocks:
            return True
        else:
            after = self._segments[1].first
        # What a program that waits has written stays until its readers have passed it.
        return self._ended or not self._blocks or self._has_passed(after)

    async def evict(self, reason: GapReason) -> None:
        if len(self._segments) > 1 or self._finished:
            oldest = self._let_go(reason)
            await self._run(lambda: self._files.evict(oldest), 0, [oldest])
            return
        async with self._turn:
            newest = self._let_go(reason)
            empty = Segment(first=self._last_sequence + 1, offset=self._size)
            self._segments = (empty,)
            await self._run(lambda: self._files.replace(newest, empty), 0, [newest])

    def gap_reason(self, first: int, last: int) -> GapReason:
        """Say why records are not there."""
        for lost in self._lost:
            if lost.first <= last and first <= lost.last:
                return lost.reason
        return self._drop_reason if last <= self._dropped_to else GapReason.UNKNOWN

    def reader(self, after: int) -> FileReader:
        reader = FileReader(journal=self, after=after)
        self._readers.add(reader)
        return reader

    def retry(self) -> None:
        self._woken.set()

    def unblock(self) -> None:
        self._unbounded = True
        self._woken.set()

    def passed(self) -> None:
        """Take note that a reader has come further."""
        slowest = min((reader.next for reader in self._readers), default=0)
        while self._recent and self._recent[0].sequence < slowest:
            self._recent_bytes -= len(self._recent.popleft().content)
        self._woken.set()

    def leave(self, reader: FileReader) -> None:
        """Forget a reader."""
        self._readers.discard(reader)
        if not self._readers:
            self._forget_recent()
        self._woken.set()

    def recent(self, sequence: int) -> Sequence[OutputRecord]:
        """Return records from `sequence` on that are still in memory; none when it is not."""
        if not self._recent or sequence < self._recent[0].sequence:
            return ()
        return list(islice(self._recent, sequence - self._recent[0].sequence, None))

    async def read(self, segment: Segment, start: int) -> Sequence[OutputRecord]:
        """Read some records of a segment; none when they are damaged or it was dropped."""
        size = min(segment.length - start, _READ_BYTES)
        return await self._run(lambda: self._files.read(segment, start, _READ_BYTES), size)

    def _numbered(self, pieces: Sequence[Piece]) -> Sequence[OutputRecord]:
        most = min(MOST_RECORD_BYTES, self._segment_bytes - FRAME_BYTES)
        parts = [
            (piece, piece.content[start : start + most])
            for piece in pieces
            for start in range(0, len(piece.content), most)
        ]
        return [
            OutputRecord(
                sequence=sequence,
                stream=piece.stream,
                content=content,
                written_at=piece.written_at,
            )
            for sequence, (piece, content) in enumerate(parts, self._last_sequence + 1)
        ]

    async def _place(self, record: OutputRecord) -> Segment:
        """Return the segment that a record goes into; waits for room when nothing may go."""
        if self._appendable and self._has_room(self._segments[-1].length, record):
            return self._segments[-1]
        while len(self._segments) >= SEGMENTS and not self._drop() and not self._unbounded:
            self._woken.clear()
            await self._woken.wait()
        return Segment(first=record.sequence, offset=self._size)

    def _has_room(self, length: int, record: OutputRecord) -> bool:
        return length + FRAME_BYTES + len(record.content) <= self._segment_bytes

    def _batch(self, segment: Segment, ahead: Sequence[OutputRecord]) -> Sequence[OutputRecord]:
        length, batch = segment.length, []
        for record in ahead[:_MOST_RECORDS]:
            if not self._has_room(length, record):
                break
            batch.append(record)
            length += FRAME_BYTES + len(record.content)
        return batch

    def _drop(self) -> bool:
        """Drop the oldest segment, if it may go."""
        if self._blocks and not self._is_passed(_BEHIND + 1):
            return False
        self._dropped.append(self._let_go(GapReason.DROPPED))
        return True

    def _let_go(self, reason: GapReason) -> Segment:
        """Forget the oldest segment."""
        oldest, self._segments = self._segments[0], self._segments[1:]
        after = self._segments[0].first if self._segments else self._last_sequence + 1
        self._dropped_to, self._drop_reason = after - 1, reason
        self._budget.changed(self, -oldest.length)
        return oldest

    def _is_passed(self, index: int) -> bool:
        """Say whether somebody reads, and all who do have come to this segment.

        Some segments behind the slowest stay: what is on its way to a watcher whose connection
        breaks can be read again.
        """
        return self._has_passed(self._segments[index].first)

    def _has_passed(self, sequence: int) -> bool:
        reading = [reader.standing for reader in self._readers if reader.counts]
        return bool(reading) and min(reading) >= sequence

    async def _wait_for_budget(self, ahead: Sequence[OutputRecord]) -> None:
        """Let the oldest records of this and other executions go where all hold too much; a program
        that waits for its readers waits for that, too.
        """
        size = min(_content(ahead[:_MOST_RECORDS]) + FRAME_BYTES * len(ahead), self._segment_bytes)
        while not await self._budget.make_room(self, size):
            if not self._blocks or self._unbounded:
                return
            self._woken.clear()
            await self._woken.wait()

    async def _wait_for_near_readers(self) -> None:
        """Let a program that waits anyway not run away from readers that keep up: they take from
        memory then what they would read from the disk, at half the cost.
        """
        if not self._blocks or self._size - self._waited_at < _STRIDE_BYTES:
            return
        self._waited_at = self._size
        self._is_near = self._lead() <= 2 * _LEAD_BYTES
        if self._lead() <= _LEAD_BYTES:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_STRIDE_SECONDS):
                while self._lead() > _LEAD_BYTES and not self._unbounded:
                    self._woken.clear()
                    await self._woken.wait()

    def _lead(self) -> int:
        """Return how many bytes the slowest of the readers that count has still to read."""
        read = (reader.offset for reader in self._readers if reader.counts)
        return self._size - min(read, default=self._size)

    async def _freed(self, error: OSError) -> bool:
        """After a failed write, make room on the disk or wait for it; False when there is none."""
        if error.errno in _FULL and await self._budget.relieve(GapReason.DISK_FULL):
            return True
        if self._blocks and not self._unbounded:
            await self._woken.wait()
            return True
        return not self._blocks and len(self._segments) > 1 and self._drop()

    def _take(self, segment: Segment, records: Sequence[OutputRecord]) -> None:
        if not records:
            return
        size = _content(records)
        length = segment.length + size + FRAME_BYTES * len(records)
        taken = Segment(first=segment.first, offset=segment.offset, length=length)
        is_newest = bool(self._segments) and self._segments[-1].first == segment.first
        kept = self._segments[:-1] if is_newest else self._segments
        self._segments = (*kept, taken)
        self._budget.changed(self, length - segment.length)
        self._appendable = True
        self._last_sequence = records[-1].sequence
        self._size += size
        if self._readers:
            self._recent.extend(records)
            self._recent_bytes += size
            # A reader that stands still is not worth more than that in memory.
            ahead = _LEAD_BYTES + _STRIDE_BYTES if self._blocks and self._is_near else 0
            most = _RECENT_BYTES + ahead
            while self._recent_bytes > most or len(self._recent) > _RECENT_RECORDS:
                self._recent_bytes -= len(self._recent.popleft().content)

    def _lose(self, records: Sequence[OutputRecord], error: OSError) -> None:
        if self._complete:
            log.error("output is lost", extra={"cause": error.strerror})
        self._complete = False
        self._appendable = False
        self._forget_recent()
        lost = Gap(
            first=self._last_sequence + 1,
            last=self._last_sequence + len(records),
            size=_content(records),
            reason=GapReason.DISK_FULL if error.errno in _FULL else GapReason.DISK_FAILED,
        )
        before = self._lost[-1] if self._lost else None
        follows = before is not None and before.last == self._last_sequence
        if before is not None and (follows or len(self._lost) >= _MOST_LOST):
            self._lost[-1] = replace(before, last=lost.last, size=before.size + lost.size)
        else:
            self._lost.append(lost)
        self._last_sequence += len(records)
        self._size += lost.size

    def _forget_recent(self) -> None:
        self._recent.clear()
        self._recent_bytes = 0

    async def _run(
        self, work: Callable[[], Answer], size: int, removed: Sequence[Segment] = ()
    ) -> Answer:
        """Do work on so many bytes of content, and on what it removes."""
        if size + sum(segment.length for segment in removed) > _BRIEF_BYTES:
            return await self._work.run_apart(work)
        return await self._work.run(work)


def _content(records: Sequence[OutputRecord]) -> int:
    return sum(len(record.content) for record in records)
