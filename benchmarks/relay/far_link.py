"""A wide-area link on one machine: a network namespace beyond two TUN devices (Linux), where each
packet is held back for half a round trip.

TCP runs over it as over a wire, with its slow start; nothing is lost, limited or reordered. Needs
root. As a program it holds the link until its standard input ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import select
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from benchmarks.sessions.program import started

RTT_SECONDS = 0.092
_TUNSETIFF = 0x400454CA
_IFF_TUN_NO_PI = 0x0001 | 0x1000
_NEAR, _FAR = "10.213.92.1", "10.213.92.2"
_PACKET = 65536
_QUEUED = 100_000
_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class FarLink:
    """A link: `near` is this machine's address on it, and `inside` is put before a command that is
    to run beyond it.
    """

    near: str
    inside: Sequence[str]


@asynccontextmanager
async def far_link(*, rtt: float = RTT_SECONDS) -> AsyncIterator[FarLink]:
    """Have a link in the block; raises PermissionError without root."""
    if os.geteuid():
        raise PermissionError("a network namespace needs root")
    name = f"flb-{os.getpid()}"
    words = (sys.executable, "-m", "benchmarks.relay.far_link", name, str(rtt / 2))
    try:
        async with started(*words) as program:
            await program.hear()
            yield FarLink(_NEAR, ("ip", "netns", "exec", name))
    finally:
        deleting = await asyncio.create_subprocess_exec("ip", "netns", "delete", name)
        await deleting.wait()


def _tun(name: str) -> int:
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN_NO_PI))
    return device


def _run(*words: str) -> None:
    subprocess.run(words, check=True)


@contextlib.contextmanager
def _devices(namespace: str) -> Iterator[tuple[int, int]]:
    near, far = f"{namespace}n"[-15:], f"{namespace}f"[-15:]
    ends = _tun(near), _tun(far)
    try:
        _run("ip", "netns", "add", namespace)
        _run("ip", "link", "set", far, "netns", namespace)
        inside = ("ip", "-n", namespace)
        for prefix, name, address in ((("ip",), near, _NEAR), (inside, far, _FAR)):
            _run(*prefix, "address", "add", f"{address}/30", "dev", name)
            _run(*prefix, "link", "set", name, "up", "txqueuelen", "10000")
        _run(*inside, "link", "set", "lo", "up")
        yield ends
    finally:
        for device in ends:
            os.close(device)


class _Direction:
    """From one device to the other: what is read leaves `delay` seconds later, in order."""

    def __init__(self, *, source: int, target: int, delay: float) -> None:
        self.source = source
        self._target = target
        self._delay = delay
        self._held: deque[tuple[float, bytes]] = deque()

    def read(self) -> None:
        """Hold what has come; more than a device queues is dropped, as by a router."""
        with contextlib.suppress(BlockingIOError):
            for _ in range(_AT_ONCE):
                packet = os.read(self.source, _PACKET)
                if len(self._held) < _QUEUED:
                    self._held.append((time.monotonic() + self._delay, packet))

    def send(self) -> float:
        """Let go what is due; returns the seconds until something else is."""
        while self._held:
            due, packet = self._held[0]
            if (left := due - time.monotonic()) > 0:
                return left
            self._held.popleft()
            with contextlib.suppress(OSError):
                os.write(self._target, packet)
        return 1.0


def _carry(near: int, far: int, delay: float) -> None:
    directions = {
        near: _Direction(source=near, target=far, delay=delay),
        far: _Direction(source=far, target=near, delay=delay),
    }
    epoll = select.epoll()
    for device in (*directions, sys.stdin.fileno()):
        epoll.register(device, select.EPOLLIN)
    while True:
        left = min(each.send() for each in directions.values())
        for device, _ in epoll.poll(left):
            if device not in directions:
                return
            directions[device].read()


def main() -> None:
    namespace, delay = sys.argv[1], float(sys.argv[2])
    with _devices(namespace) as (near, far):
        print("up", flush=True)
        _carry(near, far, delay)


if __name__ == "__main__":
    main()
