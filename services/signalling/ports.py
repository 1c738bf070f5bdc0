"""What the launch use cases need of others. Every call raises FairleadError for what a neighbour or
a store refuses.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol

from signalling.batch import Batch, BatchOutcome
from signalling.execution import Command, Execution, OutputFrame, TerminalSize
from signalling.gateway import Meeting
from signalling.host import Host
from signalling.launch import ControlEvent, Launch
from signalling.launch_record import ExecutionPlace, LaunchRecord
from signalling.object import ObjectsFrame
from signalling.sandbox import NetworkPolicy, NetworkView, Sandbox, SandboxOrder
from signalling.snapshot import Source
from signalling.terminal import TerminalFrame, TerminalOpening, Typed
from signalling.workspace_ports import Workspaces

NO_OUTPUT = 2**62
"""A sequence number that no output reaches."""


class Hosts(Protocol):
    """The hosts that are registered now, from memory."""

    def all(self) -> Sequence[Host]:
        """Return every host whose two halves are registered, by id."""
        ...

    def find(self, host_id: str) -> Host | None:
        """Return one of them."""
        ...


class SnapshotDirectory(Protocol):
    """Which hosts say that they hold a snapshot; a hint, never a truth."""

    async def holders(self, tenant: str, source: Source) -> frozenset[str]:
        """Return the ids of the hosts that hold the wanted commit or the digest."""
        ...


class Sandboxes(Protocol):
    """The sandbox-worker of a host, as far as sandboxes go."""

    async def create(self, host: Host, *, tenant: str, order: SandboxOrder) -> Sandbox:
        """Make a sandbox; the same key gives the same one."""
        ...

    async def bind(self, host: Host, *, tenant: str, sandbox_id: str, workspace_id: str) -> Sandbox:
        """Make a workspace the sandbox's working directory."""
        ...

    async def get(self, host: Host, *, tenant: str, sandbox_id: str) -> Sandbox:
        """Return a sandbox."""
        ...

    async def list(
        self, host: Host, *, tenant: str, size: int, after: str
    ) -> tuple[Sequence[Sandbox], bool]:
        """Return up to `size` sandboxes after an id, by id, and whether there are more."""
        ...

    async def renew(self, host: Host, *, tenant: str, sandbox_id: str, lease: timedelta) -> Sandbox:
        """Move the end of the lease."""
        ...

    async def set_network(
        self, host: Host, *, tenant: str, sandbox_id: str, network: NetworkPolicy
    ) -> Sandbox:
        """Let another network policy hold; connections that it does not allow are cut."""
        ...

    async def network(self, host: Host, *, tenant: str, sandbox_id: str) -> NetworkView:
        """Return the policy in force and the last decisions about connections."""
        ...

    async def open_port(
        self, host: Host, *, tenant: str, sandbox_id: str, port: int, meeting: Meeting
    ) -> None:
        """Have a port or terminal in the sandbox connected, and that brought to a gateway."""
        ...

    async def release(
        self, host: Host, *, tenant: str, key: str = "", sandbox_id: str = ""
    ) -> bool:
        """Give back what `key` made or is making, or a sandbox by its id; answers when no process
        of it is left.
        """
        ...


class SandboxPlaces(Protocol):
    """The sandboxes of tenants, as far as executions care."""

    async def place(self, tenant: str, sandbox_id: str) -> Host:
        """Return the host of a sandbox; raises SandboxNotFound."""
        ...


class WorkspacePlaces(Protocol):
    """The workspaces of tenants, as far as sandboxes care."""

    async def place(self, tenant: str, workspace_id: str) -> str:
        """Return the id of the host of a workspace that can be used; raises WorkspaceNotFound."""
        ...


class Executions(Protocol):
    """The sandbox-worker of a host, as far as executions go."""

    async def start(
        self, host: Host, *, tenant: str, key: str, sandbox_id: str, command: Command
    ) -> Execution:
        """Start a command; the same key in the same sandbox gives the same execution."""
        ...

    def run(
        self, host: Host, *, tenant: str, key: str, sandbox_id: str, command: Command, after: int
    ) -> AbstractAsyncContextManager[tuple[Execution, AsyncIterator[OutputFrame]]]:
        """Start a command as `start` does by entering, with its output as `watch` opens it, without
        the execution at its beginning; leaving the context stops nothing.
        """
        ...

    async def get(self, host: Host, *, tenant: str, execution_id: str) -> Execution:
        """Return an execution."""
        ...

    async def list(
        self, host: Host, *, tenant: str, sandbox_id: str, size: int, after: str
    ) -> tuple[Sequence[Execution], str]:
        """Return a page of the executions of a sandbox, by id, and the token of the next."""
        ...

    def watch(
        self, host: Host, *, tenant: str, execution_id: str, after: int
    ) -> AbstractAsyncContextManager[AsyncIterator[OutputFrame]]:
        """Open the output after a sequence number; leaving the context ends the call.

        After `NO_OUTPUT` there is only the execution and its exit.
        """
        ...

    async def write_stdin(
        self,
        host: Host,
        *,
        tenant: str,
        execution_id: str,
        offset: int,
        content: bytes,
        close: bool,
    ) -> int:
        """Write to standard input at an offset; return how far it has come."""
        ...

    async def signal(self, host: Host, *, tenant: str, execution_id: str, signal: int) -> Execution:
        """Send a signal to the execution's process group."""
        ...

    async def run_batch(
        self, host: Host, *, tenant: str, key: str, sandbox_id: str, batch: Batch
    ) -> Sequence[BatchOutcome]:
        """Run a batch to its end; the same key in the same sandbox means the same batch."""
        ...

    async def resize(
        self, host: Host, *, tenant: str, execution_id: str, size: TerminalSize
    ) -> Execution:
        """Change the size of the execution's terminal."""
        ...

    def attach(
        self,
        host: Host,
        *,
        tenant: str,
        execution_id: str,
        opening: TerminalOpening,
        typed: AsyncIterator[Typed],
    ) -> AbstractAsyncContextManager[AsyncIterator[TerminalFrame]]:
        """Type into the execution's terminal; leaving the context lets go of it."""
        ...


