"""A program of a benchmark that is talked to by lines."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_LONGEST_LINE = 1 << 20


async def own_input() -> asyncio.StreamReader:
    """Return the lines that this process is told."""
    reader = asyncio.StreamReader(limit=_LONGEST_LINE)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    return reader


class Program:
    """A running program."""

    def __init__(self, *, process: Process) -> None:
        self._process = process

    async def hear(self) -> str:
        """Return its next line; raises EOFError when it has ended."""
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise EOFError("the program has ended")
        return line.decode().rstrip("\n")

    async def tell(self, line: str) -> None:
        """Send it a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        await self._process.stdin.drain()

    async def ask(self, line: str) -> str:
        """Send it a line and return its next one."""
        await self.tell(line)
        return await self.hear()


@contextlib.asynccontextmanager
async def started(*words: str) -> AsyncIterator[Program]:
    """Run a program until the block ends."""
    process = await asyncio.create_subprocess_exec(
        *words, cwd=ROOT, stdin=PIPE, stdout=PIPE, limit=_LONGEST_LINE
    )
    try:
        yield Program(process=process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
