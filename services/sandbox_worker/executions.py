"""Starts executions, finds them again by key or id, and keeps them for a while after their end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from datetime import timedelta

from chassis.clock import Clock
from chassis.ids import derived_id, random_id
from sandbox_worker.errors import ArgumentInvalid, SandboxNotFound, WorkerDraining
from sandbox_worker.execution import (
    HIGHEST_SIGNAL,
    MOST_STDIN_BYTES,
    Command,
    Execution,
    ExitReason,
)
from sandbox_worker.execution_errors import ExecutionNotFound, KeyConflict, SandboxFull
from sandbox_worker.held_sandbox import HeldSandbox
from sandbox_worker.owned_tasks import OwnedTasks, outcome
from sandbox_worker.ports import Enclosure, Journals, ProgramOrder, RunSpan, RunSpans
from sandbox_worker.run import Frame, Run
from sandbox_worker.sandboxes import Sandboxes

log = logging.getLogger(__name__)

_LONGEST_KEY = 256


class Executions:
    """The executions of this host, running and kept."""

    def __init__(
        self,
        *,
        sandboxes: Sandboxes,
        journals: Journals,
        spans: RunSpans,
        clock: Clock,
        id_key: bytes,
        most_running: int,
        most_kept: int,
        retention_seconds: float,
    ) -> None:
        self._sandboxes = sandboxes
        self._journals = journals
        self._spans = spans
        self._clock = clock
        self._id_key = id_key
        self._most_running = most_running
        self._most_kept = most_kept
        self._retention = timedelta(seconds=retention_seconds)
        self._runs: dict[str, Run] = {}
        self._starting: dict[str, asyncio.Task[Run]] = {}
        self._tasks = OwnedTasks()
        self._draining = False

    async def recover(self) -> None:
        """Take over what earlier lives left: what still ran then ends with reason host_lost."""
        for kept in await self._journals.recover():
            run = Run(execution=kept.execution, journal=kept.journal, clock=self._clock)
            self._runs[kept.execution.execution_id] = run
            if kept.execution.exit is None:
                await run.end(ExitReason.HOST_LOST)

    async def start(self, *, tenant: str, key: str, sandbox_id: str, command: Command) -> Execution:
        """Start a command, or return the execution that this key already means in this sandbox.

        Raises CommandInvalid, KeyConflict, SandboxNotFound, SandboxFull, StorageUnavailable,
        WorkerDraining and what Enclosure.start raises. A caller that leaves does not stop it.
        """
        command.check()
        if len(key) > _LONGEST_KEY:
            raise ArgumentInvalid("idempotency_key", f"has at most {_LONGEST_KEY} characters")
        execution_id = (
            derived_id("exe", tenant, "execution", sandbox_id, key, key=self._id_key)
            if key
            else random_id("exe")
        )
        if execution_id in self._runs:
            return _same(self._run(tenant, execution_id).execution, command)
        starting = self._starting.get(execution_id)
        if starting is None:
            starting = self._begin(tenant, execution_id, sandbox_id, command)
        return _same((await outcome(starting)).execution, command)

    def get(self, *, tenant: str, execution_id: str) -> Execution:
        """Return an execution; raises ExecutionNotFound."""
        return self._run(tenant, execution_id).execution

    def watch(self, *, tenant: str, execution_id: str, after: int) -> AsyncGenerator[Frame, None]:
        """Yield an execution, its records after `after` and its exit.

        Raises ExecutionNotFound at once, CursorGone on the way.
        """
        if after < 0:
            raise ArgumentInvalid("after_sequence", "is not negative")
        return self._run(tenant, execution_id).watch(after)

    async def write_stdin(
        self, *, tenant: str, execution_id: str, offset: int, content: bytes, close: bool
    ) -> int:
        """Write to standard input; raises ExecutionNotFound, StdinClosed, StdinOffsetInvalid."""
        if offset < 0:
            raise ArgumentInvalid("offset", "is not negative")
        if len(content) > MOST_STDIN_BYTES:
            raise ArgumentInvalid("content", f"has at most {MOST_STDIN_BYTES} bytes")
        run = self._run(tenant, execution_id)
        return await run.write_stdin(offset=offset, content=content, close=close)

    async def signal(self, *, tenant: str, execution_id: str, number: int) -> Execution:
        """Signal the process group; raises ExecutionNotFound, ExecutionEnded."""
        if not 1 <= number <= HIGHEST_SIGNAL:
            raise ArgumentInvalid("signal", f"is from 1 to {HIGHEST_SIGNAL}")
        run = self._run(tenant, execution_id)
        await run.signal(number)
        return run.execution

    async def tidy(self) -> None:
        """Remove what has been kept long enough, and get exits on disk that it did not take."""
        oldest = self._clock.now() - self._retention
        for execution_id, run in list(self._runs.items()):
            exit_ = run.execution.exit
            if exit_ is not None and exit_.ended_at <= oldest:
                await self._forget(execution_id, run)
            else:
                await run.settle()

    async def drain(self) -> None:
        """Start nothing more, and wait for what runs."""
        self._draining = True
        await self._tasks.settle()

    async def close(self) -> None:
        """Wait for all executions; their sandboxes have been closed before."""
        self._draining = True
        await self._tasks.settle()

    def _run(self, tenant: str, execution_id: str) -> Run:
        run = self._runs.get(execution_id)
        if run is None or run.execution.tenant != tenant:
            raise ExecutionNotFound(execution_id)
        return run

    def _begin(
        self, tenant: str, execution_id: str, sandbox_id: str, command: Command
    ) -> asyncio.Task[Run]:
        held, enclosure = self._sandboxes.enter(tenant, sandbox_id)
        if self._draining:
            raise WorkerDraining
        if len(held.occupants) >= self._most_running:
            raise SandboxFull(self._most_running)
        execution = Execution(
            execution_id=execution_id,
            sandbox_id=sandbox_id,
            tenant=tenant,
            arguments=command.arguments,
            started_at=self._clock.now(),
            fingerprint=command.fingerprint(),
        )
        span = self._spans.open(execution_id=execution_id, sandbox_id=sandbox_id)
        starting = self._tasks.start(
            self._start(held, enclosure, execution, command, span), name=f"start {execution_id}"
        )
        self._starting[execution_id] = starting
        starting.add_done_callback(lambda _: self._starting.pop(execution_id, None))
        held.occupy(starting)
        return starting

    async def _start(
        self,
        held: HeldSandbox,
        enclosure: Enclosure,
        execution: Execution,
        command: Command,
        span: RunSpan,
    ) -> Run:
        trace = {"TRACEPARENT": span.traceparent} if span.traceparent else {}
        order = ProgramOrder(
            execution_id=execution.execution_id,
            arguments=command.arguments,
            environment={**trace, **command.environment},
            directory=command.directory,
            stdin=command.stdin,
        )
        try:
            journal = await self._journals.open(execution)
            try:
                program = await enclosure.start(order)
            except BaseException:
                await journal.remove()
                raise
        except Exception as error:
            span.fail(error)
            if held.ending is not None:
                raise SandboxNotFound(execution.sandbox_id) from error
            raise
        run = Run(
            execution=execution,
            journal=journal,
            clock=self._clock,
            program=program,
            stdin=command.stdin,
            ending=lambda: held.ending,
        )
        self._runs[execution.execution_id] = run
        following = self._tasks.start(
            self._follow(run, command, span), name=f"follow {execution.execution_id}"
        )
        held.occupy(following)
        return run

    async def _follow(self, run: Run, command: Command, span: RunSpan) -> None:
        exit_ = await run.follow(time_limit=command.timeout)
        span.close(exit_)
        if not run.complete:
            log.error("output was not kept", extra={"execution_id": run.execution.execution_id})
        await self._forget_oldest(run.execution.sandbox_id)

    async def _forget_oldest(self, sandbox_id: str) -> None:
        """Hold the number of kept executions of one sandbox down."""
        ended = [
            (execution_id, run)
            for execution_id, run in self._runs.items()
            if run.execution.sandbox_id == sandbox_id and run.execution.exit is not None
        ]
        for execution_id, run in ended[: max(0, len(ended) - self._most_kept)]:
            await self._forget(execution_id, run)

    async def _forget(self, execution_id: str, run: Run) -> None:
        self._runs.pop(execution_id, None)
        await run.remove()


def _same(execution: Execution, command: Command) -> Execution:
    """Return what a key means, if it was used for this command."""
    if execution.fingerprint not in ("", command.fingerprint()):
        raise KeyConflict(execution.execution_id)
    return execution
