"""Small honest use cases behind the REST routes: launches, executions, uploads, all in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import timedelta

from chassis.errors import FairleadError
from chassis.ids import derived_id
from chassis.limits import check_size
from fairlead_limits.table import PAGE_SIZE
from signalling.batch import Batch, BatchFailure, BatchOutcome, BatchState
from signalling.execution import (
    Command,
    Execution,
    ExecutionState,
    Exit,
    ExitReason,
    OutputFrame,
    OutputGap,
    OutputRecord,
    OutputStream,
)
from signalling.file import FileOutcome, ReadFile
from signalling.file_ports import SandboxFiles
from signalling.gateway import Gateway
from signalling.host import Host
from signalling.launch import (
    CancelReason,
    Failure,
    Launch,
    LaunchCancelled,
    LaunchEvent,
    LaunchExited,
    LaunchFailed,
    LaunchProvisioned,
    LaunchSnapshot,
    OfferAnswered,
    SnapshotMissed,
    Step,
    StepChanged,
    StepState,
)
from signalling.launch_errors import (
    CursorGone,
    CursorInvalid,
    ExecutionNotFound,
    IdempotencyConflict,
    LaunchNotFound,
    LaunchNotHeld,
    SandboxNotFound,
    TraceStoreAbsent,
    UploadTokenInvalid,
)
from signalling.launch_request import (
    LaunchRequest,
    check_command,
    check_key,
    check_lease,
    check_request,
)
from signalling.ports import Span
from signalling.snapshot import Freshness, MissReason, Snapshot, Tip
from signalling.workspace import Imported, Workspace
from tests.fakes.clock import START
from tests.fakes.sessions import ANSWER, held_launch

EXIT = Exit(ExitReason.EXITED, code=0, signal=None, last_sequence=2, ended_at=START)
RECORDS = tuple(
    OutputRecord("exe_" + "a" * 26, number, OutputStream.STDOUT, content, START)
    for number, content in ((1, b"hello\n"), (2, b"\x00\xff"))
)
SANDBOX = "sbx_" + "a" * 26
UPLOAD_TOKEN = "token"


class FakeLaunches:
    """Launches that run at once; `raising` is raised by every call when it is set."""

    def __init__(self) -> None:
        self._launches: dict[tuple[str, str], tuple[str, Launch]] = {}
        self.raising: Exception | None = None
        self.endless = False
        self.watching = 0

    async def start(self, tenant: str, request: LaunchRequest, key: str | None) -> Launch:
        self._may_raise()
        check_request(request)
        if key is not None:
            check_key(key)
        launch_id = derived_id("lch", tenant, key or str(len(self._launches)), key=b"")
        found = self._launches.get((tenant, launch_id))
        if found is not None:
            if found[0] != request.fingerprint():
                raise IdempotencyConflict(launch_id)
            return found[1]
        command = request.command
        launch = replace(
            held_launch(launch_id),
            project=request.source.project if request.source else "",
            commit=request.source.commit if request.source else "",
            branch=request.workspace_branch,
            arguments=command.arguments if command else (),
        )
        self._launches[tenant, launch_id] = (request.fingerprint(), launch)
        return launch

    async def watch(
        self, tenant: str, launch_id: str, cursor: str | None
    ) -> AsyncIterator[LaunchEvent]:
        self._may_raise()
        launch = await self.get(tenant, launch_id)
        if cursor == "gone":
            raise CursorGone
        after = 0
        if cursor is not None:
            if not (cursor.isascii() and cursor.isdecimal() and len(cursor) < 10):
                raise CursorInvalid
            after = int(cursor)
        self.watching += 1
        try:
            yield LaunchEvent(cursor=str(after), occurred_at=START, event=LaunchSnapshot(launch))
            for number, happening in enumerate(every_happening(launch), start=1):
                if number > after:
                    yield LaunchEvent(str(number), START, happening)
            if self.endless:
                await asyncio.Event().wait()
            yield LaunchEvent("99", START, LaunchExited(EXIT, changed_files=1, discarded=True))
        finally:
            self.watching -= 1

    async def get(self, tenant: str, launch_id: str) -> Launch:
        self._may_raise()
        found = self._launches.get((tenant, launch_id))
        if found is None:
            raise LaunchNotFound(launch_id)
        return found[1]

    async def list(
        self, tenant: str, page_size: int, page_token: str
    ) -> tuple[Sequence[Launch], str]:
        self._may_raise()
        check_size(PAGE_SIZE, page_size)
        found = [launch for (owner, _), (_, launch) in self._launches.items() if owner == tenant]
        return found[: page_size or 50], ""

    async def cancel(self, tenant: str, launch_id: str) -> Launch:
        return await self.get(tenant, launch_id)

    async def renew(self, tenant: str, launch_id: str, lease: timedelta | None) -> Launch:
        launch = await self.get(tenant, launch_id)
        if lease is not None:
            check_lease(lease)
        if not launch.held:
            raise LaunchNotHeld(launch_id)
        return launch

    async def trace(self, tenant: str, launch_id: str) -> tuple[str, Sequence[Span]]:
        launch = await self.get(tenant, launch_id)
        if launch.keep:
            raise TraceStoreAbsent
        span = Span("1" * 16, "", "launch.run", "signalling", START, START, False, {"a": "b"})
        return launch.trace_id, [span]

    def _may_raise(self) -> None:
        if self.raising is not None:
            raise self.raising


def every_happening(
    launch: Launch,
) -> Sequence[
    StepChanged
    | SnapshotMissed
    | OfferAnswered
    | OutputRecord
    | LaunchProvisioned
    | LaunchFailed
    | LaunchCancelled
]:
    """Return one event of each kind that a stream may hold."""
    failure = Failure(Step.SANDBOX, "host_full", "The host is full.", "Wait.")
    return (
        StepChanged(Step.WORKSPACE, StepState.STARTED),
        StepChanged(
            Step.WORKSPACE,
            StepState.DONE,
            elapsed=0.25,
            detail="checkout",
            freshness=Freshness("main", START, fallback=True, reason="origin_timeout"),
            lfs_pointers=2,
            tags_left_out=True,
        ),
        StepChanged(Step.SANDBOX, StepState.FAILED, elapsed=0.5, failure=failure),
        SnapshotMissed(MissReason.UNKNOWN_COMMIT, ("0" * 40,), (), UPLOAD_TOKEN, START),
        OfferAnswered("ses_" + "a" * 26, ANSWER),
        LaunchProvisioned(launch),
        *RECORDS,
        LaunchFailed(failure),
        LaunchCancelled(CancelReason.LEASE_EXPIRED),
    )


class FakeExecutions:
    """Executions in one sandbox; each has the same output."""

    def __init__(self) -> None:
        self._executions: dict[tuple[str, str], Execution] = {}
        self.stdin = b""
        self.signals: list[int] = []
        self.gap: OutputGap | None = None

    async def start(
        self, tenant: str, sandbox_id: str, command: Command, key: str | None
    ) -> Execution:
        if sandbox_id != SANDBOX:
            raise SandboxNotFound(sandbox_id)
        check_command(command)
        if key is not None:
            check_key(key)
        execution_id = derived_id("exe", tenant, key or str(len(self._executions)), key=b"")
        execution = Execution(
            execution_id, sandbox_id, ExecutionState.EXITED, command.arguments, START, EXIT
        )
        return self._executions.setdefault((tenant, execution_id), execution)

    async def get(self, tenant: str, execution_id: str) -> Execution:
        found = self._executions.get((tenant, execution_id))
        if found is None:
            raise ExecutionNotFound(execution_id)
        return found

    async def list(
        self, tenant: str, sandbox_id: str, page_size: int, page_token: str
    ) -> tuple[Sequence[Execution], str]:
        check_size(PAGE_SIZE, page_size)
        if sandbox_id != SANDBOX:
            raise SandboxNotFound(sandbox_id)
        found = [each for (owner, _), each in self._executions.items() if owner == tenant]
        rest = sorted(
            (each for each in found if each.execution_id > page_token),
            key=lambda each: each.execution_id,
        )
        size = page_size or 50
        return rest[:size], rest[size - 1].execution_id if len(rest) > size else ""

    async def watch(self, tenant: str, execution_id: str, after: int) -> AsyncIterator[OutputFrame]:
        yield await self.get(tenant, execution_id)
        for record in RECORDS:
            if record.sequence > after:
                yield record
        if self.gap is not None and self.gap.last_sequence > after:
            yield self.gap
        yield EXIT

    async def write_stdin(
        self, tenant: str, execution_id: str, offset: int, content: bytes, close: bool
    ) -> int:
        await self.get(tenant, execution_id)
        self.stdin += content
        return len(self.stdin)

    async def run_batch(
        self, tenant: str, sandbox_id: str, batch: Batch, key: str | None
    ) -> Sequence[BatchOutcome]:
        """Start each command; a file operation reads its own path."""
        batch.check()
        outcomes = []
        for item in batch.items:
            if isinstance(item, Command):
                execution = await self.start(tenant, sandbox_id, item, key)
                done = BatchOutcome(BatchState.SUCCEEDED, execution=execution, stdout=b"\x00")
            elif isinstance(item, ReadFile):
                done = BatchOutcome(BatchState.SUCCEEDED, file=FileOutcome(content=item.path))
            else:
                failure = BatchFailure("file_not_found", "There is no such file.", "Look again.")
                done = BatchOutcome(BatchState.FAILED, failure=failure)
            outcomes.append(done)
        return outcomes

    async def signal(self, tenant: str, execution_id: str, signal: int) -> Execution:
        found = await self.get(tenant, execution_id)
        await asyncio.sleep(0)  # lets a second request in while the first is at work
        self.signals.append(signal)
        return found


class FakeUploads:
    """Takes the upload of one token and remembers what came."""

    def __init__(self) -> None:
        self.received = b""
        self.tips: tuple[Tip, ...] = ()
        self.tips_only = False
        self.made: Workspace | None = None

    async def accept(
        self,
        tenant: str,
        token: str,
        tips: tuple[Tip, ...],
        chunks: AsyncIterator[bytes],
        *,
        tips_only: bool = False,
    ) -> Imported:
        if token != UPLOAD_TOKEN:
            raise UploadTokenInvalid
        self.tips, self.tips_only = tips, tips_only
        self.received = b"".join([chunk async for chunk in chunks])
        snapshot = Snapshot(
            snapshot_id="snp_" + "a" * 26,
            project="project",
            host_id="hst_" + "a" * 26,
            digest="",
            tips=tips,
            created_at=START,
            received_bytes=len(self.received),
        )
        return Imported(snapshot, self.made)


class FakeMesh:
    """One host and one gateway."""

    def all(self) -> Sequence[Host]:
        return [Host("hst_" + "a" * 26, "unix:/w", "unix:/s", ("process",), 1, 8)]

    async def gateways(self) -> Sequence[Gateway]:
        return [Gateway("gtw_" + "a" * 26, START, capacity=10, sessions=1, channels=2)]


class NoFiles:
    """No sandbox has files."""

    async def of(self, tenant: str, sandbox_id: str) -> SandboxFiles:
        raise SandboxNotFound(sandbox_id)


class FakeCheck:
    """A readiness check that a test makes fail."""

    def __init__(self) -> None:
        self.raising: FairleadError | None = None

    async def __call__(self) -> None:
        if self.raising is not None:
            raise self.raising
