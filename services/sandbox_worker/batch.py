"""Batches as plain values: pieces of work that run one after the other, and what became of them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum

from chassis.errors import FairleadError, InvalidArgument
from chassis.limits import check_size
from fairlead_limits.table import BATCH_ITEMS
from sandbox_worker.execution import Command, Execution
from sandbox_worker.execution_errors import CommandInvalid
from sandbox_worker.file import FileOperation, FileOutcome

TAIL_BYTES = 16 * 1024
MOST_FILE_BYTES = 1024 * 1024
"""Contents of files in one answer, all together: with the outputs it stays below 4 MiB."""


class BatchState(StrEnum):
    """What became of one piece of work."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SKIPPED = "skipped"


class BatchInvalid(InvalidArgument):
    """No host could run this batch."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, reason="batch_invalid", remedy="Correct it and call again.")


@dataclass(frozen=True, slots=True)
class Batch:
    """Pieces of work, in their order."""

    items: tuple[Command | FileOperation, ...]
    continue_on_failure: bool = False

    def fingerprint(self) -> str:
        """Return a text that is the same for the same batch only."""
        asked = [
            item.fingerprint() if isinstance(item, Command) else repr(item) for item in self.items
        ]
        return hashlib.sha256(repr((asked, self.continue_on_failure)).encode()).hexdigest()

    def check(self) -> None:
        """Raise LimitBroken or CommandInvalid when no host could run this."""
        check_size(BATCH_ITEMS, len(self.items))
        for item in self.items:
            if isinstance(item, Command):
                item.check()
                if item.stdin or item.terminal is not None:
                    raise CommandInvalid(
                        "A command of a batch has neither standard input nor a terminal."
                    )


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """What became of one piece of work; `stdout` and `stderr` are the ends of an execution's."""

    state: BatchState
    execution: Execution | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    truncated: bool = False
    failure: FairleadError | None = None
    file: FileOutcome | None = None

    @property
    def size(self) -> int:
        """Bytes of content."""
        read = 0 if self.file is None else len(self.file.content)
        return len(self.stdout) + len(self.stderr) + read
