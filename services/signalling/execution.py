"""Executions as signalling sees them: what to run, its output and how it ended. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from fairlead_limits.table import DEFAULT_GRACE_SECONDS


class ExecutionState(StrEnum):
    """Whether an execution runs."""

    RUNNING = "running"
    EXITED = "exited"


class OutputStream(StrEnum):
    """Standard output or standard error."""

    STDOUT = "stdout"
    STDERR = "stderr"


class ExitReason(StrEnum):
    """Why an execution ended."""

    EXITED = "exited"
    SIGNALLED = "signalled"
    TIMED_OUT = "timed_out"
    RELEASED = "released"
    HOST_LOST = "host_lost"
    OUT_OF_MEMORY = "out_of_memory"
    LIMIT_PIDS = "limit_pids"
    LIMIT_DISK = "limit_disk"


class GapReason(StrEnum):
    """Why records are missing; see execution.proto."""

    UNKNOWN = "unknown"
    DROPPED = "dropped"
    EVICTED = "evicted"
    DISK_FULL = "disk_full"
    DISK_FAILED = "disk_failed"


class OnFull(StrEnum):
    """What happens when the output that is kept has reached its bound; see execution.proto."""

    DROP_OLDEST = "drop_oldest"
    BLOCK = "block"


DEFAULT_GRACE = timedelta(seconds=DEFAULT_GRACE_SECONDS)


@dataclass(frozen=True, slots=True)
class TerminalSize:
    """The size of a terminal in characters, 1 to 65535 each."""

    rows: int
    columns: int


@dataclass(frozen=True, slots=True)
class Command:
    """What to run; see `launch_request.check_command` for the rules."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    directory: str = ""
    stdin: bool = False
    timeout: timedelta | None = None
    terminal: TerminalSize | None = None
    on_full: OnFull = OnFull.DROP_OLDEST
    grace: timedelta = DEFAULT_GRACE


@dataclass(frozen=True, slots=True)
class Exit:
    """How an execution ended; `last_sequence` is that of its last output record, 0 for none.

    Without `cpu_time` nobody saw it end, and `peak_memory_bytes` is 0.
    """

    reason: ExitReason
    code: int | None
    signal: int | None
    last_sequence: int
    ended_at: datetime
    cpu_time: timedelta | None = None
    peak_memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Execution:
    """One command inside a sandbox."""

    execution_id: str
    sandbox_id: str
    state: ExecutionState
    arguments: tuple[str, ...]
    started_at: datetime
    exit: Exit | None = None


@dataclass(frozen=True, slots=True)
class OutputRecord:
    """A piece of output, numbered from 1 per execution."""

    execution_id: str
    sequence: int
    stream: OutputStream
    content: bytes
    written_at: datetime


@dataclass(frozen=True, slots=True)
class OutputGap:
    """Records that are no longer there, or never reached the disk; `size` in bytes of output."""

    first_sequence: int
    last_sequence: int
    size: int
    reason: GapReason = GapReason.UNKNOWN


OutputFrame = Execution | OutputRecord | OutputGap | Exit
"""A frame of a watched output: the execution first, then records and gaps, then exactly one exit.
"""
