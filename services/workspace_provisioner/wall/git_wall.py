"""The wall around git: keeps the program that starts walled processes running, and says which walls
this machine lacks.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from chassis.packet_link import LinkClosed, PacketLink, close_all
from fairlead_walls.own_place import OWN_PLACE
from workspace_provisioner.wall.jobs import REFUSED, Job, fields_of

log = logging.getLogger(__name__)

_PACKAGES = Path(__file__).resolve().parents[2]
_PROGRAM = (
    "import sys; sys.path[:0] = sys.argv[1], sys.argv.pop(2); "
    "from workspace_provisioner.wall.spawner import main; main()"
)
_RESTART_SECONDS = 0.2
_END_SECONDS = 3.0
_READY_SECONDS = 20.0

WALLS = {
    "own_user": "runs as a user of its own",
    "file_view": "sees no file but those of its place",
    "file_rules": "may open no file but those of its place (Landlock)",
    "network": "has no network",
    "process_tree": "cannot outlive the service",
    "messages": "shares no memory with others",
    "call_filter": "cannot make system calls that it has no use for",
    "files": "was tried: no file outside its place could be opened",
}
"""The walls by name; each is something that a git process then does or does not do."""


@dataclass(frozen=True, slots=True)
class WallReport:
    """Which walls stand on this machine, and which do not, with the reason."""

    standing: tuple[str, ...]
    missing: dict[str, str] = field(default_factory=dict)


class GitWall:
    """Starts walled processes. `directory` is on the file system where they will work; the wall is
    tried there.
    """

    def __init__(self, *, program: str, directory: Path) -> None:
        self.program = os.path.realpath(program)
        self._directory = directory
        self._names = itertools.count(1)
        self._running: dict[str, asyncio.Future[int]] = {}
        self._link: PacketLink | None = None
        self._ready: asyncio.Future[dict[str, str]] | None = None
        self._ended = asyncio.Event()
        self._usable = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._report = WallReport(())
        self._pid = 0

    @property
    def pid(self) -> int:
        """The process id of the present spawner."""
        return self._pid

    def report(self) -> WallReport:
        """Say which walls stand, as found at the start."""
        return self._report

    async def __aenter__(self) -> Self:
        process = self._start()
        self._keeper = asyncio.create_task(self._keep(process), name="git-wall")
        try:
            self._report = await self._examine()
        except BaseException:
            await self.__aexit__()
            raise
        log.info(
            "git is walled",
            extra={"standing": list(self._report.standing), "missing": self._report.missing},
        )
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])

    async def start(self, job: Job, descriptors: Sequence[int]) -> tuple[str, asyncio.Future[int]]:
        """Start a process on three descriptors; returns its name and what its exit status will be.

        A spawner that dies takes its processes along, and is started again; raises OSError when
        that does not succeed, and PacketTooLong for a job of more than 384 KiB.
        """
        try:
            async with asyncio.timeout(_READY_SECONDS):
                await self._usable.wait()
        except TimeoutError:
            raise OSError("the program that starts git does not come up") from None
        name = str(next(self._names))
        ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._running[name] = ended
        try:
            if self._link is None:
                raise LinkClosed
            await self._link.send(b"start", name.encode(), *fields_of(job), descriptors=descriptors)
        except LinkClosed:
            self._end(name, REFUSED)
        except BaseException:
            # Too long, or cancelled while it waited for its turn: nothing was sent.
            del self._running[name]
            raise
        return name, ended

    async def kill(self, name: str) -> None:
        """Kill a process with everything below it; its status comes once nothing of it is left."""
        if name in self._running and self._link is not None:
            with contextlib.suppress(LinkClosed):
                await self._link.send(b"kill", name.encode())

    def _end(self, name: str, status: int) -> None:
        ended = self._running.pop(name, None)
        if ended is not None and not ended.done():
            ended.set_result(status)

    def _start(self) -> subprocess.Popen[bytes]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            # An own session keeps a terminal's Ctrl-C from it; the environment stays behind.
            process = subprocess.Popen(  # noqa: S603 - our own program, by its full path
                [
                    *(sys.executable, "-I", "-S", "-E", "-c", _PROGRAM),
                    *(str(_PACKAGES), OWN_PLACE),
                    *(str(theirs.fileno()), *_homes(self.program)),
                ],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={},
                cwd="/",
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._ended = asyncio.Event()
        self._ready = asyncio.get_running_loop().create_future()
        self._link = PacketLink(link=ours, arrived=self._on_packet, ended=self._on_end)
        self._pid = process.pid
        return process

    def _on_end(self) -> None:
        self._usable.clear()
        for name in list(self._running):
            self._end(name, REFUSED)
        self._ended.set()

    def _on_packet(self, fields: list[bytes], descriptors: list[int]) -> None:
        close_all(descriptors)
        match fields[0]:
            case b"ready" if self._ready is not None and not self._ready.done():
                self._ready.set_result(_pairs(fields[1:]))
                self._usable.set()
            case b"exit":
                self._end(fields[1].decode(), os.waitstatus_to_exitcode(int(fields[2])))

    async def _keep(self, process: subprocess.Popen[bytes]) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                await self._ended.wait()
                process.kill()
                await loop.run_in_executor(None, process.wait)
                log.error("the program that starts git died and is started again")
                process = await self._start_again()
        finally:
            if self._link is not None:
                self._link.close()
            try:
                process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    async def _start_again(self) -> subprocess.Popen[bytes]:
        while True:
            await asyncio.sleep(_RESTART_SECONDS)
            try:
                return self._start()
            except OSError as error:
                log.error("the program that starts git fails", extra={"cause": error.strerror})

    async def _examine(self) -> WallReport:
        """Ask what was built, then walk into it."""
        assert self._ready is not None  # noqa: S101 - _start made it
        async with asyncio.timeout(_READY_SECONDS):
            missing = dict(await self._ready)
            held = await self._try_out()
        for name, holds in held.items():
            if holds:
                if name != "own_user":
                    missing.pop(name, None)
            elif name not in missing:
                missing[name] = "it was tried, and does not hold"
        standing = tuple(name for name in WALLS if name not in missing)
        return WallReport(standing, missing)

    async def _try_out(self) -> dict[str, bool]:
        grounds = Path(tempfile.mkdtemp(prefix=".wall.", dir=self._directory))
        output, theirs = os.pipe2(os.O_CLOEXEC)
        try:
            for name in ("inside", "lent", "outside"):
                (grounds / name).mkdir(mode=0o700)
                (grounds / name / "file").write_bytes(b"")
            nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            try:
                _, ended = await self.start(_trial(grounds), (nothing, theirs, nothing))
            finally:
                os.close(nothing)
                os.close(theirs)
            await ended
            held = _pairs(os.read(output, 4096).splitlines())
            return {name: value == "1" for name, value in held.items()} or {"files": False}
        finally:
            os.close(output)
            shutil.rmtree(grounds, ignore_errors=True)


def _pairs(fields: Sequence[bytes]) -> dict[str, str]:
    """Read fields of the form `name=value`."""
    pairs = (os.fsdecode(field).partition("=") for field in fields)
    return {name: value for name, _, value in pairs}


def _trial(grounds: Path) -> Job:
    return {
        "arguments": [],
        "environment": {},
        "directory": str(grounds),
        "writable": [str(grounds / "inside")],
        "readable": [str(grounds / "lent")],
        "limits": {},
    }


def _homes(program: str) -> list[str]:
    """Return the directories that a git which is not the system's needs."""
    path = Path(program)
    if path.is_relative_to("/usr"):
        return []
    if path.is_relative_to("/nix/store"):
        return ["/nix/store"]
    return [str(path.parent.parent if path.parent.name == "bin" else path.parent)]
