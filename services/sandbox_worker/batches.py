"""Runs batches: one piece of work after the other; the same key means the same batch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Protocol

from chassis.errors import FairleadError, ResourceExhausted
from chassis.ids import derived_id, random_id
from chassis.limits import check_name
from fairlead_limits.table import IDEMPOTENCY_KEY
from sandbox_worker.batch import MOST_FILE_BYTES, TAIL_BYTES, Batch, BatchOutcome, BatchState
from sandbox_worker.execution import (
    Command,
    Execution,
    Exit,
    ExitReason,
    Gap,
    Stream,
)
from sandbox_worker.execution_errors import KeyConflict
from sandbox_worker.file import FileOperation, FileOutcome
from sandbox_worker.owned_tasks import OwnedTasks, outcome
from sandbox_worker.run import Frame
from sandbox_worker.sandboxes import Sandboxes

_MOST_KEPT = 256
_MOST_KEPT_BYTES = 32 * 1024 * 1024

Outcomes = tuple[BatchOutcome, ...]


class BatchFull(ResourceExhausted):
    """The files that a batch reads are too large together."""

    def __init__(self) -> None:
        super().__init__(
            f"The files that a batch reads have more than {MOST_FILE_BYTES} bytes together.",
            reason="batch_full",
            remedy="Read the file by itself.",
        )


class CommandWork(Protocol):
    """Executions, as far as a batch needs them."""

    async def start(self, *, tenant: str, key: str, sandbox_id: str, command: Command) -> Execution:
        """Start a command, once per key."""
        ...

    def watch(self, *, tenant: str, execution_id: str, after: int) -> AsyncGenerator[Frame, None]:
        """Follow it to its exit."""
        ...


class FileWork(Protocol):
    """Files, as far as a batch needs them."""

    async def perform(
        self, *, tenant: str, sandbox_id: str, operation: FileOperation
    ) -> FileOutcome:
        """Do one piece of work on files."""
        ...


@dataclass(frozen=True, slots=True)
class _Held:
    """A batch that runs, or whose outcomes are kept for a caller that asks again."""

    fingerprint: str
    task: asyncio.Task[Outcomes]

    @property
    def size(self) -> int:
        """Bytes that its outcomes hold; none while it runs, or when it failed as a whole."""
        if not self.task.done() or self.task.exception() is not None:
            return 0
        return sum(each.size for each in self.task.result())


class Batches:
    """The batches of this host."""

    def __init__(
        self, *, sandboxes: Sandboxes, executions: CommandWork, files: FileWork, id_key: bytes
    ) -> None:
        self._sandboxes = sandboxes
        self._executions = executions
        self._files = files
        self._id_key = id_key
        self._held: dict[str, _Held] = {}
        self._tasks = OwnedTasks()

    async def run(self, *, tenant: str, key: str, sandbox_id: str, batch: Batch) -> Outcomes:
        """Run a batch to its end, or wait for the end of the one that this key means.

        Raises BatchInvalid, CommandInvalid, KeyConflict, SandboxNotFound. What a single piece of
        work raises is its outcome. A caller that leaves does not stop it.
        """
        batch.check()
        if key:
            check_name(IDEMPOTENCY_KEY, key)
        parts = (tenant, "batch", sandbox_id, key)
        batch_id = derived_id("bat", *parts, key=self._id_key) if key else random_id("bat")
        held = self._held.get(batch_id)
        if held is None:
            self._sandboxes.enter(tenant, sandbox_id)
            work = self._work(tenant, batch_id, sandbox_id, batch)
            held = _Held(batch.fingerprint(), self._tasks.start(work, name=f"batch {batch_id}"))
            self._held[batch_id] = held
            held.task.add_done_callback(lambda _: self._let_go())
        elif held.fingerprint != batch.fingerprint():
            raise KeyConflict(batch_id)
        return await outcome(held.task)

    async def close(self) -> None:
        """Wait for all batches; their sandboxes have been closed before."""
        await self._tasks.settle()

    def _let_go(self) -> None:
        """Hold down what is kept; the oldest goes first."""
        ended = [batch_id for batch_id, held in self._held.items() if held.task.done()]
        size = sum(held.size for held in self._held.values())
        while len(ended) > _MOST_KEPT or (size > _MOST_KEPT_BYTES and len(ended) > 1):
            size -= self._held.pop(ended.pop(0)).size

    async def _work(self, tenant: str, batch_id: str, sandbox_id: str, batch: Batch) -> Outcomes:
        outcomes: list[BatchOutcome] = []
        room, failed = MOST_FILE_BYTES, False
        for index, item in enumerate(batch.items):
            if failed and not batch.continue_on_failure:
                outcomes.append(BatchOutcome(BatchState.SKIPPED))
                continue
            try:
                if isinstance(item, Command):
                    key = f"{batch_id}/{index}"
                    done = await self._run(tenant, key, sandbox_id, item)
                else:
                    done = await self._perform(tenant, sandbox_id, item, room)
                    room -= done.size
            except FairleadError as failure:
                done = BatchOutcome(BatchState.FAILED, failure=failure)
            failed = failed or done.state is BatchState.FAILED
            outcomes.append(done)
        return tuple(outcomes)

    async def _perform(
        self, tenant: str, sandbox_id: str, operation: FileOperation, room: int
    ) -> BatchOutcome:
        file = await self._files.perform(tenant=tenant, sandbox_id=sandbox_id, operation=operation)
        if len(file.content) > room:
            raise BatchFull
        return BatchOutcome(BatchState.SUCCEEDED, file=file)

    async def _run(self, tenant: str, key: str, sandbox_id: str, command: Command) -> BatchOutcome:
        execution = await self._executions.start(
            tenant=tenant, key=key, sandbox_id=sandbox_id, command=command
        )
        # From the beginning: a command that blocks on a full journal needs a reader.
        watch = self._executions.watch(tenant=tenant, execution_id=execution.execution_id, after=0)
        tails, truncated = {stream: bytearray() for stream in Stream}, False
        async with aclosing(watch) as frames:
            async for frame in frames:
                match frame:
                    case Execution():
                        execution = frame
                    case Exit():
                        return _ended(execution, frame, tails, truncated)
                    case Gap():
                        truncated = True
                    case records:
                        for record in records:
                            tail = tails[record.stream]
                            tail += record.content
                            truncated |= len(tail) > TAIL_BYTES
                            del tail[:-TAIL_BYTES]
        raise AssertionError("a watch ends with an exit, or raises")


def _ended(
    execution: Execution, exit_: Exit, tails: dict[Stream, bytearray], truncated: bool
) -> BatchOutcome:
    well = exit_.reason is ExitReason.EXITED and exit_.code == 0
    return BatchOutcome(
        state=BatchState.SUCCEEDED if well else BatchState.FAILED,
        execution=replace(execution, exit=exit_),
        stdout=bytes(tails[Stream.STDOUT]),
        stderr=bytes(tails[Stream.STDERR]),
        truncated=truncated,
    )
