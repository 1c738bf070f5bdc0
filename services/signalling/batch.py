"""Batches as signalling sees them: pieces of work in one sandbox, and what became of them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from chassis.limits import check_size
from fairlead_limits import table
from signalling.execution import Command, Execution
from signalling.file import FileOperation, FileOutcome
from signalling.launch_request import check_command
from signalling.source_rules import InvalidRequest


class BatchState(StrEnum):
    """What became of one piece of work."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Batch:
    """Pieces of work, in their order."""

    items: tuple[Command | FileOperation, ...]
    continue_on_failure: bool = False

    def check(self) -> None:
        """Raise InvalidRequest for a batch that no sandbox could run."""
        check_size(table.BATCH_ITEMS, len(self.items))
        for item in self.items:
            if isinstance(item, Command):
                check_command(item)
                if item.stdin or item.terminal is not None:
                    raise InvalidRequest(
                        "items",
                        "A command of a batch has neither standard input nor a terminal.",
                        reason="command_invalid",
                    )


@dataclass(frozen=True, slots=True)
class BatchFailure:
    """The error of one piece of work."""

    reason: str
    message: str
    remedy: str


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """What became of one piece of work; `stdout` and `stderr` are the ends of an execution's."""

    state: BatchState
    execution: Execution | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    truncated: bool = False
    failure: BatchFailure | None = None
    file: FileOutcome | None = None
