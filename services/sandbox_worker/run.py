"""One execution from its start to its exit: output into the journal, time limit, standard input,
watchers.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace

from chassis.clock import Clock
from fairlead_limits.table import DEFAULT_GRACE_SECONDS
from sandbox_worker.execution import (
    Execution,
    Exit,
    ExitReason,
    Gap,
    OutputRecord,
    ProgramEnd,
    TerminalSize,
)
from sandbox_worker.execution_errors import (
    ExecutionEnded,
    NotATerminal,
    StdinClosed,
    StdinOffsetInvalid,
)
from sandbox_worker.ports import Journal, Program
from sandbox_worker.terminals import Terminal

Frame = Execution | Sequence[OutputRecord] | Gap | Exit


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
        terminal: Terminal | None = None,
        ending: Callable[[], ExitReason | None] = lambda: None,
    ) -> None:
        self._execution = execution
        self._journal = journal
        self._clock = clock
        self._program = program
        self._terminal = terminal
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
    def is_settled(self) -> bool:
        """Whether its exit is on disk."""
        return self._settled

    @property
    def complete(self) -> bool:
        """Whether all of its output was kept."""
        return self._journal.complete

    @property
    def terminal(self) -> Terminal | None:
        """Who types into its terminal; None where it runs on pipes."""
        return self._terminal

    @property
    def stdin_offset(self) -> int:
        """How far standard input has come."""
        return self._stdin_offset

    @property
    def has_ended(self) -> bool:
        """Whether the program has ended."""
        return self._program is None or self._program.end is not None

    async def follow(
        self,
        *,
        time_limit: float | None = None,
        grace: float = DEFAULT_GRACE_SECONDS,
        blocks: bool = True,
    ) -> Exit:
        """Take the program's output until it ends, then write the one terminal record.

        `grace` is the time between SIGTERM and SIGKILL when the time limit has passed; `blocks`
        says whether the journal may let the program wait.
        """
        program = self._program
        if program is None:
            return await self.end(ExitReason.HOST_LOST)
        watches = []
        if blocks:
            watches.append(asyncio.create_task(self._unblock(program), name="unblock"))
        if time_limit is not None:
            expiring = self._expire(program, time_limit, grace)
            watches.append(asyncio.create_task(expiring, name="time limit"))
        try:
            while pieces := await program.read():
                await self._journal.append(pieces, announce=self._announce)
                # Neither of the two has to pause, and a program may write for ever.
                await asyncio.sleep(0)
        finally:
            for watch in watches:
                watch.cancel()
            if watches:
                await asyncio.wait(watches)
            program.close()
        end = program.end or ProgramEnd()
        reason = exit_reason(end, expired=self._expired, ending=self._ending())
        return await self.end(reason, end)

    async def end(self, reason: ExitReason, end: ProgramEnd | None = None) -> Exit:
        """Make the exit; it is in the journal before anybody hears of it, if the disk takes it."""
        seen = end is not None and reason not in (ExitReason.TIMED_OUT, ExitReason.RELEASED)
        exit_ = Exit(
            reason=reason,
            code=end.code if end is not None and seen else None,
            signal=end.signal if end is not None and seen else None,
            last_sequence=self._journal.last_sequence,
            ended_at=self._clock.now(),
            usage=None if end is None else end.usage,
        )
        self._settled = await self._journal.finish(exit_)
        self._execution = replace(self._execution, exit=exit_)
        self._program = None
        self._announce()
        return exit_

    async def settle(self) -> None:
        """Try again to get on disk what it has not taken."""
        self._journal.retry()
        exit_ = self._execution.exit
        if not self._settled and exit_ is not None:
            self._settled = await self._journal.finish(exit_)

    async def remove(self) -> None:
        """Delete the journal."""
        await self._journal.remove()

    async def watch(self, after: int) -> AsyncGenerator[Frame, None]:
        """Yield the execution, then its records after `after` and the gaps between them, then its
        exit.

        Raises CursorGone. A watcher that is slow holds up itself, and a program that blocks on a
        full journal.
        """
        reader = self._journal.reader(after)
        try:
            yield self._execution
            while True:
                # Both are taken before the read, so that what comes during it is not missed.
                changed, exit_ = self._changed, self._execution.exit
                if output := await reader.read():
                    yield output
                elif exit_ is not None:
                    yield exit_
                    return
                else:
                    await changed.wait()
        finally:
            reader.close()

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

    def resize(self, size: TerminalSize) -> None:
        """Change its terminal's size; raises ExecutionEnded and NotATerminal."""
        if self._program is None or self._program.end is not None:
            raise ExecutionEnded(self._execution.execution_id)
        if self._terminal is None:
            raise NotATerminal(self._execution.execution_id)
        self._program.resize(size)

    async def _unblock(self, program: Program) -> None:
        await program.ended()
        self._journal.unblock()

    async def _expire(self, program: Program, time_limit: float, grace: float) -> None:
        await asyncio.sleep(time_limit)
        if program.end is None:
            self._expired = True
            await program.expire(signal.SIGTERM)
            await asyncio.sleep(grace)
            await program.expire(signal.SIGKILL)

    def _announce(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def exit_reason(end: ProgramEnd, *, expired: bool, ending: ExitReason | None) -> ExitReason:
    """Say why a program ended whose time was over, or whose sandbox ends for a reason."""
    if expired:
        return ExitReason.TIMED_OUT
    if end.breach is not None:
        return end.breach
    if end.code is not None:
        return ExitReason.EXITED
    if ending is not None:
        return ending
    return ExitReason.SIGNALLED if end.signal is not None else ExitReason.HOST_LOST
