"""Executions and batches on fakes."""

from __future__ import annotations

from pathlib import Path

from sandbox_worker.batches import Batches
from sandbox_worker.execution import Command, Execution, Exit
from sandbox_worker.executions import Executions
from sandbox_worker.held_sandbox import SandboxOrder
from sandbox_worker.network.networks import Networks
from sandbox_worker.ports import KeptExecution
from sandbox_worker.profile import Profile
from sandbox_worker.run import Frame
from sandbox_worker.sandbox import Limits, Sandbox
from sandbox_worker.sandbox_plans import SandboxPlans
from sandbox_worker.sandboxes import Sandboxes
from tests.fakes.clock import FakeClock
from tests.fakes.egress_doors import ListedDoors
from tests.fakes.file_work import ListedFileWork
from tests.fakes.isolation import ScriptedIsolation, ScriptedProgram
from tests.fakes.sandbox_stores import (
    ListedSpans,
    ListedTrees,
    MemoryJournals,
    MemoryRecords,
)


class Bench:
    """Executions on fakes."""

    def __init__(self, *kept: KeptExecution, most_kept: int = 10) -> None:
        self.clock = FakeClock()
        self.isolation = ScriptedIsolation(home=Path("/"))
        self.journals = MemoryJournals(*kept)
        self.spans = ListedSpans()
        self.records = MemoryRecords()
        self.sandboxes = Sandboxes(
            host_id="hst",
            id_key=b"k" * 32,
            epoch=1,
            plans=SandboxPlans(
                isolations={"process": self.isolation}, profiles={"default": Profile()}
            ),
            networks=Networks(doors=ListedDoors()),
            records=self.records,
            trees=ListedTrees(),
            clock=self.clock,
            most=5,
            tombstone_seconds=3600,
        )
        self.executions = Executions(
            sandboxes=self.sandboxes,
            journals=self.journals,
            spans=self.spans,
            clock=self.clock,
            id_key=b"k" * 32,
            most_running=4,
            most_kept=most_kept,
            retention_seconds=60,
        )
        self.files = ListedFileWork()
        self.batches = Batches(
            sandboxes=self.sandboxes,
            executions=self.executions,
            files=self.files,
            id_key=b"k" * 32,
        )

    async def sandbox(self, key: str = "one", *, limits: Limits | None = None) -> Sandbox:
        """Make a sandbox."""
        order = SandboxOrder(limits=limits or Limits())
        return await self.sandboxes.create(tenant="t", key=key, order=order)

    async def start(
        self,
        sandbox: Sandbox,
        *arguments: str,
        key: str = "",
        stdin: bool = False,
        time_limit: float | None = None,
    ) -> Execution:
        """Start a command."""
        return await self.executions.start(
            tenant="t",
            key=key,
            sandbox_id=sandbox.sandbox_id,
            command=Command(arguments=arguments, stdin=stdin, timeout=time_limit),
        )

    async def frames(self, execution: Execution, after: int = 0) -> list[Frame]:
        """Watch one to its end."""
        return [
            frame
            async for frame in self.executions.watch(
                tenant="t", execution_id=execution.execution_id, after=after
            )
        ]

    async def exit_of(self, execution: Execution) -> Exit:
        """Watch one and give its exit."""
        last = (await self.frames(execution))[-1]
        assert isinstance(last, Exit)
        return last

    def program(self, execution: Execution) -> ScriptedProgram:
        """Give the scripted program of one."""
        return self.isolation.enclosures[execution.sandbox_id].programs[execution.execution_id]
