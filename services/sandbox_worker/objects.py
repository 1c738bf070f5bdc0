"""Carries between clients and Pythons in sandboxes that hold objects for them.

What the two say is nobody's business here: bytes go through as they come, whatever is there in one
message. Who reads slowly holds up the other side alone, by full pipes.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from chassis.clock import Clock
from chassis.ids import random_id
from sandbox_worker.errors import ArgumentInvalid, SandboxLost, SandboxNotFound, WorkerDraining
from sandbox_worker.execution import ExitReason, ProgramEnd, Stream
from sandbox_worker.execution_errors import StdinClosed
from sandbox_worker.held_sandbox import HeldSandbox
from sandbox_worker.object_errors import ObjectsBusy, ObjectsFrameInvalid
from sandbox_worker.owned_tasks import OwnedTasks, outcome
from sandbox_worker.ports import Enclosure, ObjectHost, Program, ProgramOrder
from sandbox_worker.run import exit_reason

LARGEST_CONTENT_BYTES = 1024 * 1024
_MOST = 16
_LONGEST_NAME = 4096
_ERROR_BYTES = 4096
_GRACE_SECONDS = 2.0
"""What a Python has to end by itself once its client has nothing more to say."""


class Sandboxes(Protocol):
    """The sandboxes of this host, as far as objects go."""

    def enter(self, tenant: str, sandbox_id: str) -> tuple[HeldSandbox, Enclosure]:
        """Return a sandbox that can be used; raises SandboxNotFound."""
        ...


@dataclass(frozen=True, slots=True)
class ObjectsOpened:
    """The Python runs."""


@dataclass(frozen=True, slots=True)
class ObjectsEnded:
    """How it ended; `errors` is the end of what it wrote to standard error."""

    reason: ExitReason
    code: int | None
    signal: int | None
    errors: bytes


ObjectsFrame = ObjectsOpened | bytes | ObjectsEnded


class Objects:
    """The Pythons of this host's sandboxes that hold objects."""

    def __init__(self, *, sandboxes: Sandboxes, host: ObjectHost, clock: Clock) -> None:
        self._sandboxes = sandboxes
        self._host = host
        self._clock = clock
        self._tasks = OwnedTasks()
        self._counts: Counter[str] = Counter()
        self._is_draining = False

    def drain(self) -> None:
        """Start no more."""
        self._is_draining = True

    async def close(self) -> None:
        """Wait until all have ended, which those of released sandboxes do."""
        await self._tasks.settle()

    async def attach(
        self, *, tenant: str, sandbox_id: str, python: str, incoming: AsyncIterator[bytes]
    ) -> AsyncGenerator[ObjectsFrame, None]:
        """Start a Python and yield `ObjectsOpened`, what it says, and how it ended. Closed before,
        it leaves no process.

        Raises SandboxNotFound, ObjectsBusy, WorkerDraining, what `Enclosure.start` raises and what
        `incoming` raises; content of more than 1 MiB is ObjectsFrameInvalid.
        """
        if len(python) > _LONGEST_NAME or "\0" in python:
            raise ArgumentInvalid("python", f"has at most {_LONGEST_NAME} characters, and no NUL")
        held, _ = self._sandboxes.enter(tenant, sandbox_id)
        if self._is_draining:
            raise WorkerDraining
        if self._counts[sandbox_id] >= _MOST:
            raise ObjectsBusy(_MOST)
        self._counts[sandbox_id] += 1
        try:
            program = await self._started(held, tenant, python or "python3")
            try:
                yield ObjectsOpened()
                async for frame in self._carried(held, program, incoming):
                    yield frame
            finally:
                ending = self._tasks.start(_finish(program), name=f"end objects of {sandbox_id}")
                held.occupy(ending)
                await outcome(ending)
        finally:
            self._counts[sandbox_id] -= 1
            self._counts += Counter()

    async def _started(self, held: HeldSandbox, tenant: str, python: str) -> Program:
        """Start one; a caller that leaves meanwhile leaves none behind."""
        starting = self._tasks.start(
            self._start(tenant, held.sandbox.sandbox_id, python), name="start objects"
        )
        held.occupy(starting)
        try:
            return await outcome(starting)
        except asyncio.CancelledError:
            held.occupy(self._tasks.start(_undo(starting), name="undo objects"))
            raise

    async def _start(self, tenant: str, sandbox_id: str, python: str) -> Program:
        # Made before it is needed, which takes a second once.
        await self._host.bundle()
        _, enclosure = self._sandboxes.enter(tenant, sandbox_id)
        order = ProgramOrder(
            execution_id=random_id("obj"),
            arguments=(python, "-c", self._host.boot),
            environment={},
            directory="",
            stdin=True,
        )
        try:
            program = await enclosure.start(order)
        except SandboxLost:
            raise SandboxNotFound(sandbox_id) from None
        # What it leaves in its process group ends with it.
        await program.expire(0)
        return program

    async def _carried(
        self, held: HeldSandbox, program: Program, incoming: AsyncIterator[bytes]
    ) -> AsyncGenerator[ObjectsFrame, None]:
        limit = held.sandbox.limits.wall_seconds
        expiring = asyncio.create_task(_expire(program, limit or None), name="time of objects")
        faults: list[Exception] = []
        feeding = asyncio.create_task(self._feed(program, incoming, faults), name="feed objects")
        errors = b""
        try:
            while pieces := await program.read():
                said = [each.content for each in pieces if each.stream is Stream.STDOUT]
                told = [each.content for each in pieces if each.stream is Stream.STDERR]
                errors = b"".join((errors, *told))[-_ERROR_BYTES:]
                if said:
                    yield b"".join(said)
        finally:
            for task in (expiring, feeding):
                task.cancel()
            found = await asyncio.gather(feeding, expiring, return_exceptions=True)
        if faults:
            raise faults[0]
        end = program.end or ProgramEnd()
        reason = exit_reason(
            end,
            expired=found[1] is None,
            ending=held.ending_at(self._clock.monotonic()),
        )
        seen = reason not in (ExitReason.TIMED_OUT, ExitReason.RELEASED)
        yield ObjectsEnded(reason, end.code if seen else None, end.signal if seen else None, errors)

    async def _feed(
        self, program: Program, incoming: AsyncIterator[bytes], faults: list[Exception]
    ) -> None:
        """Write all that comes, then have the program end; `faults` gets what went wrong before
        that, since who reads may hear of the end first.
        """
        try:
            with suppress(StdinClosed):
                await _write(program, await self._host.bundle())
                async for content in incoming:
                    if len(content) > LARGEST_CONTENT_BYTES:
                        raise ObjectsFrameInvalid("Content has at most 1 MiB a frame.")
                    await _write(program, content)
            program.close_stdin()
            with suppress(TimeoutError):
                async with asyncio.timeout(_GRACE_SECONDS):
                    await program.ended()
        except Exception as error:
            faults.append(error)
        finally:
            if program.end is None:
                await program.expire(signal.SIGKILL)


async def _write(program: Program, content: bytes) -> None:
    while content:
        content = content[await program.write(content) :]


async def _expire(program: Program, seconds: float | None) -> None:
    """Kill it when its time is over; for ever without."""
    if seconds is None:
        await asyncio.Event().wait()
    else:
        await asyncio.sleep(seconds)
        await program.expire(signal.SIGKILL)


async def _undo(starting: asyncio.Task[Program]) -> None:
    await asyncio.wait([starting])
    if not starting.cancelled() and starting.exception() is None:
        await _finish(starting.result())


async def _finish(program: Program) -> None:
    if program.end is None:
        await program.expire(signal.SIGKILL)
    program.close()
