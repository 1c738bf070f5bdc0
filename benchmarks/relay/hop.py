"""A hop between client and gateway that passes only whole requests and whole answers."""

from __future__ import annotations

import asyncio
import json
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.recording import QUICK
from benchmarks.relay.go_program import built
from benchmarks.sessions.program import Program, started

_SOURCE = Path(__file__).parent / "hop"
_CARRY_SECONDS = 0.2 if QUICK else 2.0


@dataclass(frozen=True, slots=True)
class Passed:
    """What has passed since the hop began; bytes are those of its clients' connections."""

    requests: int
    lost: int
    up_bytes: int
    down_bytes: int

    def since(self, before: Passed) -> Passed:
        """Return what has passed since then."""
        return Passed(
            self.requests - before.requests,
            self.lost - before.lost,
            self.up_bytes - before.up_bytes,
            self.down_bytes - before.down_bytes,
        )


class Hop:
    """A running hop at `url`."""

    def __init__(self, *, program: Program, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._program = program

    async def passed(self) -> Passed:
        """Return what has passed until now."""
        return Passed(**json.loads(await self._program.ask("count")))

    async def lose(self, *, requests: float, answers: float) -> None:
        """Lose such shares of them from now on, 0 to 1; every other one without a word."""
        await self._program.ask(f"lose {requests} {answers}")


@asynccontextmanager
async def hop_before(gateway: str) -> AsyncIterator[Hop]:
    """Run a hop before the HTTP server at `host:port`, which need not be there yet."""
    async with built(_SOURCE) as program, started(program, "serve", gateway) as running:
        yield Hop(program=running, port=int(await running.hear()))


async def carried() -> tuple[float, float]:
    """Return how many MB a second a hop can carry up and down, with its client and its server."""
    async with built(_SOURCE) as program:
        process = await asyncio.create_subprocess_exec(
            program, "carry", str(_CARRY_SECONDS), stdout=PIPE
        )
        found = json.loads((await process.communicate())[0])
    return found["up_mb_per_s"], found["down_mb_per_s"]
