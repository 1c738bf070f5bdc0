"""One execution from its start to its exit: output into the journal, time limit, standard input,
watchers.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace

from chassis.clock import Clock
from sandbox_worker.execution import Execution, Exit, ExitReason, OutputRecord, ProgramEnd
from sandbox_worker.execution_errors import ExecutionEnded, StdinClosed, StdinOffsetInvalid
from sandbox_worker.ports import Journal, Program

GRACE_SECONDS = 2.0
"""Time between SIGTERM and SIGKILL when the time limit has passed."""

Frame = Execution | Sequence[OutputRecord] | Exit


class Run:
    """An execution that runs, or that has ended and is still kept.

    `ending` tells how executions of its sandbox end, once that is known.
    """

    def __init__(
        self,
        *,
        execution: Execution,
        journal: Journal,
        clock: Clock,
        program: Program | None = None,
        stdin: bool = False,
        ending: Callable[[], ExitReason | None] = lambda: None,
    ) -> None:
        self._execution = execution
        self._journal = journal
        self._clock = clock
        self._program = program
        self._ending = ending
        self._expired = False
        self._settled = program is None and execution.exit is not None
        self._changed = asyncio.Event()
        self._stdin_turn = asyncio.Lock()
        self._stdin_offset = 0
        self._stdin_open = stdin

    @property
    def execution(self) -> Execution:
        """The execution as it is now."""
        return self._execution

    @property
    def complete(self) -> bool:
        """Whether all of its output was kept."""
        return self._journal.complete

    async def follow(self, *, time_limit: float | None) -> Exit:
        """Take the program's output until it ends, then write the one terminal record."""
        program = self._program
        if program is None:
            return await self.end(ExitReason.HOST_LOST)
        timer = asyncio.create_task(self._expire(program, time_limit), name="time limit")
        try:
            while pieces := await program.read():
                await self._journal.append(pieces)
                self._announce()
        finally:
            timer.cancel()
            await asyncio.wait([timer])
            program.close()
        end = program.end or ProgramEnd()
        reason = self._reason(end)
        return await self.end(
            reason,
            code=end.code if reason is ExitReason.EXITED else None,
            signal_=end.signal if reason is ExitReason.SIGNALLED else None,
        )

    async def end(
        self, reason: ExitReason, *, code: int | None = None, signal_: int | None = None
    ) -> Exit:
        """Make the exit; it is in the journal before anybody hears of it, if the disk takes it."""
        exit_ = Exit(
            reason=reason,
            code=code,
            signal=signal_,
            last_sequence=self._journal.last_sequence,
            ended_at=self._clock.now(),
        )
        self._settled = await self._journal.finish(exit_)
        self._execution = replace(self._execution, exit=exit_)
        self._program = None
        self._announce()
        return exit_

    async def settle(self) -> None:
        """Try again to get the exit on disk."""
        exit_ = self._execution.exit
        if not self._settled and exit_ is not None:
            self._settled = await self._journal.finish(exit_)

    async def remove(self) -> None:
        """Delete the journal."""
        await self._journal.remove()

    async def watch(self, after: int) -> AsyncGenerator[Frame, None]:
        """Yield the execution, then its records after `after`, then its exit.

        Raises CursorGone. A watcher that is slow only holds up itself.
        """
        yield self._execution
        reader = self._journal.reader(after)
        while True:
            # Both are taken before the read, so that what comes during it is not missed.
            changed, exit_ = self._changed, self._execution.exit
            if records := await reader.read():
                yield records
            elif exit_ is not None:
                yield exit_
                return
            else:
                await changed.wait()

    async def write_stdin(self, *, offset: int, content: bytes, close: bool) -> int:
        """Write what of `content` was not taken before; returns how far standard input has come.

        Raises StdinClosed, StdinOffsetInvalid.
        """
        async with self._stdin_turn:
            if offset > self._stdin_offset:
                raise StdinOffsetInvalid(self._stdin_offset)
            rest = content[self._stdin_offset - offset :]
            while rest:
                if self._program is None or not self._stdin_open:
                    raise StdinClosed(self._execution.execution_id)
                taken = await self._program.write(rest)
                self._stdin_offset += taken
                rest = rest[taken:]
            if close and self._program is not None:
                self._program.close_stdin()
            self._stdin_open = self._stdin_open and not close
            return self._stdin_offset

    async def signal(self, number: int) -> None:
        """Signal the process group; raises ExecutionEnded."""
        if self._program is None or self._program.end is not None:
            raise ExecutionEnded(self._execution.execution_id)
        await self._program.signal(number)

    async def _expire(self, program: Program, time_limit: float | None) -> None:
        if time_limit is None:
            return
        await asyncio.sleep(time_limit)
        if program.end is None:
            self._expired = True
            await program.expire(signal.SIGTERM)
            await asyncio.sleep(GRACE_SECONDS)
            await program.expire(signal.SIGKILL)

    def _reason(self, end: ProgramEnd) -> ExitReason:
        if self._expired:
            return ExitReason.TIMED_OUT
        if end.code is not None:
            return ExitReason.EXITED
        if (ending := self._ending()) is not None:
            return ending
        return ExitReason.SIGNALLED if end.signal is not None else ExitReason.HOST_LOST

    def _announce(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
