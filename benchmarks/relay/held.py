"""What it brings to hold an open until its first bytes: with 3, 4 and 8 workers, beside none."""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from benchmarks.recording import QUICK, Recording
from benchmarks.relay.load import Load
from benchmarks.relay.ours import Ours
from benchmarks.relay.polls import behind_a_hop
from benchmarks.sessions.program import Program, started
from fairlead_sdk.local_connection import HOLD_SECONDS

ROUNDS = 1 if QUICK else 15
"""With seven the figure moved by a tenth from run to run, more than the hold does."""
_BYTES = 2_000_000 if QUICK else 64_000_000
_OPEN_SECONDS = 0.3 if QUICK else 0.7
_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Way:
    """A client with so many polls at once."""

    workers: int
    is_held: bool


HELD = tuple(Way(workers, is_held=True) for workers in (3, 4, 8))
PLAIN = tuple(Way(workers, is_held=False) for workers in (3, 4))

Rates = dict[Way, list[float]]


@asynccontextmanager
async def _client(ours: Ours, target: int, way: Way) -> AsyncIterator[tuple[Program, str]]:
    settings = (f"{name}={ours.environment[name]}" for name in ("FAIRLEAD_URL", "FAIRLEAD_API_KEY"))
    hold = HOLD_SECONDS if way.is_held else 0.0
    words = (sys.executable, "-m", "benchmarks.relay.held_client", ours.launch_id)
    at = f"tcp:127.0.0.1:{target}"
    async with started("env", *settings, *words, at, str(way.workers), str(hold)) as program:
        yield program, f"127.0.0.1:{await program.hear()}"


def best_of_two(rates: Rates) -> float:
    """Return the median with the hold and 3 workers, over the better one of 3 and 4 without."""
    best = max(statistics.median(rates[way]) for way in PLAIN)
    return statistics.median(rates[HELD[0]]) / best


async def opens(recording: Recording, load: Load) -> None:
    """Measure which opens leave with their first bytes, bytes and opens; all clients in turns."""
    throughput: Rates = defaultdict(list)
    opened: Rates = defaultdict(list)
    async with behind_a_hop(load.target, "python") as (_, ours), AsyncExitStack() as stack:
        clients = {
            way: await stack.enter_async_context(_client(ours, load.target, way))
            for way in (*HELD, *PLAIN)
        }
        for number in range(ROUNDS):
            turns = [*clients.items()]
            # Who comes first in one round is last in the next: what else runs here changes.
            for way, (_, address) in turns if number % 2 else reversed(turns):
                throughput[way].append(_BYTES / await load.up(address, 1, _BYTES))
                opened[way].append(await load.opens_per_second(address, _AT_ONCE, _OPEN_SECONDS))
        for way in HELD:
            count, bundled = json.loads(await clients[way][0].ask("count"))
            recording.metrics[f"hold_bundled_pct_w{way.workers}"] = round(100 * bundled / count, 2)
    bulk, rate = best_of_two(throughput), best_of_two(opened)
    recording.metrics["hold_vs_best_of_two"] = round(min(bulk, rate), 3)
    recording.notes.append(
        f"hold_…: polls of the Python client through the hop, {_AT_ONCE} opens at once;"
        f" hold_vs_best_of_two is the lower one of throughput ({bulk:.3f}) and open rate"
        f" ({rate:.3f}) with the hold and 3 workers, over the better one of 3 and 4 without"
    )
