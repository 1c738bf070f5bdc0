"""What connections through a tunnel that carry nothing take of their gateway."""

from __future__ import annotations

import statistics

import psutil

from benchmarks.recording import QUICK, Recording
from benchmarks.relay.bulk import ROUNDS
from benchmarks.relay.load import Load
from benchmarks.relay.ours import our_stack, pumps

CONNECTIONS = 50 if QUICK else 1000


async def of_gateways(recording: Recording, load: Load) -> None:
    """Measure how gateways grow that have carried little before; their own memory alone (USS)."""
    for pump in pumps():
        growths = [await _growth(load, pump) for _ in range(ROUNDS)]
        scale = 1000 / CONNECTIONS
        name = f"{pump}_memory_mb_1000_sessions"
        recording.metrics[name] = round(statistics.median(growths) / 1e6 * scale, 2)


async def _growth(load: Load, pump: str) -> int:
    async with (
        our_stack(load.target, pump=pump) as ours,
        ours.peer.opened(load.target) as tunnel,
    ):
        gateway = psutil.Process(tunnel.pids[0])
        await load.opens_per_second(tunnel.address, 50, 0.5)  # what it grows by once
        before: int = gateway.memory_full_info().uss
        async with load.idle(tunnel.address, CONNECTIONS):
            after: int = gateway.memory_full_info().uss
    return after - before
