"""A UDP forwarder that loses datagrams, stands still or follows a peer to another port."""

from __future__ import annotations

import asyncio
import random
import re


class LossyRoad(asyncio.DatagramProtocol):
    """Stands before one candidate: what comes from the other side goes to it, and back.

    Every peer of it gets a port of its own towards the candidate, as behind a NAT.
    """

    def __init__(self, *, target: tuple[str, int], loss: float, seed: int) -> None:
        self._target = target
        self._loss = loss
        self._random = random.Random(seed)  # noqa: S311  which datagrams are lost is no secret
        self._ways: dict[tuple[str, int], asyncio.DatagramTransport] = {}
        self._opening: dict[tuple[str, int], list[bytes]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._front: asyncio.DatagramTransport | None = None
        self.is_closed = False
        self.lost = 0
        self.passed = 0

    @classmethod
    async def before(cls, line: str, *, loss: float = 0.0, seed: int = 1) -> tuple[LossyRoad, str]:
        """Return a road to a candidate and the line that leads peers to it."""
        words = line.split()
        road = cls(target=(words[4], int(words[5])), loss=loss, seed=seed)
        loop = asyncio.get_running_loop()
        front, _ = await loop.create_datagram_endpoint(lambda: road, local_addr=("127.0.0.1", 0))
        road._front = front
        port = front.get_extra_info("sockname")[1]
        found = re.sub(rf"^(.*) {words[4]} {words[5]} typ", rf"\1 127.0.0.1 {port} typ", line)
        return road, found

    def close(self) -> None:
        """Let nothing through from now on, and free the ports."""
        self.is_closed = True
        for way in (self._front, *self._ways.values()):
            if way is not None:
                way.close()

    def passes(self) -> bool:
        """Say whether the next datagram gets through."""
        if self.is_closed or self._random.random() < self._loss:
            self.lost += 1
            return False
        self.passed += 1
        return True

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        if not self.passes():
            return
        if addr in self._ways:
            self._ways[addr].sendto(data)
        elif addr in self._opening:
            self._opening[addr].append(data)
        else:
            self._opening[addr] = [data]
            task = asyncio.ensure_future(self._open(addr))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _open(self, peer: tuple[str, int]) -> None:
        loop = asyncio.get_running_loop()
        way, _ = await loop.create_datagram_endpoint(
            lambda: _WayBack(self, peer), remote_addr=self._target
        )
        self._ways[peer] = way
        for content in self._opening.pop(peer):
            way.sendto(content)

    def give_back(self, content: bytes, peer: tuple[str, int]) -> None:
        """Send what the candidate answered to the peer, unless it is lost."""
        if self.passes() and self._front is not None:
            self._front.sendto(content, peer)


class _WayBack(asyncio.DatagramProtocol):
    def __init__(self, road: LossyRoad, peer: tuple[str, int]) -> None:
        self._road = road
        self._peer = peer

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._road.give_back(data, self._peer)
