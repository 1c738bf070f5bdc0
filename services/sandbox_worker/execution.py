"""Executions as plain values: commands and their rules, records, and how an execution ended."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum, StrEnum

from chassis.limits import check_name, check_size
from fairlead_limits import table
from sandbox_worker.execution_errors import CommandInvalid

MOST_RECORD_BYTES = 256 * 1024


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


class Stream(IntEnum):
    """Where output was written; the numbers are those of the journal's records."""

    STDOUT = 1
    STDERR = 2


class OnFull(StrEnum):
    """What happens when the output that is kept has reached its bound."""

    DROP_OLDEST = "drop_oldest"
    BLOCK = "block"


@dataclass(frozen=True, slots=True)
class TerminalSize:
    """The size of a terminal in characters."""

    rows: int
    columns: int

    def check(self, field: str) -> None:
        """Raise LimitBroken when the kernel cannot keep it."""
        check_size(table.TERMINAL_CELLS, self.rows, field)
        check_size(table.TERMINAL_CELLS, self.columns, field)


@dataclass(frozen=True, slots=True)
class Command:
    """What to run; `directory` is relative to the workspace, `timeout` and `grace` in seconds.

    `grace` is the time between SIGTERM and SIGKILL when the timeout has passed.
    """

    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    directory: str = ""
    stdin: bool = False
    timeout: float | None = None
    terminal: TerminalSize | None = None
    on_full: OnFull = OnFull.DROP_OLDEST
    grace: float = table.DEFAULT_GRACE_SECONDS

    def fingerprint(self) -> str:
        """Return a text that is the same for the same command only."""
        asked = [
            self.arguments,
            sorted(self.environment.items()),
            self.directory,
            self.stdin,
            self.timeout,
            None if self.terminal is None else [self.terminal.rows, self.terminal.columns],
            self.on_full,
            self.grace,
        ]
        return hashlib.sha256(json.dumps(asked).encode()).hexdigest()

    def check(self) -> None:
        """Raise CommandInvalid or LimitBroken when no host could run this."""
        if not self.arguments or not self.arguments[0]:
            raise CommandInvalid("A command needs at least the name of a program.")
        check_size(table.ARGUMENTS, len(self.arguments))
        check_size(table.ARGUMENT_BYTES, _size(self.arguments))
        for name in self.environment:
            check_name(table.VARIABLE, name)
        pairs = [f"{name}={value}" for name, value in self.environment.items()]
        check_size(table.ENVIRONMENT_BYTES, _size(pairs))
        if any("\0" in text for text in (*self.arguments, *pairs, self.directory)):
            raise CommandInvalid("A command cannot hold a NUL character.")
        check_size(table.DIRECTORY_BYTES, _size([self.directory]) - 1)
        if self.timeout is not None:
            check_size(table.TIMEOUT, self.timeout)
        check_size(table.GRACE, self.grace)
        if self.terminal is not None:
            self.terminal.check("command.terminal")


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes read from a program; `written_at` in nanoseconds since the epoch."""

    stream: Stream
    content: bytes
    written_at: int


@dataclass(frozen=True, slots=True)
class OutputRecord:
    """A piece with its number, from 1 per execution."""

    sequence: int
    stream: Stream
    content: bytes
    written_at: int


@dataclass(frozen=True, slots=True)
class Usage:
    """What a program and the children that it waited for have used: processor time in seconds, and
    the largest resident memory of one of them in bytes (getrusage(2)).
    """

    cpu_seconds: float
    peak_memory_bytes: int


@dataclass(frozen=True, slots=True)
class ProgramEnd:
    """How a program ended: a code, a signal, or neither when nobody could see it end.

    `breach` is the limit of its sandbox that ended it.
    """

    code: int | None = None
    signal: int | None = None
    usage: Usage | None = None
    breach: ExitReason | None = None


@dataclass(frozen=True, slots=True)
class Exit:
    """How an execution ended; exactly one per execution."""

    reason: ExitReason
    last_sequence: int
    ended_at: datetime
    code: int | None = None
    signal: int | None = None
    usage: Usage | None = None


class GapReason(StrEnum):
    """Why records are not there."""

    UNKNOWN = "unknown"
    DROPPED = "dropped"
    """The execution has written more than is kept of one."""

    EVICTED = "evicted"
    """Executions of the sandbox, the tenant or the host have written more than is kept of all, or
    the disk has become short of space.
    """

    DISK_FULL = "disk_full"
    DISK_FAILED = "disk_failed"


@dataclass(frozen=True, slots=True)
class Gap:
    """Records that are not there: deleted, or never on the disk; `size` in bytes of output."""

    first: int
    last: int
    size: int
    reason: GapReason = GapReason.UNKNOWN


@dataclass(frozen=True, slots=True)
class Execution:
    """One command inside a sandbox; `exit` is None while it runs, `fingerprint` that of its
    command.
    """

    execution_id: str
    sandbox_id: str
    tenant: str
    arguments: tuple[str, ...]
    started_at: datetime
    exit: Exit | None = None
    fingerprint: str = ""


def _size(texts: tuple[str, ...] | list[str]) -> int:
    return sum(len(text.encode(errors="surrogatepass")) + 1 for text in texts)
