"""File agents without a sandbox: programs of the test itself, as its user, for any directory."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

from sandbox_worker.ports import FileAgent

_SERVICES = Path(__file__).resolve().parents[2] / "services"
_PROGRAM = (
    "import os, socket, sys; sys.path.insert(0, sys.argv[1]); "
    "from sandbox_worker.file_agent import agent; "
    "agent.serve(socket.socket(fileno=int(sys.argv[2])), root=os.fsencode(sys.argv[3]))"
)


class LooseAgents:
    """Starts agents and remembers them, so that a test can stop and kill them.

    A fork, as in a sandbox, is not for a process that gRPC has threads in.
    """

    def __init__(self, *, root: Path) -> None:
        self.root = root
        self.processes: list[subprocess.Popen[bytes]] = []
        self.next_line: socket.socket | None = None
        """A line that takes the place of the next agent's."""

        self.killed = asyncio.Event()
        """Whether somebody wanted that one killed."""

    async def files(self) -> FileAgent:
        if self.next_line is not None:
            return FileAgent(self.next_line, self._note)
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with far:
            process = self._started(far.fileno())

        async def kill() -> None:
            process.kill()

        return FileAgent(near, kill)

    async def _note(self) -> None:
        self.killed.set()

    def _started(self, line: int) -> subprocess.Popen[bytes]:
        arguments = (str(_SERVICES), str(line), os.fspath(self.root))
        process = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", _PROGRAM, *arguments], pass_fds=[line]
        )
        self.processes.append(process)
        return process

    def end(self) -> None:
        """Kill and collect what is left."""
        for process in self.processes:
            process.kill()
            process.wait()
        self.processes.clear()
