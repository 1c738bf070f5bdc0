"""Executions as plain values: commands and their rules, records, and how an execution ended."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum, StrEnum

from sandbox_worker.execution_errors import CommandInvalid

MOST_ARGUMENTS = 4096
MOST_ARGUMENT_BYTES = 128 * 1024
MOST_ENVIRONMENT_BYTES = 64 * 1024
MOST_RECORD_BYTES = 256 * 1024
MOST_STDIN_BYTES = 256 * 1024
LONGEST_TIMEOUT_SECONDS = 24 * 3600.0
LONGEST_GRACE_SECONDS = 600.0
DEFAULT_GRACE_SECONDS = 2.0
HIGHEST_SIGNAL = 64
LONGEST_KEY = 256
MOST_TERMINAL_CELLS = 65535


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

    @property
    def is_possible(self) -> bool:
        """Whether the kernel can keep it."""
        return all(1 <= cells <= MOST_TERMINAL_CELLS for cells in (self.rows, self.columns))


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
    grace: float = DEFAULT_GRACE_SECONDS

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
        """Raise CommandInvalid when no host could run this."""
        if not self.arguments or not self.arguments[0]:
            raise CommandInvalid("A command needs at least the name of a program.")
        if len(self.arguments) > MOST_ARGUMENTS or _size(self.arguments) > MOST_ARGUMENT_BYTES:
            raise CommandInvalid(
                f"A command has at most {MOST_ARGUMENTS} arguments and {MOST_ARGUMENT_BYTES} bytes."
            )
        pairs = [f"{name}={value}" for name, value in self.environment.items()]
        if _size(pairs) > MOST_ENVIRONMENT_BYTES:
            raise CommandInvalid(
                f"A command's environment has at most {MOST_ENVIRONMENT_BYTES} bytes."
            )
        if any(not name or "=" in name for name in self.environment):
            raise CommandInvalid("The name of a variable is not empty and holds no '='.")
        if any("\0" in text for text in (*self.arguments, *pairs, self.directory)):
            raise CommandInvalid("A command cannot hold a NUL character.")
        if self.timeout is not None and not 0 < self.timeout <= LONGEST_TIMEOUT_SECONDS:
            raise CommandInvalid("A timeout is longer than 0 s and at most 24 h.")
        if self.terminal is not None and not self.terminal.is_possible:
            raise CommandInvalid(f"A terminal has 1 to {MOST_TERMINAL_CELLS} rows and columns.")
        if not 0 <= self.grace <= LONGEST_GRACE_SECONDS:
            raise CommandInvalid("A grace is not negative and at most 10 min.")


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


@dataclass(frozen=True, slots=True)
class Gap:
    """Records that are not there: dropped, or never on the disk; `size` in bytes of output."""

    first: int
    last: int
    size: int


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
