"""An isolation without processes: programs are scripted by their first argument.

`print TEXT…` writes its other arguments and exits with 0; `fail CODE` exits with a code; `wait`
runs until it is signalled; `cat` copies standard input; `missing` and `plain` cannot be started.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from chassis.ids import is_id
from sandbox_worker.errors import IsolationFailed, SandboxLost, WorkspaceNotFound
from sandbox_worker.execution import Piece, ProgramEnd, Stream
from sandbox_worker.execution_errors import (
    CommandNotExecutable,
    CommandNotFound,
    DirectoryNotFound,
    DirectoryOutside,
    StdinClosed,
)
from sandbox_worker.isolation.working_directory import working_directory
from sandbox_worker.ports import ProgramOrder, Tree
from sandbox_worker.sandbox import Limits


class ScriptedProgram:
    """A program that is a few lines of this process."""

    def __init__(self, order: ProgramOrder) -> None:
        self._pieces: list[Piece] = []
        self._end: ProgramEnd | None = None
        self._changed = asyncio.Event()
        self._stdin_open = order.stdin
        self._copies = order.arguments[0] == "cat"
        self.signals: list[int] = []
        match order.arguments:
            case ("print", *texts):
                for text in texts:
                    self.emit(text.encode())
                self.on_end(ProgramEnd(code=0))
            case ("fail", code):
                self.on_end(ProgramEnd(code=int(code)))
            case ("cat",) if not order.stdin:
                self.on_end(ProgramEnd(code=0))

    @property
    def end(self) -> ProgramEnd | None:
        return self._end

    def emit(self, content: bytes, stream: Stream = Stream.STDOUT) -> None:
        """Write output."""
        self._pieces.append(Piece(stream=stream, content=content, written_at=1))
        self._changed.set()

    def on_end(self, end: ProgramEnd) -> None:
        """End, unless it has ended."""
        if self._end is None:
            self._end = end
            self._stdin_open = False
            self._changed.set()

    async def read(self) -> Sequence[Piece]:
        while not self._pieces and self._end is None:
            self._changed.clear()
            await self._changed.wait()
        pieces, self._pieces = self._pieces, []
        return pieces

    async def write(self, content: bytes) -> int:
        if not self._stdin_open:
            raise StdinClosed
        taken = content[:3]
        if self._copies:
            self.emit(taken)
        return len(taken)

    def close_stdin(self) -> None:
        self._stdin_open = False
        if self._copies:
            self.on_end(ProgramEnd(code=0))

    async def signal(self, number: int) -> None:
        self.signals.append(number)
        self.on_end(ProgramEnd(signal=number))

    async def expire(self, number: int) -> None:
        await self.signal(number)

    def close(self) -> None:
        self._stdin_open = False


class ScriptedEnclosure:
    """An enclosure whose programs are scripted."""

    def __init__(self, *, sandbox_id: str, limits: Limits, home: Path) -> None:
        self.limits = limits
        self.programs: dict[str, ScriptedProgram] = {}
        self.ports: dict[int, socket.socket] = {}
        self._sandbox_id = sandbox_id
        self._directory = home
        self._gone = asyncio.Event()

    async def bind(self, workspace: Tree) -> None:
        self._directory = workspace.path

    async def start(self, order: ProgramOrder) -> ScriptedProgram:
        if self._gone.is_set():
            raise SandboxLost(self._sandbox_id)
        _require_directory(self._directory, order.directory)
        if order.arguments[0] == "missing":
            raise CommandNotFound(order.arguments[0])
        if order.arguments[0] == "plain":
            raise CommandNotExecutable(order.arguments[0])
        program = ScriptedProgram(order)
        self.programs[order.execution_id] = program
        return program

    async def connect(self, port: int) -> socket.socket | None:
        if self._gone.is_set():
            raise SandboxLost(self._sandbox_id)
        return self.ports.pop(port, None)

    async def gone(self) -> None:
        await self._gone.wait()

    def lose(self) -> None:
        """Have every process killed from outside."""
        self._gone.set()
        for program in self.programs.values():
            program.on_end(ProgramEnd())

    async def destroy(self) -> None:
        for program in self.programs.values():
            program.on_end(ProgramEnd())
        self._gone.set()


class ScriptedIsolation:
    """Makes scripted enclosures; `hold` makes every create wait, `fault` makes it fail."""

    name = "process"

    def __init__(self, *, home: Path) -> None:
        self.enclosures: dict[str, ScriptedEnclosure] = {}
        self.cleaned = False
        self.tidied = 0
        self.fault = False
        self.hold = asyncio.Event()
        self.hold.set()
        self._home = home

    async def enclose(self, sandbox_id: str, limits: Limits) -> ScriptedEnclosure:
        await self.hold.wait()
        if self.fault:
            raise IsolationFailed("it is told to fail")
        enclosure = ScriptedEnclosure(sandbox_id=sandbox_id, limits=limits, home=self._home)
        self.enclosures[sandbox_id] = enclosure
        return enclosure

    async def tidy(self) -> None:
        self.tidied += 1

    async def clean(self) -> None:
        self.cleaned = True


def _require_directory(root: Path, directory: str) -> None:
    try:
        working_directory(os.fsencode(root), os.fsencode(directory))
    except OSError as error:
        if is_id("wsp", root.name) and not root.is_dir():
            raise WorkspaceNotFound(root.name) from None
        outside = error.errno == errno.EXDEV
        raise (DirectoryOutside if outside else DirectoryNotFound)(directory) from None
