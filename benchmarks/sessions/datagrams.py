"""A wide-area link for one association: a process that forwards UDP both ways and holds every
datagram back for half a round trip. It loses nothing but what does not fit into the sockets.

The two peers are led through it by their descriptions: each learns of one candidate, the link's.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from benchmarks.sessions.program import Program, started

_BUFFER_BYTES = 32 << 20
_LARGEST_DATAGRAM = 65_536


@dataclass(frozen=True, slots=True)
class FarPair:
    """A link between two peers; `offer` is for the one that answers."""

    program: Program
    offer: str
    host: str
    answerers_port: int

    async def answer(self, answer: str) -> str:
        """Tell the link where the answering peer is, and return the answer for the offering one."""
        await self.program.tell(_place(answer))
        return _moved(answer, self.host, self.answerers_port)


@asynccontextmanager
async def lengthened(offer: str, *, rtt: float) -> AsyncIterator[FarPair]:
    """Run a link between the peer of an offer and the one that will answer."""
    host = _place(offer).split()[0]
    words = ("-m", "benchmarks.sessions.datagrams", str(rtt / 2), host)
    async with started(sys.executable, *words) as program:
        offerers_port, answerers_port = map(int, (await program.hear()).split())
        await program.tell(_place(offer))
        yield FarPair(program, _moved(offer, host, offerers_port), host, answerers_port)


def _place(description: str) -> str:
    """Return address and port of the best candidate that this machine has over UDP and IPv4."""
    candidates = [
        line.split() for line in description.splitlines() if line.startswith("a=candidate:")
    ]
    found = [each for each in candidates if each[2].lower() == "udp" and ":" not in each[4]]
    best = max(found, key=lambda each: int(each[3]))
    return f"{best[4]} {best[5]}"


def _moved(description: str, host: str, port: int) -> str:
    """Leave one candidate in a description."""
    lines = [
        line
        for line in description.split("\r\n")
        if not line.startswith(("a=candidate:", "a=end-of-candidates"))
    ]
    while lines and not lines[-1]:
        lines.pop()
    candidate = f"a=candidate:1 1 udp 2130706431 {host} {port} typ host"
    return "\r\n".join([*lines, candidate, "a=end-of-candidates", ""])


class _Direction:
    """Datagrams of one peer: received at `near`, sent on from `far`."""

    def __init__(self, *, near: socket.socket, far: socket.socket, delay: float) -> None:
        self._near = near
        self._far = far
        self._delay = delay
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._some = threading.Semaphore(0)
        self.place: tuple[str, int] | None = None
        """Where the other peer is."""

    def take(self) -> None:
        """Receive for ever."""
        while True:
            datagram = self._near.recv(_LARGEST_DATAGRAM)
            self._waiting.append((time.monotonic() + self._delay, datagram))
            self._some.release()

    def give(self) -> None:
        """Send on, each datagram when its time has come."""
        while True:
            self._some.acquire()
            due, datagram = self._waiting.popleft()
            rest = due - time.monotonic()
            if rest > 0:
                time.sleep(rest)
            if self.place is not None:
                self._far.sendto(datagram, self.place)


def _bound(host: str) -> socket.socket:
    made = socket.socket(type=socket.SOCK_DGRAM)
    for name in (socket.SO_RCVBUF, socket.SO_SNDBUF):
        made.setsockopt(socket.SOL_SOCKET, name, _BUFFER_BYTES)
    made.bind((host, 0))
    return made


def main(delay: float, host: str) -> None:
    # The answering peer sees the offering one at the first, the other way round at the second.
    first, second = _bound(host), _bound(host)
    to_answerer = _Direction(near=second, far=first, delay=delay)
    to_offerer = _Direction(near=first, far=second, delay=delay)
    for direction in (to_answerer, to_offerer):
        for work in (direction.take, direction.give):
            threading.Thread(target=work, daemon=True).start()
    sys.stdout.write(f"{first.getsockname()[1]} {second.getsockname()[1]}\n")
    sys.stdout.flush()
    for direction in (to_offerer, to_answerer):  # the offer comes first
        host, port = sys.stdin.readline().split()
        direction.place = (host, int(port))
    sys.stdin.read()


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2])
