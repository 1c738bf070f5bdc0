"""Bytes through one data channel between two processes: ours and others, in turns."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import shutil
import statistics
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.recording import QUICK, Recording
from benchmarks.sessions.datagrams import lengthened
from benchmarks.sessions.program import Program, started
from benchmarks.workspaces.link import RTT_SECONDS

HERE = Path(__file__).parent
PEERS = Path(
    os.environ.get("FAIRLEAD_BENCH_PEERS")
    or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fairlead-bench-peers"
)
"""Where `make bench-peers` puts what is not a Debian package."""

PIECE = 65_536
ROUNDS = 1 if QUICK else 3
SIZE = (4 << 20) if QUICK else (48 << 20)
SLOW_SIZE = (2 << 20) if QUICK else (8 << 20)
FAR_SIZE = (512 << 10) if QUICK else (6 << 20)
PINGS = 100 if QUICK else 2000
SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Stack:
    """A program for one end of a channel; it is told `offer` or `answer`."""

    name: str
    words: Sequence[str]
    size: int = SIZE


@dataclass(frozen=True, slots=True)
class Measured:
    """One round: megabytes (10^6 bytes) a second, and the median of pings in microseconds."""

    up: float
    down: float
    ping: float
    far: float


def installed(notes: list[str]) -> list[Stack]:
    """Return what can be run here, ours first; a note says what cannot."""
    python = (sys.executable, "-m", "benchmarks.sessions.channel_peer")
    stacks = [Stack("aiortc", (*python, "aiortc"), SLOW_SIZE)]
    if importlib.util.find_spec("fairlead_native") is not None:
        stacks.insert(0, Stack("native", (*python, "native")))
    else:
        notes.append("the native core is not built here: `make native`")
    pion = PEERS / "pion" / "pion"
    if pion.exists():
        stacks.append(Stack("pion", (str(pion),)))
    else:
        notes.append("pion is not built here: `make bench-peers`")
    node = shutil.which("node")
    if node is not None and (PEERS / "node_datachannel" / "node_modules").exists():
        program = str(HERE / "node_datachannel" / "peer.mjs")
        words = (node, program, str(PEERS / "node_datachannel"))
        stacks.append(Stack("node_datachannel", words))
    else:
        notes.append("node-datachannel is not installed here: `make bench-peers`")
    return stacks


@asynccontextmanager
async def connected(stack: Stack, *, is_far: bool) -> AsyncIterator[Program]:
    """Connect two ends, over the link where it is far, and yield the offering one."""
    async with AsyncExitStack() as programs:
        offering = await programs.enter_async_context(started(*stack.words, "offer"))
        answering = await programs.enter_async_context(started(*stack.words, "answer"))
        offer = json.loads(await offering.hear())["sdp"]
        if not is_far:
            answer = json.loads(await answering.ask(json.dumps({"sdp": offer})))["sdp"]
        else:
            pair = await programs.enter_async_context(lengthened(offer, rtt=RTT_SECONDS))
            said = await answering.ask(json.dumps({"sdp": pair.offer}))
            answer = await pair.answer(json.loads(said)["sdp"])
        assert await offering.ask(json.dumps({"sdp": answer})) == "open"
        yield offering


async def measured(stack: Stack) -> Measured:
    """Take one round of everything."""
    async with asyncio.timeout(SECONDS):
        async with connected(stack, is_far=False) as end:
            ping = float(await end.ask(f"ping {PINGS}")) * 1e6
            up = stack.size / float(await end.ask(f"up {stack.size}")) / 1e6
            down = stack.size / float(await end.ask(f"down {stack.size}")) / 1e6
        async with connected(stack, is_far=True) as end:
            far = FAR_SIZE / float(await end.ask(f"up {FAR_SIZE}")) / 1e6
    return Measured(up=up, down=down, ping=ping, far=far)


async def in_turns(recording: Recording) -> None:
    """Measure all stacks, one after the other in each round."""
    rounds: dict[str, list[Measured]] = {}
    stacks = installed(recording.notes)
    for _ in range(ROUNDS):
        for stack in stacks:
            try:
                rounds.setdefault(stack.name, []).append(await measured(stack))
            except (TimeoutError, EOFError) as error:
                recording.notes.append(f"a round of {stack.name} failed: {type(error).__name__}")
    for name in ("native", "aiortc", "pion", "node_datachannel"):
        taken = rounds.get(name, [])
        figures = recording.metrics if name == "native" else recording.peers
        prefix = "" if name == "native" else f"{name}_"
        for figure, kind in (
            (f"{prefix}channel_mb_per_s_up", "up"),
            (f"{prefix}channel_mb_per_s_down", "down"),
            (f"{prefix}channel_mb_per_s_92ms", "far"),
            (f"{name}_ping_64b_p50_us", "ping"),
        ):
            values: list[float] = [getattr(each, kind) for each in taken]
            figures[figure] = round(statistics.median(values), 2) if values else None
