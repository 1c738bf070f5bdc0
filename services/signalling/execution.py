"""Executions as signalling sees them: what to run, its output and how it ended. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum


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


@dataclass(frozen=True, slots=True)
class Command:
    """What to run; see `launch_request.check_command` for the rules."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    directory: str = ""
    stdin: bool = False
    timeout: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Exit:
    """How an execution ended; `last_sequence` is that of its last output record, 0 for none."""

    reason: ExitReason
    code: int | None
    signal: int | None
    last_sequence: int
    ended_at: datetime


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


OutputFrame = Execution | OutputRecord | Exit
"""A frame of a watched output: the execution first, then records, then exactly one exit."""
