"""Starts executions, finds them again by key or id, and keeps them for a while after their end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from datetime import datetime, timedelta

from chassis.clock import Clock
from chassis.ids import derived_id, random_id
from chassis.limits import check_name, check_size
from fairlead_limits import table
from sandbox_worker.attachments import Attachment, TerminalOpening
from sandbox_worker.errors import ArgumentInvalid, SandboxNotFound, WorkerDraining
from sandbox_worker.execution import (
    Command,
    Execution,
    ExitReason,
    OnFull,
    TerminalSize,
)
from sandbox_worker.execution_errors import (
    ExecutionNotFound,
    KeyConflict,
    NotATerminal,
    SandboxFull,
)
from sandbox_worker.held_sandbox import HeldSandbox
from sandbox_worker.owned_tasks import OwnedTasks, outcome
from sandbox_worker.ports import Enclosure, Journals, ProgramOrder, RunSpan, RunSpans
from sandbox_worker.run import Frame, Run
from sandbox_worker.sandbox import Limits
from sandbox_worker.sandboxes import Sandboxes
from sandbox_worker.terminals import MOST_OWNER_BYTES, Terminal

log = logging.getLogger(__name__)


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
        # Those that run or whose exit is not on disk yet, and those that ended, oldest first: what
        # goes round every second does not look at what is merely kept.
        self._unsettled: dict[str, Run] = {}
        self._kept: dict[str, Run] = {}
        self._ended: dict[str, dict[str, Run]] = {}
        self._starting: dict[str, asyncio.Task[Run]] = {}
        self._tasks = OwnedTasks()
        self._draining = False

    async def recover(self) -> None:
        """Take over what earlier lives left: what still ran then ends with reason host_lost."""
        found = await self._journals.recover()
        for kept in sorted(found, key=lambda each: _ended_at(each.execution, self._clock.now())):
            run = Run(execution=kept.execution, journal=kept.journal, clock=self._clock)
            self._runs[kept.execution.execution_id] = run
            if kept.execution.exit is None:
                await run.end(ExitReason.HOST_LOST)
            await self._keep(run)

    async def start(self, *, tenant: str, key: str, sandbox_id: str, command: Command) -> Execution:
        """Start a command, or return the execution that this key already means in this sandbox.

        Raises CommandInvalid, KeyConflict, SandboxNotFound, SandboxFull, StorageUnavailable,
        WorkerDraining and what Enclosure.start raises. A caller that leaves does not stop it.
        """
        command.check()
        if key:
            check_name(table.IDEMPOTENCY_KEY, key)
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
            return (await outcome(starting)).execution
        return _same((await outcome(starting)).execution, command)

    async def run(
        self, *, tenant: str, key: str, sandbox_id: str, command: Command, after: int
    ) -> tuple[Execution, AsyncGenerator[Frame, None]]:
        """Start a command as `start` does, and return it with what `watch` yields of it."""
        _check_after(after)
        execution = await self.start(tenant=tenant, key=key, sandbox_id=sandbox_id, command=command)
        return execution, self.watch(
            tenant=tenant, execution_id=execution.execution_id, after=after
        )

    def get(self, *, tenant: str, execution_id: str) -> Execution:
        """Return an execution; raises ExecutionNotFound."""
        return self._run(tenant, execution_id).execution

    def page(
        self, *, tenant: str, sandbox_id: str, size: int, after: str
    ) -> tuple[list[Execution], str]:
        """Return the executions of a sandbox that are kept, by id, and the token of the next page;
        raises SandboxNotFound where neither the sandbox nor an execution of it is here.
        """
        check_size(table.PAGE_SIZE, size)
        size = size or table.DEFAULT_PAGE
        found = [
            run.execution
            for run in self._runs.values()
            if run.execution.tenant == tenant and run.execution.sandbox_id == sandbox_id
        ]
        if not found:
            self._sandboxes.get(tenant=tenant, sandbox_id=sandbox_id)
        rest = sorted(
            (each for each in found if each.execution_id > after), key=lambda it: it.execution_id
        )
        return rest[:size], rest[size - 1].execution_id if len(rest) > size else ""

    def watch(self, *, tenant: str, execution_id: str, after: int) -> AsyncGenerator[Frame, None]:
        """Yield an execution, its records after `after` and its exit.

        Raises ExecutionNotFound at once, CursorGone on the way.
        """
        _check_after(after)
        return self._run(tenant, execution_id).watch(after)

    async def write_stdin(
        self, *, tenant: str, execution_id: str, offset: int, content: bytes, close: bool
    ) -> int:
        """Write to standard input; raises ExecutionNotFound, StdinClosed, StdinOffsetInvalid, and
        TerminalOwned where somebody is attached to its terminal.
        """
        check_size(table.POSITION, offset)
        check_size(table.STDIN_BYTES, len(content))
        run = self._run(tenant, execution_id)
        writing = run.write_stdin(offset=offset, content=content, close=close)
        return await (writing if run.terminal is None else run.terminal.typed(writing))

    def resize(self, *, tenant: str, execution_id: str, size: TerminalSize) -> Execution:
        """Change a terminal's size; raises ExecutionNotFound, ExecutionEnded, NotATerminal."""
        run = self._run(tenant, execution_id)
        size.check("size")
        run.resize(size)
        return run.execution

    def attach(self, *, tenant: str, execution_id: str, opening: TerminalOpening) -> Attachment:
        """Return a way to type into a terminal; raises ExecutionNotFound, NotATerminal.

        What has ended is shown whatever it ran on: a worker that was started again has no terminal.
        """
        run = self._run(tenant, execution_id)
        _check_after(opening.after)
        if len(opening.owner.encode()) > MOST_OWNER_BYTES:
            raise ArgumentInvalid("owner", f"has at most {MOST_OWNER_BYTES} bytes")
        if opening.size is not None:
            opening.size.check("size")
        if run.terminal is None and not run.has_ended:
            raise NotATerminal(execution_id)
        return Attachment(run=run, opening=opening)

    async def signal(self, *, tenant: str, execution_id: str, number: int) -> Execution:
        """Signal the process group; raises ExecutionNotFound, ExecutionEnded."""
        check_size(table.SIGNAL, number)
        run = self._run(tenant, execution_id)
        await run.signal(number)
        return run.execution

    async def tidy(self) -> None:
        """Remove what has been kept long enough, and get exits on disk that it did not take."""
        await self._journals.tidy()
        oldest = self._clock.now() - self._retention
        for execution_id, run in list(self._unsettled.items()):
            await run.settle()
            if run.is_settled:
                self._unsettled.pop(execution_id, None)
        while self._kept:
            execution_id, run = next(iter(self._kept.items()))
            if _ended_at(run.execution, self._clock.now()) > oldest:
                return
            await self._forget(execution_id, run)

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
            stdin=command.stdin or command.terminal is not None,
            terminal=command.terminal,
        )
        try:
            journal = await self._journals.open(
                execution,
                on_full=command.on_full,
                most_bytes=held.sandbox.limits.output_bytes,
                disk_bytes=held.sandbox.limits.disk_bytes,
            )
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
            stdin=order.stdin,
            terminal=None if command.terminal is None else Terminal(),
            ending=lambda: held.ending_at(self._clock.monotonic()),
        )
        self._runs[execution.execution_id] = run
        self._unsettled[execution.execution_id] = run
        following = self._tasks.start(
            self._follow(run, command, held.sandbox.limits, span),
            name=f"follow {execution.execution_id}",
        )
        held.occupy(following)
        return run

    async def _follow(self, run: Run, command: Command, limits: Limits, span: RunSpan) -> None:
        # Whoever waits for the start is answered first: their task wakes in two turns.
        for _ in range(2):
            await asyncio.sleep(0)
        times = [each for each in (command.timeout, limits.wall_seconds) if each]
        exit_ = await run.follow(
            time_limit=min(times, default=None),
            grace=command.grace,
            blocks=command.on_full is OnFull.BLOCK,
        )
        span.close(exit_)
        if not run.complete:
            log.error("output was not kept", extra={"execution_id": run.execution.execution_id})
        await self._keep(run)

    async def _keep(self, run: Run) -> None:
        """Keep one that has ended, and hold their number in one sandbox down."""
        if run.is_settled:
            self._unsettled.pop(run.execution.execution_id, None)
        else:
            self._unsettled[run.execution.execution_id] = run
        self._kept[run.execution.execution_id] = run
        ended = self._ended.setdefault(run.execution.sandbox_id, {})
        ended[run.execution.execution_id] = run
        while len(ended) > self._most_kept:
            await self._forget(*next(iter(ended.items())))

    async def _forget(self, execution_id: str, run: Run) -> None:
        for runs in (self._runs, self._unsettled, self._kept):
            runs.pop(execution_id, None)
        ended = self._ended.get(run.execution.sandbox_id, {})
        ended.pop(execution_id, None)
        if not ended:
            self._ended.pop(run.execution.sandbox_id, None)
        await run.remove()


def _check_after(after: int) -> None:
    check_size(table.POSITION, after, "after_sequence")


def _ended_at(execution: Execution, now: datetime) -> datetime:
    return now if execution.exit is None else execution.exit.ended_at


def _same(execution: Execution, command: Command) -> Execution:
    """Return what a key means, if it was used for this command."""
    if execution.fingerprint not in ("", command.fingerprint()):
        raise KeyConflict(execution.execution_id)
    return execution
