"""Sandboxes that hostile programs run in: Python scripts that tell, as a JSON object, what they
tried and how that ended.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from chassis.ids import random_id
from fairlead_walls.survey import Survey
from sandbox_worker.execution import Stream
from sandbox_worker.isolation.process import ProcessIsolation
from sandbox_worker.ports import Enclosure, Isolation, Program, ProgramOrder
from sandbox_worker.sandbox import Limits, NetworkMode, NetworkPolicy
from tests.fakes.isolation import EveryTenant, no_cgroups
from tests.fakes.walled import PATH, open_walled

OWN_PLACES = ("/dev/shm", "/home/sandbox", "/tmp", "/workspace")  # noqa: S108 - the sandbox's own
PYTHON = shutil.which("python3", path=f"/usr/local/bin:{PATH}") or "/usr/bin/python3"

PRELUDE = """
import ctypes, errno, json, os, platform, signal, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
ARM = platform.machine() == "aarch64"
found = {}
def name(number):
    return errno.errorcode.get(number, str(number))
def attempt(what, do):
    try:
        do()
        found[what] = "done"
    except OSError as error:
        found[what] = name(error.errno)
def kernel(number, *arguments):
    ctypes.set_errno(0)
    given = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result = libc.syscall(ctypes.c_long(number), *given)
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result
def call(what, number, *arguments):
    attempt(what, lambda: kernel(number, *arguments))
def tell():
    print(json.dumps(found), flush=True)
"""


@dataclass(frozen=True, slots=True)
class Cell:
    """One sandbox."""

    enclosure: Enclosure

    async def start(self, *arguments: str, stdin: bool = False, directory: str = "") -> Program:
        """Start a program."""
        return await self.enclosure.start(
            ProgramOrder(
                execution_id=random_id("exe"),
                arguments=arguments,
                environment={},
                directory=directory,
                stdin=stdin,
            )
        )

    async def output(self, *arguments: str, directory: str = "") -> str:
        """Run a program that must succeed; returns its standard output."""
        program = await self.start(*arguments, directory=directory)
        content = {Stream.STDOUT: b"", Stream.STDERR: b""}
        while pieces := await program.read():
            for piece in pieces:
                content[piece.stream] += piece.content
        program.close()
        assert program.end is not None
        assert program.end.code == 0, content
        return content[Stream.STDOUT].decode("utf-8", "replace")

    async def attempts(self, script: str, *arguments: str) -> Mapping[str, str]:
        """Run a script after PRELUDE; returns what it told."""
        text = await self.output(PYTHON, "-c", f"{PRELUDE}\n{script}\ntell()", *arguments)
        found = json.loads(text)
        assert isinstance(found, dict)
        return found

    async def neighbour(self) -> tuple[Program, int]:
        """Start a program that waits; returns it and the pid by which the host knows it."""
        script = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
        program = await self.start(PYTHON, "-c", script)
        line = b""
        while not line.endswith(b"\n"):
            line += b"".join(piece.content for piece in await program.read())
        return program, host_pid(int(line))


@dataclass(frozen=True, slots=True)
class Cells:
    """A way to isolate, and how many walls it has."""

    isolation: Isolation
    network: NetworkMode

    async def open(self, limits: Limits | None = None) -> Cell:
        """Make a sandbox."""
        policy = NetworkPolicy(self.network)
        enclosure = await self.isolation.enclose(
            random_id("sbx"), limits or Limits(), policy, tenant="t"
        )
        return Cell(enclosure)


@asynccontextmanager
async def walled_cells(found: Survey, *, host_network: bool = False) -> AsyncIterator[Cells]:
    """Sandboxes behind every wall that this machine has."""
    mode = NetworkMode.HOST if host_network else NetworkMode.NONE
    async with open_walled(found, host_network=host_network) as isolation:
        yield Cells(isolation, mode)


@asynccontextmanager
async def process_cells(root: Path, *, user: int | None = None) -> AsyncIterator[Cells]:
    """Sandboxes of tier 0, as `user` where the tests run as root."""
    with ThreadPoolExecutor(2) as executor:
        async with ProcessIsolation(
            private_root=root / "private",
            path=PATH,
            cgroups=no_cgroups(executor),
            executor=executor,
            sole_tenant=EveryTenant(),
            user=user,
        ) as isolation:
            yield Cells(isolation, NetworkMode.HOST)


def host_pid(inner: int) -> int:
    """Return the host's number of the descendant that is `inner` in its own namespace."""
    for pid in sorted(_pids_below(os.getpid()), reverse=True):
        with suppress(OSError):
            entry = Path(f"/proc/{pid}")
            numbers = (entry / "status").read_text().partition("NSpid:")[2].split("\n")[0].split()
            if int(numbers[-1]) == inner and b"time.sleep" in (entry / "cmdline").read_bytes():
                return pid
    raise LookupError(inner)


def _pids_below(root: int) -> set[int]:
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError):
                stat = Path(f"/proc/{entry}/stat").read_bytes().rpartition(b")")[2].split()
                children.setdefault(int(stat[1]), []).append(int(entry))
    found: set[int] = set()
    waiting = [root]
    while waiting:
        fresh = children.get(waiting.pop(), [])
        found.update(fresh)
        waiting += fresh
    return found
