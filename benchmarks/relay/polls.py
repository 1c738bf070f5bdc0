"""Our tunnels through a hop that buffers whole bodies, so that only polls pass."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.recording import QUICK, Recording
from benchmarks.relay.bulk import rate
from benchmarks.relay.hop import Hop, carried, hop_before
from benchmarks.relay.load import Load
from benchmarks.relay.ours import Ours, our_stack, pumps
from benchmarks.relay.peers import free_port

ROUNDS = 1 if QUICK else 3
_FIRST_SECONDS = 0.3 if QUICK else 2.0
_LOSSY_BYTES = 2_000_000 if QUICK else 64_000_000
_LOST_SHARE = 0.1


@asynccontextmanager
async def behind_a_hop(target: int, pump: str) -> AsyncIterator[tuple[Hop, Ours]]:
    """Run a stack that clients reach only through a hop."""
    http = f"127.0.0.1:{free_port()}"
    async with hop_before(http) as hop:
        settings = {"FAIRLEAD_RELAY_HTTP_BIND": http, "FAIRLEAD_RELAY_PUBLIC_URLS": hop.url}
        async with our_stack(target, pump=pump, **settings) as ours:
            yield hop, ours


async def _measured(load: Load, hop: Hop, address: str) -> dict[str, float]:
    figures = {}
    figures["ttfb_p50_ms"] = await load.open_p50(address, _FIRST_SECONDS) / 1000
    figures["polls_up_1"] = (await rate(load, "up", address, 1))[0]
    before = await hop.passed()
    figures["polls_down_1"] = (await rate(load, "down", address, 1))[0]
    passed = (await hop.passed()).since(before)
    figures["download_upload_bytes_ratio"] = passed.up_bytes / passed.down_bytes
    return figures


async def _lossy(load: Load, hop: Hop, address: str) -> dict[str, float]:
    """Move bytes each way while the hop loses polls; ContentWrong when they are not what came."""
    await hop.lose(requests=_LOST_SHARE, answers=_LOST_SHARE)
    moves = [await load.move(way, address, 1, _LOSSY_BYTES) for way in ("up", "down")]
    await hop.lose(requests=0, answers=0)
    return {
        "loss_mb_per_s": min(_LOSSY_BYTES / move.seconds / 1e6 for move in moves),
        "loss_stall_max_ms": max(move.stall_ms for move in moves),
    }


async def through_the_hop(recording: Recording, load: Load) -> None:
    """Measure bytes and first bytes through the hop, and what it is like when it loses some."""
    pump = pumps()[0]
    found: dict[str, list[float]] = defaultdict(list)
    async with behind_a_hop(load.target, pump) as (hop, ours):
        for _ in range(ROUNDS):
            async with ours.peer.opened(load.target) as tunnel:
                whole = await _measured(load, hop, tunnel.address)
                for name, value in (whole | await _lossy(load, hop, tunnel.address)).items():
                    found[name].append(value)
        lost = (await hop.passed()).lost
    for name, values in found.items():
        figure = max(values) if name.endswith("_max_ms") else statistics.median(values)
        recording.metrics[name] = round(figure, 4 if name.endswith("_ratio") else 2)
    up, down = await carried()
    recording.notes.append(
        f"polls_…, loss_… and ttfb_p50_ms are those of the {pump} pump, through a hop that reads"
        f" whole requests and whole answers; alone it carries {up:.0f} MB/s up and {down:.0f} down"
    )
    recording.notes.append(
        f"loss_mb_per_s is that of the slower direction; {lost} requests and answers were lost in"
        " all, half of them without a word; loss_stall_max_ms is the longest of all rounds"
    )
