"""The worker's side of a program that forks inits: one life of a spawner or a zygote."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from chassis.packet_link import Arrival, LinkClosed, PacketLink
from fairlead_walls.own_place import OWN_PLACE
from sandbox_worker.errors import IsolationFailed

_SERVICES = Path(__file__).resolve().parents[2]
_PROGRAM = (
    "import sys; sys.path[:0] = sys.argv[1], sys.argv.pop(2); "
    "from sandbox_worker.isolation.{module} import main; main()"
)
_END_SECONDS = 3.0


@contextlib.contextmanager
def _closed_on_failure(end: socket.socket) -> Iterator[None]:
    try:
        yield
    except BaseException:
        end.close()
        raise


class ForkerProcess:
    """A running program of this package; `arrived` takes its packets, `ended` is told its end."""

    def __init__(
        self,
        *,
        module: str,
        words: Sequence[bytes] = (),
        arrived: Arrival,
        ended: Callable[[], None],
    ) -> None:
        """Start it; raises OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, _closed_on_failure(ours):
            # An own session keeps a terminal's Ctrl-C from it; the environment stays behind.
            self._process = subprocess.Popen(  # noqa: S603 - our own program, by its full path
                [
                    sys.executable,
                    "-I",
                    "-S",
                    "-c",
                    _PROGRAM.format(module=module),
                    str(_SERVICES),
                    OWN_PLACE,
                    str(theirs.fileno()),
                    *map(os.fsdecode, words),
                ],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={},
                cwd="/",
                start_new_session=True,
            )
        self._link = PacketLink(link=ours, arrived=arrived, ended=ended)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    async def send(self, *fields: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send a packet; raises IsolationFailed when it has ended."""
        try:
            await self._link.send(*fields, descriptors=descriptors)
        except LinkClosed:
            raise IsolationFailed("its spawner is being restarted") from None

    def kill(self) -> None:
        """Kill it."""
        self._process.kill()

    def close(self) -> None:
        """Let it end, which it does with all below it."""
        self._link.close()

    async def wait(self) -> None:
        """Wait until it is gone; kill it when that takes long."""
        await asyncio.get_running_loop().run_in_executor(None, self.wait_now)

    def wait_now(self) -> None:
        """Do the same; blocking."""
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
