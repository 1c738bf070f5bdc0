"""One execution's journal as segment files; old segments go when the journal is over its bound.

Only one task appends. Readers open a segment, read up to what is committed, and close it again: a
reader that is slow holds nothing up, and finds out that it was overtaken when its segment is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from sandbox_worker.execution import Exit, OutputRecord, Piece
from sandbox_worker.execution_errors import CursorGone
from sandbox_worker.journal import LARGEST_FRAME, encode_exit, encode_record, frames

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")
Write = Callable[[int, bytes], int]
_SUFFIX = ".segment"
_READ_BYTES = 4 * LARGEST_FRAME


@dataclass(frozen=True, slots=True)
class Segment:
    """A file of frames: the number of its first record and how many bytes of it are committed."""

    first: int
    length: int


class FileJournal:
    """The journal of one execution in its own directory."""

    def __init__(
        self,
        *,
        directory: Path,
        executor: Executor,
        segment_bytes: int,
        most_segments: int,
        write: Write,
        segments: Sequence[Segment] = (),
        last_sequence: int = 0,
    ) -> None:
        self._directory = directory
        self._executor = executor
        self._segment_bytes = segment_bytes
        self._most_segments = most_segments
        self._write = write
        self._segments = tuple(segments)
        self._last_sequence = last_sequence
        self._complete = True
        self._finished = False
        self._file: int | None = None

    @property
    def last_sequence(self) -> int:
        return self._last_sequence

    @property
    def complete(self) -> bool:
        return self._complete

    async def append(self, pieces: Sequence[Piece]) -> None:
        await self._run(lambda: self._append(pieces))

    async def finish(self, exit_: Exit) -> bool:
        return await self._run(lambda: self._finish(exit_))

    async def remove(self) -> None:
        await self._run(self._remove)

    def reader(self, after: int) -> FileReader:
        return FileReader(journal=self, after=after)

    def open(self) -> None:
        """Make the directory's first segment; blocking."""
        self._start_segment(1)

    def segments(self) -> tuple[Segment, ...]:
        """Return the segments as committed now, oldest first; never empty once opened."""
        return self._segments

    async def records(self, segment: Segment, start: int) -> tuple[list[OutputRecord], int]:
        """Read some records of a segment from offset `start`; also return the offset after them."""
        return await self._run(lambda: self._records(segment, start))

    def _records(self, segment: Segment, start: int) -> tuple[list[OutputRecord], int]:
        try:
            file = os.open(self._path(segment.first), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise CursorGone(self._segments[0].first) from None
        try:
            buffer = os.pread(file, min(_READ_BYTES, segment.length - start), start)
        finally:
            os.close(file)
        records: list[OutputRecord] = []
        end = 0
        for frame in frames(buffer):
            end = frame.end
            if isinstance(frame.entry, OutputRecord):
                records.append(frame.entry)
        # A committed frame that does not decode is a damaged disk: go on with the next segment.
        return records, start + end if end else segment.length

    def _append(self, pieces: Sequence[Piece]) -> None:
        for piece in pieces:
            if not self._complete:
                return
            sequence = self._last_sequence + 1
            frame = encode_record(
                OutputRecord(
                    sequence=sequence,
                    stream=piece.stream,
                    content=piece.content,
                    written_at=piece.written_at,
                )
            )
            try:
                if self._segments[-1].length + len(frame) > self._segment_bytes:
                    self._start_segment(sequence)
                self._commit(frame)
            except OSError as error:
                self._complete = False
                log.error("output is lost", extra={"cause": error.strerror})
                return
            self._last_sequence = sequence

    def _finish(self, exit_: Exit) -> bool:
        if not self._finished:
            try:
                self._commit(encode_exit(exit_))
            except OSError as error:
                log.error("an exit is not on disk yet", extra={"cause": error.strerror})
                return False
            self._finished = True
            self._close()
        return True

    def _remove(self) -> None:
        self._close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _commit(self, frame: bytes) -> None:
        segment = self._segments[-1]
        if self._file is None:
            flags = os.O_WRONLY | os.O_CLOEXEC | os.O_CREAT
            self._file = os.open(self._path(segment.first), flags, 0o600)
            os.lseek(self._file, segment.length, os.SEEK_SET)
        rest = frame
        try:
            while rest:
                rest = rest[self._write(self._file, rest) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, segment.length)
            self._close()
            raise
        self._segments = (
            *self._segments[:-1],
            Segment(first=segment.first, length=segment.length + len(frame)),
        )

    def _start_segment(self, first: int) -> None:
        self._close()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._file = os.open(self._path(first), flags, 0o600)
        segments = (*self._segments, Segment(first=first, length=0))
        dropped, self._segments = segments[: -self._most_segments], segments[-self._most_segments :]
        for segment in dropped:
            self._path(segment.first).unlink(missing_ok=True)

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _path(self, first: int) -> Path:
        return self._directory / f"{first:020d}{_SUFFIX}"

    async def _run(self, work: Callable[[], Answer]) -> Answer:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)


class FileReader:
    """Reads a journal forward from a cursor; nothing of it stays open between two reads."""

    def __init__(self, *, journal: FileJournal, after: int) -> None:
        self._journal = journal
        self._following = after + 1
        self._anywhere = after == 0
        self._first: int | None = None
        self._position = 0

    async def read(self) -> Sequence[OutputRecord]:
        while True:
            segments = self._journal.segments()
            if self._first is None:
                self._first = self._begin(segments)
            ahead = [segment for segment in segments if segment.first >= self._first]
            if not ahead or ahead[0].first != self._first:
                raise CursorGone(segments[0].first)
            if self._position < ahead[0].length:
                records, self._position = await self._journal.records(ahead[0], self._position)
                wanted = [record for record in records if record.sequence >= self._following]
                if wanted:
                    self._following = wanted[-1].sequence + 1
                    return wanted
            elif len(ahead) > 1:
                self._first, self._position = ahead[1].first, 0
            else:
                return ()

    def _begin(self, segments: Sequence[Segment]) -> int:
        oldest = segments[0].first
        if self._following < oldest:
            if not self._anywhere:
                raise CursorGone(oldest)
            self._following = oldest
        return max(segment.first for segment in segments if segment.first <= self._following)


def recovered(directory: Path) -> tuple[list[Segment], int, Exit | None]:
    """Read a directory of an earlier life: segments, last sequence and exit; cuts a torn tail."""
    paths = sorted(directory.glob(f"*{_SUFFIX}"))
    segments = [Segment(first=int(path.stem), length=path.stat().st_size) for path in paths]
    if not segments:
        return [], 0, None
    newest = segments[-1]
    last_sequence, exit_, length = newest.first - 1, None, 0
    for frame in frames(paths[-1].read_bytes()):
        length = frame.end
        last_sequence = (
            frame.entry.sequence if isinstance(frame.entry, OutputRecord) else last_sequence
        )
        exit_ = frame.entry if isinstance(frame.entry, Exit) else exit_
    if length < newest.length:
        os.truncate(paths[-1], length)
    return [*segments[:-1], Segment(first=newest.first, length=length)], last_sequence, exit_
