"""The worker's side of the spawner: starts it, starts it again when it dies, and hears which inits
are gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

from chassis.packet_link import LinkClosed, PacketLink, close_all
from sandbox_worker.errors import IsolationFailed

log = logging.getLogger(__name__)

_SERVICES = Path(__file__).resolve().parents[2]
_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from sandbox_worker.isolation.spawner import main; main()"
)
_RESTART_SECONDS = 0.2
_END_SECONDS = 3.0

Gone = Callable[[str], None]
"""Told the id of a sandbox whose init has ended, or could not be made."""


@contextlib.contextmanager
def _closed_on_failure(end: socket.socket) -> Iterator[None]:
    try:
        yield
    except BaseException:
        end.close()
        raise


class SpawnerProcess:
    """One spawner at a time; `lost` is called when it has died under its inits."""

    def __init__(self, *, gone: Gone, lost: Callable[[], None]) -> None:
        self._gone = gone
        self._lost = lost
        self._link: PacketLink | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._running: asyncio.Event = asyncio.Event()
        self._ended = asyncio.Event()
        self._pid = 0

    @property
    def pid(self) -> int:
        """The process id of the present spawner."""
        return self._pid

    async def __aenter__(self) -> Self:
        process = self._start()
        self._keeper = asyncio.create_task(self._keep(process), name="spawner")
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])

    async def create(self, sandbox_id: str, limits: list[bytes], init_end: socket.socket) -> None:
        """Ask for an init on the other end of `init_end`'s pair; raises IsolationFailed."""
        await self._running.wait()
        await self._send(b"create", sandbox_id.encode(), *limits, descriptors=(init_end.fileno(),))

    async def kill(self, sandbox_id: str) -> None:
        """Kill an init that does not answer; what is below it falls to the spawner."""
        with contextlib.suppress(IsolationFailed):
            await self._send(b"kill", sandbox_id.encode())

    async def _send(self, *fields: bytes, descriptors: tuple[int, ...] = ()) -> None:
        try:
            if self._link is None:
                raise LinkClosed
            await self._link.send(*fields, descriptors=descriptors)
        except LinkClosed:
            raise IsolationFailed("its spawner is being restarted") from None

    def _start(self) -> subprocess.Popen[bytes]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, _closed_on_failure(ours):
            # An own session keeps a terminal's Ctrl-C from it; the environment stays behind.
            process = subprocess.Popen(  # noqa: S603 - our own program, by its full path
                [sys.executable, "-I", "-S", "-c", _PROGRAM, str(_SERVICES), str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={},
                cwd="/",
                start_new_session=True,
            )
        self._ended = asyncio.Event()
        self._link = PacketLink(link=ours, arrived=self._on_packet, ended=self._ended.set)
        self._pid = process.pid
        self._running.set()
        return process

    async def _keep(self, process: subprocess.Popen[bytes]) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                await self._ended.wait()
                self._running.clear()
                process.kill()
                await loop.run_in_executor(None, process.wait)
                log.error("the spawner died and is started again")
                self._lost()
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
                log.error("the spawner cannot be started", extra={"cause": error.strerror})

    def _on_packet(self, fields: list[bytes], descriptors: list[int]) -> None:
        close_all(descriptors)
        self._gone(fields[1].decode())
