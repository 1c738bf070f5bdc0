"""What the use cases need from outside: isolation, journals, records, trees and spans."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from sandbox_worker.execution import (
    Execution,
    Exit,
    Gap,
    OnFull,
    OutputRecord,
    Piece,
    ProgramEnd,
    TerminalSize,
)
from sandbox_worker.sandbox import (
    NO_FENCE,
    Fence,
    Hold,
    Limits,
    NetworkMode,
    NetworkPolicy,
    Wall,
)


@dataclass(frozen=True, slots=True)
class Layers:
    """An overlay: the frozen `lower` directories, topmost first, and the workspace's own two."""

    lower: tuple[str, ...]
    upper: str
    work: str


@dataclass(frozen=True, slots=True)
class Tree:
    """A workspace's directory; with layers it is empty until they are mounted there. `stores` are
    the object directories that its git borrows from.
    """

    path: Path
    layers: Layers | None = None
    stores: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProgramOrder:
    """What to start: `environment` comes on top of the enclosure's own variables.

    `directory` is relative to the bound workspace, which must be bound when it is not empty. With
    `terminal` its three streams are a terminal of that size, which is its controlling one.
    """

    execution_id: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    directory: str
    stdin: bool
    terminal: TerminalSize | None = None


class Program(Protocol):
    """A program that was started."""

    async def read(self) -> Sequence[Piece]:
        """Wait for output; return pieces of at most 256 KiB, in the order of each stream.

        Nothing means that the program has ended and what its pipes held then has been read; a
        background process that keeps them open does not delay this.
        """
        ...

    @property
    def end(self) -> ProgramEnd | None:
        """How it ended; None while it runs."""
        ...

    async def ended(self) -> None:
        """Wait until it has ended; its output may still be there to be read."""
        ...

    async def write(self, content: bytes) -> int:
        """Wait for room in standard input and write some of `content`; return how much.

        Raises StdinClosed.
        """
        ...

    def close_stdin(self) -> None:
        """Let the program read end-of-file, which is typed on a terminal; again is harmless."""
        ...

    def resize(self, size: TerminalSize) -> None:
        """Change its terminal's size; raises NotATerminal where it runs on pipes."""
        ...

    async def signal(self, number: int) -> None:
        """Send a signal to its process group; nothing when it has ended."""
        ...

    async def expire(self, number: int) -> None:
        """Signal its group; what is left of the group when the program ends is killed."""
        ...

    def close(self) -> None:
        """Let go of its pipes."""
        ...


@dataclass(frozen=True, slots=True)
class FileAgent:
    """A file agent that waits for its one request on `link`, which is the caller's to close."""

    link: socket.socket
    kill: Callable[[], Awaitable[None]]


class ObjectHost(Protocol):
    """What makes any Python of a sandbox one that holds objects."""

    @property
    def boot(self) -> str:
        """The program that it runs: `python -c` with it."""
        ...

    async def bundle(self) -> bytes:
        """Return what that program reads before anything else."""
        ...


class Enclosure(Protocol):
    """The processes of one sandbox, and their walls."""

    @property
    def limits(self) -> Limits:
        """The limits that this enclosure holds; what it cannot hold is 0."""
        ...

    @property
    def walls(self) -> Sequence[Wall]:
        """The walls around it, by name: those that stand, and those that are missing and why."""
        ...

    @property
    def first_process(self) -> int:
        """The host's number of its first process, above all others; 0 when it is not known."""
        ...

    async def hold(self, fence: Fence, seconds: float) -> None:
        """Let it live for `seconds` more, by the boot-time clock; it ends itself when they are
        over, also when nobody tells it to.

        Raises FenceStale when it has heard of a later holder, and SandboxLost.
        """
        ...

    async def bind(self, workspace: Tree) -> None:
        """Make a workspace the root of working directories; one with layers is mounted first.

        Raises SandboxLost and WorkspaceNotMounted. Again is harmless.
        """
        ...

    async def start(self, order: ProgramOrder) -> Program:
        """Start a program in a session of its own; returns once it runs.

        Raises CommandNotFound, CommandNotExecutable, DirectoryOutside, DirectoryNotFound,
        ProcessesExhausted, SandboxLost, TerminalUnavailable, and WorkspaceNotFound when it was
        given back since.
        """
        ...

    async def connect(self, port: int) -> socket.socket | None:
        """Connect to a TCP port on its loopback interface; None when nothing listens there.

        Raises SandboxLost.
        """
        ...

    async def listen(self) -> socket.socket:
        """Listen on a port of its loopback interface, which is its own, and name that port as the
        proxy to what is started from now on.

        Raises SandboxLost and IsolationFailed.
        """
        ...

    async def files(self) -> FileAgent:
        """Start a file agent inside, for the directory that programs start in.

        Raises SandboxLost and ProcessesExhausted.
        """
        ...

    async def gone(self) -> None:
        """Wait until no process is left, for whatever reason."""
        ...

    async def destroy(self) -> None:
        """Kill every process; returns when none is left. Again is harmless.

        The programs that this kills have neither a code nor a signal as their end.
        """
        ...


