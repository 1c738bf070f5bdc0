"""What connections through a tunnel that carry nothing take of their gateway."""

from __future__ import annotations

import psutil

from benchmarks.recording import QUICK, Recording
from benchmarks.relay.load import Load
from benchmarks.relay.peers import Peer

CONNECTIONS = 50 if QUICK else 1000


async def of_the_gateway(recording: Recording, load: Load, ours: Peer) -> None:
    """Measure the gateway's growth, by memory that is its own alone (USS)."""
    async with ours.opened(load.target) as tunnel:
        gateway = psutil.Process(tunnel.pids[0])
        await load.opens_per_second(tunnel.address, 50, 0.5)  # what it grows by once
        before = gateway.memory_full_info().uss
        async with load.idle(tunnel.address, CONNECTIONS):
            growth = gateway.memory_full_info().uss - before
    scale = 1000 / CONNECTIONS
    name = f"{ours.name}_memory_mb_1000_sessions"
    recording.metrics[name] = round(growth / 1e6 * scale, 2)
