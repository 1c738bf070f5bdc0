"""A sandbox-worker in memory: sandboxes, and programs that a test lets write and end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from chassis.clock import Clock
from chassis.errors import FailedPrecondition, NotFound, OutOfRange, Unavailable
from chassis.ids import derived_id
from signalling.execution import (
    Command,
    Execution,
    ExecutionState,
    Exit,
    ExitReason,
    OutputFrame,
    OutputRecord,
    OutputStream,
)
from signalling.host import Host
from signalling.snapshot import PortDoor, Sandbox
from tests.fakes.faults import Faults


@dataclass
class Program:
    """One execution of the fake worker."""

    execution: Execution
    tenant: str
    command: Command
    records: list[OutputRecord] = field(default_factory=list)
    dropped: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def announce(self) -> None:
        """Wake whoever watches."""
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()


class FakeWorker:
    """A sandbox-worker: sandboxes and programs; a program runs until the test ends it."""

    def __init__(self, *, faults: Faults, clock: Clock) -> None:
        self.faults = faults
        self.clock = clock
        self.held: dict[tuple[str, str], Sandbox] = {}
        self.released: set[tuple[str, str]] = set()
        self.bound: dict[str, str] = {}
        self.leases: dict[str, timedelta] = {}
        self.programs: dict[str, Program] = {}
        self.by_key: dict[tuple[str, str], str] = {}
        self.script: Callable[[FakeWorker, str], None] | None = None
        self.cut = asyncio.Event()
        self.watching = 0

    async def create(
        self, host: Host, *, tenant: str, key: str, isolation: str, lease: timedelta
    ) -> Sandbox:
        await self.faults.at("sandboxes.create:before")
        if (tenant, key) in self.released:
            raise FailedPrecondition("It was given back.", reason="sandbox_released")
        made = Sandbox(derived_id("sbx", tenant, key, key=b""), isolation or "process")
        self.held[tenant, key] = made
        self.leases[made.sandbox_id] = lease
        await self.faults.at("sandboxes.create:after")
        return made

    async def bind(self, host: Host, *, tenant: str, sandbox_id: str, workspace_id: str) -> None:
        await self.faults.at("sandboxes.bind:before")
        self._sandbox(sandbox_id)
        self.bound[sandbox_id] = workspace_id
        await self.faults.at("sandboxes.bind:after")

    async def renew(
        self, host: Host, *, tenant: str, sandbox_id: str, lease: timedelta
    ) -> datetime:
        await self.faults.at("sandboxes.renew:before")
        self._sandbox(sandbox_id)
        self.leases[sandbox_id] = lease
        return self.clock.now() + lease

    async def open_port(self, host: Host, *, tenant: str, sandbox_id: str, port: int) -> PortDoor:
        self._sandbox(sandbox_id)
        return PortDoor(f"unix:/door-{port}", b"t" * 32)

    async def release(self, host: Host, *, tenant: str, key: str) -> bool:
        await self.faults.at("sandboxes.release:before")
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

    async def get(self, host: Host, *, tenant: str, execution_id: str) -> Execution:
        await self.faults.at("executions.get:before")
        return self._program(execution_id).execution

    @asynccontextmanager
    async def watch(
        self, host: Host, *, tenant: str, execution_id: str, after: int
    ) -> AsyncIterator[AsyncIterator[OutputFrame]]:
        await self.faults.at("executions.watch:before")
        self.watching += 1
        try:
            yield self._frames(execution_id, after, self.cut)
        finally:
            self.watching -= 1

    async def _frames(
        self, execution_id: str, after: int, cut: asyncio.Event
    ) -> AsyncIterator[OutputFrame]:
        program = self._program(execution_id)
        yield program.execution
        if 0 < after < program.dropped:
            raise OutOfRange("It was dropped.", reason="cursor_gone")
        while True:
            changed, exit_ = program.changed, program.execution.exit
            ahead = [record for record in program.records if record.sequence > after]
            for record in ahead:
                await self.faults.at("executions.watch:record")
                yield record
                after = record.sequence
            if ahead:
                continue
            if exit_ is not None:
                yield exit_
                return
            waits = [asyncio.ensure_future(changed.wait()), asyncio.ensure_future(cut.wait())]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
            if cut.is_set():
                raise Unavailable("The stream broke.", reason="sandbox_worker_unavailable")

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

    async def signal(self, host: Host, *, tenant: str, execution_id: str, signal: int) -> Execution:
        self.finish(execution_id, reason=ExitReason.SIGNALLED, code=None, signal=signal)
        return self._program(execution_id).execution

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

    def _sandbox(self, sandbox_id: str) -> None:
        if all(made.sandbox_id != sandbox_id for made in self.held.values()):
            raise NotFound("There is no such sandbox.", reason="sandbox_not_found")

    def _program(self, execution_id: str) -> Program:
        program = self.programs.get(execution_id)
        if program is None:
            raise NotFound("There is no such execution.", reason="execution_not_found")
        return program


class FakeExecutions:
    """The execution side of a fake worker, whose `release` and `create` are the sandbox side."""

    def __init__(self, *, worker: FakeWorker) -> None:
        self.start = worker.start
        self.get = worker.get
        self.watch = worker.watch
        self.write_stdin = worker.write_stdin
        self.signal = worker.signal