class Isolation(Protocol):
    """A way to isolate; each host offers one or more."""

    @property
    def name(self) -> str:
        """One of sandbox.ISOLATIONS."""
        ...

    @property
    def walls(self) -> Sequence[Wall]:
        """The walls that its sandboxes have on this machine, as `Enclosure.walls`."""
        ...

    @property
    def networks(self) -> Sequence[NetworkMode]:
        """The networks that it can give, its default first."""
        ...

    async def enclose(
        self,
        sandbox_id: str,
        limits: Limits,
        network: NetworkPolicy,
        *,
        tenant: str,
        workspace: Tree | None = None,
        hold: Hold | None = None,
    ) -> Enclosure:
        """Make a sandbox's first process and its private directories.

        A `workspace` is bound before this returns, and a `hold` counts from when the process is the
        sandbox's. Sandboxes of two tenants never descend from the
        same process of this worker's making. Raises IsolationFailed and, with a workspace, what
        `Enclosure.bind` raises. Cancelled or failed, it leaves nothing behind.
        """
        ...

    async def tidy(self) -> None:
        """Remove files of ended enclosures that the disk kept at their end."""
        ...

    async def clean(self) -> None:
        """Remove what enclosures of an earlier life of this host left."""
        ...


class JournalReader(Protocol):
    """One watcher's place in a journal."""

    async def read(self) -> Sequence[OutputRecord] | Gap:
        """Return the next records that are there now, or the gap before them; nothing when all
        have been read.

        To ask for the next ones says that those before have left for the watcher. Raises CursorGone
        when records after the reader's first cursor are gone before anything was read.
        """
        ...

    def close(self) -> None:
        """Leave: a program that waits for room waits for this reader no longer."""
        ...


class Journal(Protocol):
    """The output of one execution, on disk, bounded."""

    async def append(
        self, pieces: Sequence[Piece], *, announce: Callable[[], None] = lambda: None
    ) -> None:
        """Number `pieces` and keep them, as far as the bound allows.

        With DROP_OLDEST the oldest records go for them, of other executions too where all together
        hold too much; what the disk does not take even so is lost. Readers see a gap.

        With BLOCK this waits for readers to make room, and for
        the disk: see proto OnFull. `announce` is called whenever there is more to be read.
        """
        ...

    def retry(self) -> None:
        """Let an append that waits look again whether the disk takes it."""
        ...

    def unblock(self) -> None:
        """Never wait again: the program has ended, and what it left is kept above the bound."""
        ...

    async def finish(self, exit_: Exit) -> bool:
        """Keep the terminal record, once; says whether the disk has taken it."""
        ...

    @property
    def last_sequence(self) -> int:
        """Number of the last record; 0 when there is none."""
        ...

    @property
    def complete(self) -> bool:
        """Whether the disk has taken every piece."""
        ...

    def reader(self, after: int) -> JournalReader:
        """Return a reader that begins after record `after`; 0 for all that is kept.

        Raises CursorGone when records after it were dropped.
        """
        ...

    async def remove(self) -> None:
        """Delete it."""
        ...


@dataclass(frozen=True, slots=True)
class KeptExecution:
    """An execution of an earlier life; `exit` of it is None when the worker died under it."""

    execution: Execution
    journal: Journal


class Journals(Protocol):
    """Where journals are kept."""

    async def open(
        self, execution: Execution, *, on_full: OnFull, most_bytes: int, disk_bytes: int
    ) -> Journal:
        """Make the journal of a starting execution; raises StorageUnavailable.

        `most_bytes` bounds it if it is less than the bound of all journals; 0 for that one.
        `disk_bytes` bounds all journals of its sandbox in the same way.
        """
        ...

    async def tidy(self) -> None:
        """Delete the oldest records where all journals together hold too much."""
        ...

    async def recover(self) -> Sequence[KeptExecution]:
        """Return what earlier lives left, with torn tails cut."""
        ...


@dataclass(frozen=True, slots=True)
class SandboxRecord:
    """What is kept on disk about a sandbox; `released_at` makes it a tombstone."""

    sandbox_id: str
    tenant: str
    released_at: datetime | None = None
    fence: Fence = NO_FENCE


class TenantClaim(Protocol):
    """Who may run programs without walls on this host: one tenant."""

    async def claim(self, tenant: str) -> None:
        """Be that tenant; raises HostReserved for another one, and StorageUnavailable."""
        ...


class SandboxRecords(Protocol):
    """Where it is kept that a sandbox exists or was released."""

    async def put(self, record: SandboxRecord) -> None:
        """Write or replace a record; raises StorageUnavailable."""
        ...

    async def remove(self, sandbox_id: str) -> None:
        """Forget a sandbox."""
        ...

    async def all(self) -> Sequence[SandboxRecord]:
        """Return all records; unreadable ones are dropped."""
        ...


class Trees(Protocol):
    """The workspaces of this host."""

    async def find(self, workspace_id: str) -> Tree:
        """Return where a workspace is; raises WorkspaceNotFound."""
        ...


class RunSpan(Protocol):
    """The span of one execution."""

    @property
    def traceparent(self) -> str:
        """Its W3C `traceparent`, for the program's environment; empty when nothing is traced."""
        ...

    def fail(self, error: Exception) -> None:
        """End the span: the program did not start."""
        ...

    def close(self, exit_: Exit) -> None:
        """End the span with how the execution ended."""
        ...


class RunSpans(Protocol):
    """Opens a span per execution."""

    def open(self, *, execution_id: str, sandbox_id: str) -> RunSpan:
        """Open `execution.run` below the caller's span."""
        ...
