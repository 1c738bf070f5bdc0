"""The worker's side of one program below an init."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from chassis.packet_link import LinkClosed, PacketLink
from chassis.packets import number
from sandbox_worker.execution import ExitReason, Piece, ProgramEnd, TerminalSize, Usage
from sandbox_worker.execution_errors import NotATerminal
from sandbox_worker.isolation.pipes import Pipes
from sandbox_worker.isolation.terminal_pipes import TerminalPipes

_MICROSECONDS = 1_000_000
_PATIENCE = 5.0
"""Seconds that an init gets to carry a signal on, and a killed program to end."""

Breach = Callable[[ProgramEnd], ExitReason | None]
"""Says which limit of the sandbox ended a program, if one did."""


class InitProgram:
    """One program below an init."""

    def __init__(
        self,
        *,
        execution_id: str,
        pipes: Pipes | TerminalPipes,
        link: PacketLink,
        breach: Breach,
        kill_all: Callable[[], Awaitable[None]],
    ) -> None:
        self._execution_id = execution_id.encode()
        self._pipes = pipes
        self._link = link
        self._breach = breach
        self._kill_all = kill_all
        self._end: ProgramEnd | None = None
        self._ended = asyncio.Event()

    @property
    def end(self) -> ProgramEnd | None:
        return self._end

    async def ended(self) -> None:
        await self._ended.wait()

    async def read(self) -> Sequence[Piece]:
        return await self._pipes.read()

    async def write(self, content: bytes) -> int:
        return await self._pipes.write(content)

    def close_stdin(self) -> None:
        self._pipes.close_stdin()

    def resize(self, size: TerminalSize) -> None:
        if not isinstance(self._pipes, TerminalPipes):
            raise NotATerminal
        self._pipes.resize(size)

    async def signal(self, number_: int) -> None:
        await self._send(b"signal", number_)

    async def expire(self, number_: int) -> None:
        """Signal it; when it survives SIGKILL its init is held up (a program can do that), and the
        whole sandbox is killed.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                await self._send(b"expire", number_)
                if number_ == signal.SIGKILL:
                    await self._ended.wait()
                return
        if number_ == signal.SIGKILL:
            await self._kill_all()

    def close(self) -> None:
        self._pipes.close()

    def on_end(self, end: ProgramEnd) -> None:
        """Take the first of: its wait status, the loss of its init."""
        if self._end is None:
            self._end = replace(end, breach=self._breach(end))
            self._pipes.end()
            self._ended.set()

    async def _send(self, verb: bytes, which: int) -> None:
        with suppress(LinkClosed):
            await self._link.send(verb, self._execution_id, number(which))


def program_end(status: int, cpu_microseconds: int, peak_memory_bytes: int) -> ProgramEnd:
    """Return what wait4(2) said about a program."""
    usage = Usage(cpu_seconds=cpu_microseconds / _MICROSECONDS, peak_memory_bytes=peak_memory_bytes)
    if os.WIFSIGNALED(status):
        return ProgramEnd(signal=os.WTERMSIG(status), usage=usage)
    return ProgramEnd(code=os.WEXITSTATUS(status), usage=usage)
