"""What idle sandboxes cost: memory that is no longer available, and processor time."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import psutil

from benchmarks.recording import QUICK
from benchmarks.sandboxes.wire import Wire, many

COUNT = 20 if QUICK else 200
SECONDS = 2.0 if QUICK else 20.0


async def idle(wire: Wire, worker: int) -> tuple[float, float]:
    """Return the MB of each of many idle sandboxes, and the percentage of one processor that the
    worker and all that is below it use while nothing is asked.
    """
    before = _available()
    made = await many(wire, COUNT)
    await asyncio.sleep(1)  # what their creation still writes and frees
    after = _available()
    used, begun = _seconds(worker), time.perf_counter()
    await asyncio.sleep(SECONDS)
    percent = 100 * (_seconds(worker) - used) / (time.perf_counter() - begun)
    await asyncio.gather(*(wire.release(each) for each in made))
    return (before - after) / COUNT / 1e6, percent


def _available() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    raise AssertionError("the kernel does not tell what is available")


def _seconds(worker: int) -> float:
    """Sum what the scheduler says that a process and all below it have run (nanoseconds, the first
    field of schedstat, proc(5)).
    """
    process = psutil.Process(worker)
    total = 0
    for each in (process, *process.children(recursive=True)):
        for thread in Path(f"/proc/{each.pid}/task").glob("*/schedstat"):
            total += int(thread.read_text().split()[0])
    return total / 1e9
