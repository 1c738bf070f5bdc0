"""A wide-area link on one machine: a process that forwards TCP and holds every byte back for half a
round trip each way.

It delays and does not lose, limit or reorder; slow start is not in it, as both its connections are
on loopback. Where that matters the figures say so.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

RTT_SECONDS = 0.092
_IN_FLIGHT = 16 << 20
_CHUNK = 256 * 1024


@dataclass(frozen=True)
class Link:
    """A running link: dial `address` to reach the target."""

    host: str
    port: int

    @property
    def address(self) -> str:
        """The near end, as host:port."""
        return f"{self.host}:{self.port}"


@contextlib.contextmanager
def delayed(target: str, *, rtt: float = RTT_SECONDS) -> Iterator[Link]:
    """Run a link to `target` (host:port, or the path of a Unix socket) in its own process."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.workspaces.link", target, str(rtt / 2)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield Link("127.0.0.1", int(process.stdout.readline()))
    finally:
        process.kill()
        process.wait()


def round_trip(*, rtt: float = RTT_SECONDS, samples: int = 21) -> float:
    """Measure the link's own round trip with one byte and an echo, in seconds, as the median."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with delayed(f"127.0.0.1:{port}", rtt=rtt) as link:
            near = socket.create_connection((link.host, link.port))
            far, _ = listener.accept()
            with near, far:
                near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return statistics.median(_echo(near, far) for _ in range(samples))


def _echo(near: socket.socket, far: socket.socket) -> float:
    start = time.perf_counter()
    near.sendall(b"x")
    far.sendall(far.recv(1))
    assert near.recv(1) == b"x"
    return time.perf_counter() - start


class _Direction:
    """One direction of one connection: what is read leaves `delay` seconds later, in order."""

    def __init__(self, *, delay: float) -> None:
        self._delay = delay
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._size = 0
        self._changed = asyncio.Event()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._take(reader))
            tasks.create_task(self._give(writer))

    async def _take(self, reader: asyncio.StreamReader) -> None:
        while True:
            while self._size > _IN_FLIGHT:
                self._changed.clear()
                await self._changed.wait()
            try:
                chunk = await reader.read(_CHUNK)
            except ConnectionError:
                chunk = b""
            self._waiting.append((time.monotonic() + self._delay, chunk))
            self._size += len(chunk)
            self._changed.set()
            if not chunk:
                return

    async def _give(self, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):  # also when the other end is gone
            while True:
                while not self._waiting:
                    self._changed.clear()
                    await self._changed.wait()
                due, chunk = self._waiting.popleft()
                await asyncio.sleep(due - time.monotonic())
                if not chunk:
                    break
                writer.write(chunk)
                await writer.drain()
                self._size -= len(chunk)
                self._changed.set()
            writer.write_eof()


async def _serve(target: str, delay: float) -> None:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if target.startswith("/"):
            far_reader, far_writer = await asyncio.open_unix_connection(target)
        else:
            host, _, port = target.rpartition(":")
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
        try:
            await asyncio.gather(
                _Direction(delay=delay).carry(reader, far_writer),
                _Direction(delay=delay).carry(far_reader, writer),
            )
        finally:
            for each in (writer, far_writer):
                each.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], float(sys.argv[2])))
