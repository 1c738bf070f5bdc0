"""A sandbox-worker in memory: sandboxes, and programs that a test lets write and end."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

from chassis.clock import Clock
from chassis.errors import AlreadyExists, FailedPrecondition, NotFound
from chassis.ids import derived_id
from signalling.batch import Batch, BatchOutcome, BatchState
from signalling.execution import (
    Command,
    Execution,
    ExecutionState,
    Exit,
    ExitReason,
    OutputFrame,
    OutputRecord,
    OutputStream,
    TerminalSize,
)
from signalling.file import FileOutcome
from signalling.gateway import Meeting
from signalling.host import Host
from signalling.sandbox import (
    Fence,
    NetworkDecision,
    NetworkMode,
    NetworkPolicy,
    NetworkView,
    Sandbox,
    SandboxOrder,
    SandboxState,
    Wall,
)
from signalling.terminal import (
    TerminalAccepted,
    TerminalFrame,
    TerminalOpening,
    TerminalSnapshot,
    Typed,
)
from tests.fakes.faults import Faults
from tests.fakes.program import Program


class FakeWorker:
    """A sandbox-worker: sandboxes and programs; a program runs until the test ends it."""

    def __init__(self, *, faults: Faults, clock: Clock) -> None:
        self.faults = faults
        self.clock = clock
        self.held: dict[tuple[str, str], Sandbox] = {}
        self.released: set[tuple[str, str]] = set()
        self.bound: dict[str, str] = {}
        self.leases: dict[str, timedelta] = {}
        self.opened: list[tuple[str, int, Meeting]] = []
        self.orders: dict[tuple[str, str], SandboxOrder] = {}
        self.programs: dict[str, Program] = {}
        self.by_key: dict[tuple[str, str], str] = {}
        self.script: Callable[[FakeWorker, str], None] | None = None
        self.cut, self.watching = asyncio.Event(), 0
        self.sizes: list[TerminalSize] = []
        self.decisions: dict[str, list[NetworkDecision]] = {}

    async def create(self, host: Host, *, tenant: str, order: SandboxOrder) -> Sandbox:
        await self.faults.at("sandboxes.create:before")
        if (tenant, order.key) in self.released:
            raise FailedPrecondition("It was given back.", reason="sandbox_released")
        known = self.orders.setdefault((tenant, order.key), order)
        if known != order:
            raise AlreadyExists("The key was used.", reason="idempotency_conflict")
        if (tenant, order.key) in self.held:
            return self.held[tenant, order.key]
        lease = order.lease or timedelta(minutes=30)
        made = Sandbox(
            sandbox_id=derived_id("sbx", host.host_id, tenant, order.key, key=b""),
            state=SandboxState.PROVISIONED,
            isolation=order.isolation or "process",
            limits=order.limits,
            network=order.network or NetworkPolicy(NetworkMode.HOST),
            profile=order.profile or "default",
            walls=(Wall("script", stands=True), Wall("stone", stands=False, reason="a fake")),
            host_id=host.host_id,
            workspace_id=order.workspace_id,
            launch_id=order.launch_id,
            fence=Fence(1, len(self.orders)),
            created_at=self.clock.now(),
            expires_at=self.clock.now() + lease,
        )
        self.held[tenant, order.key] = made
        self.leases[made.sandbox_id] = lease
        await self.faults.at("sandboxes.create:after")
        return made

    async def bind(self, host: Host, *, tenant: str, sandbox_id: str, workspace_id: str) -> Sandbox:
        await self.faults.at("sandboxes.bind:before")
        self._sandbox(sandbox_id)
        self.bound[sandbox_id] = workspace_id
        bound = self._change(sandbox_id, workspace_id=workspace_id)
        await self.faults.at("sandboxes.bind:after")
        return bound

    async def get(self, host: Host, *, tenant: str, sandbox_id: str) -> Sandbox:
        await self.faults.at("sandboxes.get:before")
        for (owner, _), found in self.held.items():
            if (owner, found.sandbox_id, found.host_id) == (tenant, sandbox_id, host.host_id):
                return found
        raise NotFound("There is no such sandbox on this host.", reason="sandbox_not_found")

    async def list(
        self, host: Host, *, tenant: str, size: int, after: str
    ) -> tuple[Sequence[Sandbox], bool]:
        await self.faults.at("sandboxes.list:before")
        found = sorted(
            (
                each
                for (owner, _), each in self.held.items()
                if owner == tenant and each.host_id == host.host_id and each.sandbox_id > after
            ),
            key=lambda each: each.sandbox_id,
        )
        return found[:size], len(found) > size

    async def renew(self, host: Host, *, tenant: str, sandbox_id: str, lease: timedelta) -> Sandbox:
        await self.faults.at("sandboxes.renew:before")
        self._sandbox(sandbox_id)
        self.leases[sandbox_id] = lease
        return self._change(sandbox_id, expires_at=self.clock.now() + lease)

    async def set_network(
        self, host: Host, *, tenant: str, sandbox_id: str, network: NetworkPolicy
    ) -> Sandbox:
        before = await self.get(host, tenant=tenant, sandbox_id=sandbox_id)
        for entry in network.allow:
            decision = NetworkDecision(self.clock.now(), entry, 443, "", "allowed")
            self.decisions.setdefault(before.sandbox_id, []).append(decision)
        return self._change(sandbox_id, network=network)

    async def network(self, host: Host, *, tenant: str, sandbox_id: str) -> NetworkView:
        found = await self.get(host, tenant=tenant, sandbox_id=sandbox_id)
        assert found.network is not None
        return NetworkView(found.network, tuple(self.decisions.get(sandbox_id, ())))

    async def open_port(
        self, host: Host, *, tenant: str, sandbox_id: str, port: int, meeting: Meeting
    ) -> None:
        self._sandbox(sandbox_id)
        self.opened.append((sandbox_id, port, meeting))

    async def release(
        self, host: Host, *, tenant: str, key: str = "", sandbox_id: str = ""
    ) -> bool:
        await self.faults.at("sandboxes.release:before")
        for (owner, made_by), found in self.held.items():
            if sandbox_id and (owner, found.sandbox_id) == (tenant, sandbox_id):
                key = made_by
        self.released.add((tenant, key))
        made = self.held.pop((tenant, key), None)
        if made is not None:
            for execution_id, program in self.programs.items():
                if program.execution.sandbox_id == made.sandbox_id and not program.execution.exit:
                    self.finish(execution_id, reason=ExitReason.RELEASED, code=None)
        await self.faults.at("sandboxes.release:after")
        return made is not None

    async def start(
        self, host: Host, *, tenant: str, key: str, sandbox_id: str, command: Command
    ) -> Execution:
        await self.faults.at("executions.start:before")
        self._sandbox(sandbox_id)
        execution_id = self.by_key.get((sandbox_id, key))
        if execution_id is None:
            execution_id = derived_id("exe", sandbox_id, key, key=b"")
            self.by_key[sandbox_id, key] = execution_id
            self.programs[execution_id] = Program(
                Execution(
                    execution_id,
                    sandbox_id,
                    ExecutionState.RUNNING,
                    command.arguments,
                    self.clock.now(),
                ),
                tenant,
                command,
            )
            if self.script is not None:
                self.script(self, execution_id)
        await self.faults.at("executions.start:after")
        return self.programs[execution_id].execution

    @asynccontextmanager
    async def run(
        self, host: Host, *, tenant: str, key: str, sandbox_id: str, command: Command, after: int
    ) -> AsyncIterator[tuple[Execution, AsyncIterator[OutputFrame]]]:
        cut = self.cut
        execution = await self.start(
            host, tenant=tenant, key=key, sandbox_id=sandbox_id, command=command
        )
        frames = self._watched(execution.execution_id, after, cut)
        await anext(frames)

        async def rest() -> AsyncIterator[OutputFrame]:
            await self.faults.at("executions.run:after")
            async for frame in frames:
                yield frame

        self.watching += 1
        try:
            yield execution, rest()
        finally:
            self.watching -= 1

    async def execution(self, host: Host, *, tenant: str, execution_id: str) -> Execution:
        await self.faults.at("executions.get:before")
        return self._program(execution_id).execution

    async def executions(
        self, host: Host, *, tenant: str, sandbox_id: str, size: int, after: str
    ) -> tuple[Sequence[Execution], str]:
        found = [
            program.execution
            for execution_id, program in sorted(self.programs.items())
            if program.execution.sandbox_id == sandbox_id and execution_id > after
        ]
        size = size or 50
        return found[:size], found[size - 1].execution_id if len(found) > size else ""

    @asynccontextmanager
    async def watch(
        self, host: Host, *, tenant: str, execution_id: str, after: int
    ) -> AsyncIterator[AsyncIterator[OutputFrame]]:
        await self.faults.at("executions.watch:before")
        self.watching += 1
        try:
            yield self._watched(execution_id, after, self.cut)
        finally:
            self.watching -= 1

    async def _watched(
        self, execution_id: str, after: int, cut: asyncio.Event
    ) -> AsyncIterator[OutputFrame]:
        program = self._program(execution_id)
        async for frame in program.frames(after, cut=cut, faults=self.faults):
            yield frame

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
        self._program(execution_id)
        return offset + len(content)

    async def run_batch(
        self, host: Host, *, tenant: str, key: str, sandbox_id: str, batch: Batch
    ) -> Sequence[BatchOutcome]:
        """Start each command, and let what the script says become of it."""
        outcomes: builtins.list[BatchOutcome] = []
        for index, item in enumerate(batch.items):
            if not isinstance(item, Command):
                outcomes.append(BatchOutcome(BatchState.SUCCEEDED, file=FileOutcome()))
                continue
            execution = await self.start(
                host, tenant=tenant, key=f"{key}/{index}", sandbox_id=sandbox_id, command=item
            )
            exit_ = execution.exit
            well = exit_ is not None and exit_.code == 0
            records = self.programs[execution.execution_id].records
            outcomes.append(
                BatchOutcome(
                    BatchState.SUCCEEDED if well else BatchState.FAILED,
                    execution=execution,
                    stdout=b"".join(record.content for record in records),
                )
            )
        return outcomes

    async def signal(self, host: Host, *, tenant: str, execution_id: str, signal: int) -> Execution:
        self.finish(execution_id, reason=ExitReason.SIGNALLED, code=None, signal=signal)
        return self._program(execution_id).execution

    async def resize(
        self, host: Host, *, tenant: str, execution_id: str, size: TerminalSize
    ) -> Execution:
        self.sizes.append(size)
        return self._program(execution_id).execution

    @asynccontextmanager
    async def attach(
        self,
        host: Host,
        *,
        tenant: str,
        execution_id: str,
        opening: TerminalOpening,
        typed: AsyncIterator[Typed],
    ) -> AsyncIterator[AsyncIterator[TerminalFrame]]:
        """Echo what is typed; `exit` ends it."""
        await self.faults.at("executions.attach:before")
        yield self._echoed(execution_id, typed)

    async def _echoed(
        self, execution_id: str, typed: AsyncIterator[Typed]
    ) -> AsyncIterator[TerminalFrame]:
        program = self._program(execution_id)
        yield TerminalSnapshot(program.execution, 0, False)
        async for piece in typed:
            if isinstance(piece, TerminalSize):
                self.sizes.append(piece)
                continue
            self.write(execution_id, piece.content)
            yield program.records[-1]
            yield TerminalAccepted(piece.offset + len(piece.content))
            if piece.content == b"exit":
                self.finish(execution_id)
                if program.execution.exit is not None:
                    yield program.execution.exit
                return

    def cut_streams(self) -> None:
        """Break every open stream."""
        cut, self.cut = self.cut, asyncio.Event()
        cut.set()

    def write(self, execution_id: str, *contents: bytes) -> None:
        """Let a program write."""
        program = self.programs[execution_id]
        for content in contents:
            sequence = program.records[-1].sequence + 1 if program.records else 1
            program.records.append(
                OutputRecord(execution_id, sequence, OutputStream.STDOUT, content, self.clock.now())
            )
        program.announce()

    def finish(
        self,
        execution_id: str,
        *,
        reason: ExitReason = ExitReason.EXITED,
        code: int | None = 0,
        signal: int | None = None,
    ) -> None:
        """Let a program end."""
        program = self.programs[execution_id]
        last = program.records[-1].sequence if program.records else 0
        program.execution = replace(
            program.execution,
            state=ExecutionState.EXITED,
            exit=Exit(reason, code, signal, last, self.clock.now()),
        )
        program.announce()

    def _change(self, sandbox_id: str, **fields: object) -> Sandbox:
        for key, found in self.held.items():
            if found.sandbox_id == sandbox_id:
                self.held[key] = changed = replace(found, **fields)  # type: ignore[arg-type]
                return changed
        raise NotFound("There is no such sandbox.", reason="sandbox_not_found")

    def _sandbox(self, sandbox_id: str) -> None:
        if all(made.sandbox_id != sandbox_id for made in self.held.values()):
            raise NotFound("There is no such sandbox.", reason="sandbox_not_found")

    def _program(self, execution_id: str) -> Program:
        if execution_id not in self.programs:
            raise NotFound("There is no such execution.", reason="execution_not_found")
        return self.programs[execution_id]


class FakeExecutions:
    """The execution side of a fake worker, whose `release` and `create` are the sandbox side."""

    def __init__(self, *, worker: FakeWorker) -> None:
        self.start = worker.start
        self.run = worker.run
        self.get = worker.execution
        self.list = worker.executions
        self.watch = worker.watch
        self.write_stdin = worker.write_stdin
        self.signal = worker.signal
        self.resize = worker.resize
        self.attach = worker.attach
        self.run_batch = worker.run_batch
