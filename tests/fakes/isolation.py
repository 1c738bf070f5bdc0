"""An isolation without processes: programs are scripted by their first argument.

`print TEXT…` writes its other arguments and exits with 0; `fail CODE` exits with a code; `wait`
runs until it is signalled, `stubborn` until it is killed; `cat` copies standard input; `missing`
and `plain` cannot be started.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal as signals
import socket
from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path

from chassis.clock import SystemClock
from chassis.ids import is_id
from sandbox_worker.brief_work import BriefWork
from sandbox_worker.errors import FenceStale, IsolationFailed, SandboxLost, WorkspaceNotFound
from sandbox_worker.execution import Piece, ProgramEnd, Stream, TerminalSize
from sandbox_worker.execution_errors import (
    CommandNotExecutable,
    CommandNotFound,
    DirectoryNotFound,
    DirectoryOutside,
    NotATerminal,
    StdinClosed,
)
from sandbox_worker.isolation.cgroups import Cgroups
from sandbox_worker.isolation.working_directory import working_directory
from sandbox_worker.ports import FileAgent, ProgramOrder, Tree
from sandbox_worker.sandbox import (
    NO_FENCE,
    Fence,
    Hold,
    Limits,
    NetworkMode,
    NetworkPolicy,
    Wall,
)
from tests.fakes.file_agents import LooseAgents

WALLS = (Wall("script", stands=True), Wall("stone", stands=False, reason="it is a fake"))


class EveryTenant:
    """Lets every tenant run programs without walls, as no real host does."""

    async def claim(self, tenant: str) -> None:
        pass


class ScriptedProgram:
    """A program that is a few lines of this process."""

    def __init__(self, order: ProgramOrder) -> None:
        self._pieces: list[Piece] = []
        self._end: ProgramEnd | None = None
        self._changed = asyncio.Event()
        self._ended = asyncio.Event()
        self._stdin_open = order.stdin
        self._size = order.terminal
        self._stubborn = order.arguments[0] == "stubborn"
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

    async def ended(self) -> None:
        await self._ended.wait()

    def emit(self, content: bytes, stream: Stream = Stream.STDOUT) -> None:
        """Write output."""
        self._pieces.append(Piece(stream=stream, content=content, written_at=1))
        self._changed.set()

    def on_end(self, end: ProgramEnd) -> None:
        """End, unless it has ended."""
        if self._end is None:
            self._end = end
            self._ended.set()
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

    def resize(self, size: TerminalSize) -> None:
        if self._size is None:
            raise NotATerminal
        self._size = size
        self.emit(b"%d %d\r\n" % (size.rows, size.columns))

    async def signal(self, number: int) -> None:
        self.signals.append(number)
        if number == 0:  # looks only (kill(2))
            return
        if self._stubborn and number != signals.SIGKILL:
            return
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
        self.walls = WALLS
        self.first_process = 0
        self.fence = NO_FENCE
        self.held_for = 0.0
        self.listener: socket.socket | None = None
        self.connecting = asyncio.Event()
        self.connecting.set()
        self.listening = asyncio.Event()
        self.listening.set()
        self._sandbox_id = sandbox_id
        self._directory = home
        self._gone = asyncio.Event()
        self.agents = LooseAgents(root=home)

    async def hold(self, fence: Fence, seconds: float) -> None:
        if self._gone.is_set():
            raise SandboxLost(self._sandbox_id)
        if fence < self.fence:
            raise FenceStale(self._sandbox_id)
        self.fence, self.held_for = fence, seconds

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

    async def files(self) -> FileAgent:
        if self._gone.is_set():
            raise SandboxLost(self._sandbox_id)
        self.agents.root = self._directory
        return await self.agents.files()

    async def connect(self, port: int) -> socket.socket | None:
        if self._gone.is_set():
            raise SandboxLost(self._sandbox_id)
        await self.connecting.wait()
        return self.ports.pop(port, None)

    async def listen(self) -> socket.socket:
        if self._gone.is_set():
            raise SandboxLost(self._sandbox_id)
        await self.listening.wait()
        self.listener = socket.create_server(("127.0.0.1", 0))
        return self.listener

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
        self.agents.end()
        self._gone.set()


class ScriptedIsolation:
    """Makes scripted enclosures; `hold` makes every create wait, `fault` makes it fail."""

    name = "process"
    walls = WALLS
    networks: tuple[NetworkMode, ...] = (NetworkMode.HOST, NetworkMode.EGRESS)

    def __init__(self, *, home: Path) -> None:
        self.enclosures: dict[str, ScriptedEnclosure] = {}
        self.cleaned = False
        self.tidied = 0
        self.fault = False
        self.hold = asyncio.Event()
        self.hold.set()
        self._home = home

    async def enclose(
        self,
        sandbox_id: str,
        limits: Limits,
        network: NetworkPolicy,
        *,
        tenant: str,
        workspace: Tree | None = None,
        hold: Hold | None = None,
    ) -> ScriptedEnclosure:
        await self.hold.wait()
        if self.fault:
            raise IsolationFailed("it is told to fail")
        enclosure = ScriptedEnclosure(sandbox_id=sandbox_id, limits=limits, home=self._home)
        if workspace is not None:
            await enclosure.bind(workspace)
        if hold is not None:
            await enclosure.hold(hold.fence, hold.seconds)
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


def no_cgroups(executor: Executor) -> Cgroups:
    """Return cgroups as on a machine that has none."""
    return Cgroups(name="tests", epoch=1, work=BriefWork(executor=executor, clock=SystemClock()))
