"""The files of one journal: its head and its segments. Blocking, without any state but the open
segment; one piece of work at a time.

A head `ID.head` holds the description of an execution and, once it has ended, its terminal frame.
A segment `ID.FIRST.OFFSET.segment` holds records that follow each other without a hole: its name
says the number of the first and how many bytes of output came before it, so that what is missing
between two segments shows by their names, lost or dropped.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sandbox_worker.execution import OutputRecord
from sandbox_worker.journals.encoding import FRAME_BYTES, encode_record, frames

Write = Callable[[int, Sequence[bytes | memoryview]], int]
HEAD = ".head"
SEGMENT = ".segment"


@dataclass(frozen=True, slots=True)
class Segment:
    """A file of frames: the number of its first record, the bytes of output before it, and how many
    bytes of the file are committed.
    """

    first: int
    offset: int
    length: int = 0

    def position(self, sequence: int, offset: int) -> int:
        """Return where in the file a record begins that has `offset` bytes of output before it."""
        return offset - self.offset + FRAME_BYTES * (sequence - self.first)


class SegmentFiles:
    """The files of one journal; `head` is the path of its head."""

    def __init__(self, *, head: Path, write: Write) -> None:
        self._head = head
        self._write = write
        self._file: int | None = None

    def path(self, segment: Segment) -> Path:
        """Return the path of a segment."""
        name = f"{self._head.stem}.{segment.first:016d}.{segment.offset:018d}{SEGMENT}"
        return self._head.with_name(name)

    def make_head(self, content: bytes) -> None:
        """Write a head; raises FileExistsError, OSError."""
        file = os.open(self._head, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            self._write_all(file, [content])
        except OSError:
            self._head.unlink(missing_ok=True)
            raise
        finally:
            os.close(file)

    def end_head(self, content: bytes, length: int) -> None:
        """Write `content` behind the first `length` bytes of the head; raises OSError."""
        self.close()
        file = os.open(self._head, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.lseek(file, length, os.SEEK_SET)
            self._write_all(file, [content])
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(file, length)
            raise
        finally:
            os.close(file)

    def append(
        self, segment: Segment, records: Sequence[OutputRecord], *, dropped: Sequence[Segment]
    ) -> tuple[int, OSError | None]:
        """Remove `dropped`, then write records behind a segment's committed length.

        Returns how many of them were written, and why not all.
        """
        for each in dropped:
            with contextlib.suppress(OSError):
                self.path(each).unlink(missing_ok=True)
        if segment.length == 0:
            self.close()
        try:
            if self._file is None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
                self._file = os.open(self.path(segment), flags, 0o600)
                os.ftruncate(self._file, segment.length)
                os.lseek(self._file, segment.length, os.SEEK_SET)
        except OSError as error:
            self._discard(segment)
            return 0, error
        parts = [part for record in records for part in encode_record(record)]
        try:
            self._write_all(self._file, parts)
        except OSError as error:
            written = self._written(segment, records)
            if written == 0:
                self._discard(segment)
            return written, error
        return len(records), None

    def read(self, segment: Segment, start: int, most: int) -> list[OutputRecord]:
        """Read records from `start`; none when they are damaged or the file is gone."""
        try:
            file = os.open(self.path(segment), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return []
        try:
            buffer = os.pread(file, min(most, segment.length - start), start)
        finally:
            os.close(file)
        entries = [frame.entry for frame in frames(buffer)]
        return [entry for entry in entries if isinstance(entry, OutputRecord)]

    def evict(self, segment: Segment) -> None:
        """Delete a segment; no other work of the journal has it open."""
        with contextlib.suppress(OSError):
            self.path(segment).unlink(missing_ok=True)

    def replace(self, segment: Segment, empty: Segment) -> None:
        """Delete the newest segment, of which an empty one says where the next record begins."""
        self.close()
        with contextlib.suppress(OSError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
            os.close(os.open(self.path(empty), flags, 0o600))
        self.evict(segment)

    def remove(self, segments: Sequence[Segment]) -> None:
        """Delete everything, the head last."""
        self.close()
        with contextlib.suppress(OSError):
            for segment in segments:
                self.path(segment).unlink(missing_ok=True)
            self._head.unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the open segment."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _discard(self, segment: Segment) -> None:
        """Close the open file, and remove it when nothing of it is committed."""
        self.close()
        if segment.length == 0:
            with contextlib.suppress(OSError):
                self.path(segment).unlink(missing_ok=True)

    def _written(self, segment: Segment, records: Sequence[OutputRecord]) -> int:
        """Return how many records a write that failed has left whole; the rest is cut off."""
        file = self._file
        if file is None:
            return 0
        count, end = 0, segment.length
        with contextlib.suppress(OSError):
            size = os.fstat(file).st_size
            for record in records:
                if end + FRAME_BYTES + len(record.content) > size:
                    break
                end += FRAME_BYTES + len(record.content)
                count += 1
            os.ftruncate(file, end)
        self.close()
        return count

    def _write_all(self, file: int, parts: Sequence[bytes]) -> None:
        written = self._write(file, parts)
        if written == sum(map(len, parts)):
            return
        rest = memoryview(b"".join(parts))[written:]
        while rest:
            rest = rest[self._write(file, [rest]) :]
