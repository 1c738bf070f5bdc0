"""A terminal in memory that echoes what is typed, for the front door's tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

from chassis.errors import FailedPrecondition, OutOfRange, Unavailable
from signalling.execution import (
    Execution,
    Exit,
    OutputGap,
    OutputRecord,
    OutputStream,
    TerminalSize,
)
from signalling.launch_errors import SandboxNotFound
from signalling.terminal import (
    TerminalAccepted,
    TerminalFrame,
    TerminalInput,
    TerminalOpening,
    TerminalSnapshot,
    TerminalTakenOver,
    Typed,
)
from tests.fakes.clock import START
from tests.fakes.front_door import EXIT, FakeExecutions


class EchoTerminals:
    """One terminal for every execution that there is; `exit` and a newline ends it.

    `hold` keeps it from taking input, `cut` breaks whoever is attached. With `released` the sandbox
    is not there any more.
    """

    def __init__(self, *, executions: FakeExecutions) -> None:
        self.sizes: list[TerminalSize] = []
        self.openings: list[TerminalOpening] = []
        self.typed = b""
        self.dropped = 0
        self.released = False
        self.taking = asyncio.Event()
        self.taking.set()
        self._executions = executions
        self._records: list[OutputRecord] = []
        self._exit: Exit | None = None
        self._changed = asyncio.Event()
        self._cut = asyncio.Event()
        self._holder: asyncio.Event | None = None
        self._owner = ""

    async def resize(self, tenant: str, execution_id: str, size: TerminalSize) -> Execution:
        self.sizes.append(size)
        return await self._executions.get(tenant, execution_id)

    async def attach(
        self,
        tenant: str,
        execution_id: str,
        opening: TerminalOpening,
        typed: AsyncIterator[Typed],
    ) -> AsyncGenerator[TerminalFrame, None]:
        execution = await self._executions.get(tenant, execution_id)
        if self.released:
            raise SandboxNotFound(execution.sandbox_id)
        self.openings.append(opening)
        is_own = opening.owner == self._owner != ""
        if self._holder is not None and not (opening.take_over or is_own):
            raise FailedPrecondition("Another client has it.", reason="terminal_owned")
        if self._holder is not None:
            self._holder.set()
        mine = self._holder = asyncio.Event()
        resumed, self._owner = is_own, opening.owner
        if opening.size is not None:
            self.sizes.append(opening.size)
        cut = self._cut
        reading = asyncio.create_task(self._read(execution_id, typed))
        after, accepted = opening.after, len(self.typed)
        try:
            yield TerminalSnapshot(execution, accepted, resumed)
            if 0 < after < self.dropped:
                raise OutOfRange("It was dropped.", reason="cursor_gone")
            if after < self.dropped:
                yield OutputGap(first_sequence=1, last_sequence=self.dropped, size=7)
                after = self.dropped
            while True:
                changed = self._changed
                if mine.is_set():
                    yield TerminalTakenOver()
                    return
                if cut.is_set():
                    raise Unavailable("The stream broke.", reason="sandbox_worker_unavailable")
                for record in self._records[after:]:
                    yield record
                    after = record.sequence
                if accepted != len(self.typed):
                    accepted = len(self.typed)
                    yield TerminalAccepted(accepted)
                if self._exit is not None:
                    yield self._exit
                    return
                if reading.done():
                    reading.result()
                    return
                waits = [
                    asyncio.ensure_future(each)
                    for each in (changed.wait(), mine.wait(), cut.wait(), asyncio.wait([reading]))
                ]
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                for wait in waits:
                    wait.cancel()
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            if self._holder is mine:
                self._holder = None

    def cut(self) -> None:
        """Break whoever is attached."""
        cut, self._cut = self._cut, asyncio.Event()
        cut.set()

    def show(self, execution_id: str, content: bytes) -> None:
        """Write to the terminal."""
        self._records.append(
            OutputRecord(execution_id, len(self._records) + 1, OutputStream.STDOUT, content, START)
        )
        self._announce()

    async def _read(self, execution_id: str, typed: AsyncIterator[Typed]) -> None:
        async for piece in typed:
            match piece:
                case TerminalSize():
                    self.sizes.append(piece)
                    self._announce()
                case TerminalInput(offset, content):
                    await self.taking.wait()
                    rest = content[len(self.typed) - offset :]
                    self.typed += rest
                    if rest:
                        self.show(execution_id, rest)
                    if self.typed.endswith(b"exit\n"):
                        self._exit = EXIT
                    self._announce()

    def _announce(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
