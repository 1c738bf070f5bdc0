"""The load tool: a target behind a tunnel and a client before it, which check what they move."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.relay.go_program import built
from benchmarks.sessions.program import Program, started

SOURCE = Path(__file__).parent / "load"


class ContentWrong(Exception):
    """What arrived is not what was sent, or nothing arrived."""


@dataclass(frozen=True, slots=True)
class Move:
    """Bytes that were moved, all of them as they were sent.

    `stall_ms` is the longest time in which a receiver got nothing.
    """

    seconds: float
    stall_ms: float


class Load:
    """The client, and the port of its target."""

    def __init__(self, *, program: Program, target: int) -> None:
        self.target = target
        self._program = program

    async def move(self, way: str, address: str, connections: int, size: int) -> Move:
        """Move `size` bytes over each connection, `up` or `down`.

        An address may be `socks5:HOST:PORT,HOST:PORT`. Raises ContentWrong, as all.
        """
        found = await self._ask(f"{way} {address} {connections} {size}")
        return Move(found["seconds"], found["stall_ms"])

    async def up(self, address: str, connections: int, size: int) -> float:
        """Send `size` bytes over each connection; returns seconds."""
        return (await self.move("up", address, connections, size)).seconds

    async def down(self, address: str, connections: int, size: int) -> float:
        """Fetch `size` bytes over each connection; returns seconds."""
        return (await self.move("down", address, connections, size)).seconds

    async def opens_per_second(self, address: str, workers: int, seconds: float) -> float:
        """Connect, exchange a byte and close; returns how often a second."""
        found = await self._ask(f"open {address} {workers} {seconds}")
        return found["count"] / found["seconds"]

    async def open_p50(self, address: str, seconds: float) -> float:
        """Connect, exchange a byte and close, one after the other; returns microseconds."""
        return (await self._ask(f"open {address} 1 {seconds}"))["p50_us"]

    async def ping(self, address: str, count: int) -> float:
        """Exchange 64 bytes on one connection; returns the median in microseconds."""
        return (await self._ask(f"ping {address} {count}"))["p50_us"]

    @asynccontextmanager
    async def idle(self, address: str, connections: int) -> AsyncIterator[None]:
        """Keep connections open that have exchanged a byte."""
        await self._ask(f"idle {address} {connections}")
        yield
        await self._ask("")

    async def _ask(self, line: str) -> dict[str, float]:
        found = json.loads(await self._program.ask(line))
        if "error" in found:
            raise ContentWrong(f"{line}: {found['error']}")
        return dict(found)


@asynccontextmanager
async def loaded(host: str = "127.0.0.1", *, inside: Sequence[str] = ()) -> AsyncIterator[Load]:
    """Build the tool and run it: the target on `host`, the client by the command `inside`, if one
    is given.
    """
    async with (
        built(SOURCE) as tool,
        started(tool, "serve", host) as target,
        started(*inside, tool, "drive") as client,
    ):
        yield Load(program=client, target=int(await target.hear()))
