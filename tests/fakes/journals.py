"""A disk that fills up, and what journals are made of in tests."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from chassis.ids import random_id
from sandbox_worker.execution import (
    Execution,
    Exit,
    ExitReason,
    Gap,
    OutputRecord,
    Piece,
    Stream,
)
from sandbox_worker.journals.file_journal import FileJournal
from sandbox_worker.journals.reader import FileReader

AT = datetime(2026, 1, 1, tzinfo=UTC)
BOUND = 1024 * 1024
"""Of the journals in tests."""


class Disk:
    """Takes bytes until it is full, in pieces as small as it likes; `refusing` is called in the
    middle of a write that fails.
    """

    def __init__(self) -> None:
        self.room = 10**9
        self.most = 10**9
        self.refusing: Callable[[], None] = lambda: None

    def write(self, file: int, parts: Sequence[bytes | memoryview]) -> int:
        """Write some of `parts`; raises ENOSPC."""
        if self.room == 0:
            self.refusing()
            raise OSError(errno.ENOSPC, "No space left on device")
        content = b"".join(parts)
        written = os.write(file, content[: min(self.room, self.most)])
        self.room -= written
        return written


def execution() -> Execution:
    """Make an execution that runs."""
    return Execution(
        execution_id=random_id("exe"),
        sandbox_id=random_id("sbx"),
        tenant="default",
        arguments=("echo", "ä"),
        started_at=AT,
        fingerprint="f",
    )


def piece(content: bytes, stream: Stream = Stream.STDOUT) -> Piece:
    """Make a piece of output."""
    return Piece(stream=stream, content=content, written_at=7)


def exit_after(journal: FileJournal, reason: ExitReason = ExitReason.EXITED) -> Exit:
    """Make the exit that follows what a journal has."""
    return Exit(reason=reason, last_sequence=journal.last_sequence, ended_at=AT, code=0)


async def read_all(reader: FileReader) -> list[OutputRecord | Gap]:
    """Read until nothing more is there."""
    found: list[OutputRecord | Gap] = []
    while output := await reader.read():
        found.extend([output] if isinstance(output, Gap) else output)
    return found


async def records(journal: FileJournal, after: int = 0) -> list[OutputRecord | Gap]:
    """Read all that is there after a record."""
    reader = journal.reader(after)
    try:
        return await read_all(reader)
    finally:
        reader.close()


def sequences(found: list[OutputRecord | Gap]) -> list[int | tuple[int, int, int]]:
    """Give the numbers of records, and of gaps all three of theirs."""
    return [
        (each.first, each.last, each.size) if isinstance(each, Gap) else each.sequence
        for each in found
    ]


def kept_bytes(root: Path) -> int:
    """Give the bytes of all segments."""
    return sum(path.stat().st_size for path in root.glob("*.segment"))


def found_in(root: Path, pattern: str = "*") -> list[Path]:
    """List a directory."""
    return sorted(root.glob(pattern))


def size_of(path: Path) -> int:
    """Give the size of a file."""
    return path.stat().st_size