class ObjectHosts(Protocol):
    """The sandbox-worker of a host, as far as objects in sandboxes go."""

    def attach(
        self,
        host: Host,
        *,
        tenant: str,
        sandbox_id: str,
        python: str,
        incoming: AsyncIterator[bytes],
    ) -> AbstractAsyncContextManager[AsyncIterator[ObjectsFrame]]:
        """Start a Python that holds objects, and carry; leaving the context ends it."""
        ...


class Channels(Protocol):
    """The sessions of a launch (signalling's other half implements it)."""

    async def answer(self, tenant: str, launch_id: str, offer: str) -> tuple[str, str]:
        """Have a gateway answer the offer of a launch; return the session's id and the answer.

        The same launch and offer give the same session. The launch may not hold a sandbox yet.
        """
        ...

    async def close_launch(self, launch_id: str) -> None:
        """Close every session of the launch, also one being opened; again changes nothing."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """The neighbours that a launch works with."""

    hosts: Hosts
    workspaces: Workspaces
    sandboxes: Sandboxes
    executions: Executions
    channels: Channels


class Saved(StrEnum):
    """What became of a write."""

    DONE = "done"
    CONFLICT = "conflict"
    MISSING = "missing"


class LaunchStore(Protocol):
    """The records and control events of launches that all replicas share."""

    async def create(self, record: LaunchRecord) -> LaunchRecord | None:
        """Keep a new record; return the one that is already there, if there is."""
        ...

    async def save(self, record: LaunchRecord, events: Sequence[ControlEvent]) -> Saved:
        """Replace version `record.version - 1` and append events, both or neither.

        The same version by the same owner again is no conflict: the answer to the first try may
        have been lost.
        """
        ...

    async def restore(self, record: LaunchRecord, events: Sequence[ControlEvent]) -> None:
        """Write a record and all its events that the store has lost, whatever is there."""
        ...

    async def discard(self, record: LaunchRecord) -> None:
        """Remove a record whose creation was not confirmed and that nobody runs."""
        ...

    async def get(self, tenant: str, launch_id: str) -> LaunchRecord | None:
        """Return a record of this tenant."""
        ...

    async def page(self, tenant: str, size: int, token: str) -> tuple[Sequence[LaunchRecord], str]:
        """Return records, newest first, and the token of the next page; empty on the last."""
        ...

    async def owned(self, owner: str) -> Sequence[LaunchRecord]:
        """Return the records of a replica's launches that are not finished."""
        ...

    async def claim(self, owner: str) -> bool:
        """Leave a replica's mark; say whether it was absent, as it is after the store lost
        everything.
        """
        ...


class EventLog(Protocol):
    """The control events of launches, for those who do not have them in memory."""

    async def after(self, launch_id: str, number: int, *, wait: float) -> Sequence[ControlEvent]:
        """Return the events after a number; waits up to `wait` seconds. Raises CursorGone."""
        ...


class Locations(Protocol):
    """Where sandboxes and executions are, for replicas that did not make them."""

    async def sandbox(self, sandbox_id: str) -> ExecutionPlace | None:
        """Return where a sandbox is."""
        ...

    async def execution(self, execution_id: str) -> ExecutionPlace | None:
        """Return where an execution is."""
        ...

    async def put_execution(self, execution_id: str, place: ExecutionPlace) -> None:
        """Keep where an execution is."""
        ...


@dataclass(frozen=True, slots=True)
class Span:
    """One span of a trace."""

    span_id: str
    parent_span_id: str
    name: str
    service: str
    started_at: datetime
    ended_at: datetime
    failed: bool
    attributes: Mapping[str, str]


class SpanStore(Protocol):
    """Where spans can be read; raises TraceStoreAbsent where there is none."""

    async def spans(self, trace_id: str) -> Sequence[Span]:
        """Return the spans of a trace by start time; none when it is not known."""
        ...


class RunSpan(Protocol):
    """The open span of a launch's run."""

    @property
    def trace_id(self) -> str:
        """Return the trace that the run belongs to; empty without one."""
        ...

    @property
    def traceparent(self) -> str:
        """Return the span (W3C), for what belongs to the launch later; empty without one."""
        ...

    def tell(self, launch: Launch) -> None:
        """Note how far the launch has come."""
        ...


class LaunchSpans(Protocol):
    """Traces launches."""

    def launch(self, tenant: str, launch_id: str) -> AbstractContextManager[RunSpan]:
        """Open the span of a launch's run."""
        ...
