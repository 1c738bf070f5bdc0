"""Our tunnels on a link of 92 ms, beside TCP on the same link."""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.local_stack import Stack, local_stack
from benchmarks.recording import QUICK, Recording
from benchmarks.relay.far_link import FarLink, far_link
from benchmarks.relay.load import Load, loaded
from benchmarks.relay.ours import pumps
from benchmarks.relay.peers import free_port
from benchmarks.sessions.program import started
from benchmarks.sessions.whole import held_launch

ROUNDS = 1 if QUICK else 5
_BYTES = 1_000_000 if QUICK else 8_000_000
_OPEN_SECONDS = 1.0 if QUICK else 4.0
_PINGS = 5


@asynccontextmanager
async def _forward(link: FarLink, stack: Stack, launch_id: str, target: int) -> AsyncIterator[str]:
    """Forward a port beyond the link to the target on this side; yields the address there."""
    settings = (f"FAIRLEAD_URL={stack.url}", f"FAIRLEAD_API_KEY={stack.api_key}")
    verb = ("-m", "fairlead_sdk", "forward", "-o", "json", launch_id, f"{link.near}:{target}")
    async with started(*link.inside, "env", *settings, sys.executable, *verb) as program:
        listening = json.loads(await program.hear())
        yield f"{listening['host']}:{listening['port']}"


async def _measure(
    recording: Recording, load: Load, link: FarLink, stack: Stack, launch_id: str
) -> None:
    direct = f"{link.near}:{load.target}"
    rtt = await load.ping(direct, _PINGS) / 1e6
    plain, cold, warm, opens, first = [], [], [], [], []
    for _ in range(ROUNDS):
        plain.append(await load.up(direct, 1, _BYTES))
        async with _forward(link, stack, launch_id, load.target) as address:
            cold.append(await load.up(address, 1, _BYTES))
            warm.append(await load.up(address, 1, _BYTES))
            opens.append(await load.opens_per_second(address, 1, _OPEN_SECONDS))
            first.append(await load.open_p50(address, _OPEN_SECONDS) / 1e6)
    tcp = statistics.median(plain)
    metrics = recording.metrics
    metrics["link_rtt_ms"] = round(rtt * 1000, 2)
    metrics["opens_per_s_92ms"] = round(statistics.median(opens), 2)
    metrics["ttfb_92ms_over_rtt"] = round(statistics.median(first) / rtt, 3)
    metrics["up_8mb_92ms_cold_vs_tcp"] = round(statistics.median(cold) / tcp, 3)
    metrics["up_8mb_92ms_warm_vs_tcp"] = round(statistics.median(warm) / tcp, 3)
    recording.peers["direct_up_8mb_92ms_s"] = round(tcp, 3)
    recording.peers["direct_opens_per_s_92ms"] = round(
        await load.opens_per_second(direct, 1, _OPEN_SECONDS), 2
    )


async def over_the_link(recording: Recording) -> None:
    """Measure opens, first bytes and 8 MB through a carrier that is new, and one that is warm."""
    if os.geteuid():
        recording.notes.append("the link of 92 ms needs root, and was left out")
        return
    async with far_link() as link, loaded(link.near, inside=link.inside) as load:
        binds = {
            "FAIRLEAD_SIGNALLING_HTTP_BIND": f"{link.near}:{free_port()}",
            "FAIRLEAD_RELAY_TCP_BIND": f"{link.near}:{free_port()}",
            "FAIRLEAD_RELAY_TARGETS": f"{link.near}:{load.target}",
        }
        with local_stack(**binds) as stack:
            async with held_launch(stack) as launch:
                await _measure(recording, load, link, stack, launch.launch_id)
    recording.notes.append(
        "link_rtt_ms: two TUN devices and a program that holds each packet back for 46 ms; REST,"
        " carriers and TCP's own connections (direct_…) all go over it; ours are those of the"
        f" {pumps()[0]} pump"
    )
