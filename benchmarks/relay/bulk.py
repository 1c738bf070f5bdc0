"""Bytes, opens and pings through each tunnel in turns, and ours beside the best of the others."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import psutil

from benchmarks.recording import QUICK, Recording
from benchmarks.relay.load import Load
from benchmarks.relay.peers import Peer, Tunnel

ROUNDS = 1 if QUICK else 3
BULK = ("up_1", "up_4", "down_1", "down_4")
OPENS = ("opens_per_s_seq", "opens_per_s_50")
PING = "ping_p50_us"
CPU = "cpu_s_per_gib"
BARE = "direct"
OUTRUN = ("chisel", "frp_tls", "rathole_noise")
"""Those that ours are to be well ahead of."""

_FIRST_BYTES = 4_000_000 if QUICK else 64_000_000
_SECONDS = 0.1 if QUICK else 1.5
_MOST_BYTES = 4_000_000_000
_OPEN_SECONDS = 0.3 if QUICK else 2.0
_PINGS = 200 if QUICK else 5000
_GIB = 1 << 30

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Measured:
    """The medians of one tunnel."""

    peer: Peer
    figures: Figures


async def measure(load: Load, peers: Sequence[Peer]) -> list[Measured]:
    """Measure all in turns, so that what else runs here hurts each of them alike."""
    found: dict[str, list[Figures]] = {peer.name: [] for peer in peers}
    for _ in range(ROUNDS):
        for peer in peers:
            async with peer.opened(load.target) as tunnel:
                found[peer.name].append(await _round(load, tunnel))
    return [Measured(peer, _medians(found[peer.name])) for peer in peers]


async def rate(load: Load, way: str, address: str, connections: int) -> tuple[float, int]:
    """Move bytes one way for a while; returns MB a second, and how many bytes were moved."""
    few = _FIRST_BYTES // connections
    seconds = (await load.move(way, address, connections, few)).seconds
    wanted = min(_MOST_BYTES, int(_FIRST_BYTES / seconds * _SECONDS)) // connections
    seconds = (await load.move(way, address, connections, wanted)).seconds
    return wanted * connections / seconds / 1e6, (wanted + few) * connections


async def _round(load: Load, tunnel: Tunnel) -> Figures:
    figures: Figures = {}
    moved, before = 0, _cpu_seconds(tunnel.pids)
    for name in BULK:
        way, connections = name.split("_")
        figures[name], count = await rate(load, way, tunnel.address, int(connections))
        moved += count
    if tunnel.pids:
        figures[CPU] = (_cpu_seconds(tunnel.pids) - before) / (moved / _GIB)
    for name, workers in zip(OPENS, (1, 50), strict=True):
        figures[name] = await load.opens_per_second(tunnel.address, workers, _OPEN_SECONDS)
    figures[PING] = await load.ping(tunnel.address, _PINGS)
    return figures


def _cpu_seconds(pids: Iterable[int]) -> float:
    """Return the processor time of processes and of what they have forked."""
    total = 0.0
    for pid in pids:
        times = psutil.Process(pid).cpu_times()
        total += times.user + times.system + times.children_user + times.children_system
    return total


def _medians(rounds: Sequence[Figures]) -> Figures:
    return {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}


def report(recording: Recording, measured: Sequence[Measured], ours: Sequence[str]) -> None:
    """Write the figures of all, and the ratios of ours to the best of the others.

    Bytes and pings are compared with encrypted ones, opens with all but the bare loopback.
    """
    others = {each.peer: each.figures for each in measured if each.peer.name not in ours}
    for each in measured:
        place = recording.metrics if each.peer.name in ours else recording.peers
        for name, value in each.figures.items():
            place[f"{each.peer.name}_{name}"] = round(value, 2)
    if not any(peer.is_encrypted for peer in others):
        recording.notes.append("no encrypted peer is here: `make bench-peers`")
        return
    for each in measured:
        if each.peer.name in ours:
            _compare(recording, each, others)


def _compare(recording: Recording, mine: Measured, others: Mapping[Peer, Figures]) -> None:
    name, figures = mine.peer.name, mine.figures
    sealed = {peer: each for peer, each in others.items() if peer.is_encrypted}
    bulk = [figures[way] / max(other[way] for other in sealed.values()) for way in BULK]
    recording.metrics[f"{name}_vs_best_peer_min"] = round(min(bulk), 3)
    recording.metrics[f"{name}_vs_best_peer_median"] = round(statistics.median(bulk), 3)
    outrun = [each for peer, each in sealed.items() if peer.name in OUTRUN]
    if outrun:
        least = min(figures[way] / other[way] for other in outrun for way in BULK)
        recording.metrics[f"{name}_vs_chisel_frp_rathole_min"] = round(least, 3)
    for way in OPENS:
        best = max(each[way] for peer, each in others.items() if peer.name != BARE)
        recording.metrics[f"{name}_{way}_vs_best_peer"] = round(figures[way] / best, 3)
    best = min(other[PING] for other in sealed.values())
    recording.metrics[f"{name}_ping_vs_best_peer"] = round(figures[PING] / best, 3)
