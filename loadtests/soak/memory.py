"""Whether a worker, its spawner or a zygote grows while it is used in the same way all the time."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from contextlib import suppress

import psutil

from loadtests.soak.census import named

LEAST_SAMPLES = 120
"""Fewer, at four a second, say nothing about memory."""

MOST_GROWTH = 4 * 1024 * 1024
"""Bytes that a program may grow between the second and the last quarter of its samples."""


class MemoryGrowth:
    """Samples of resident memory, by process."""

    def __init__(self) -> None:
        self._samples: dict[psutil.Process, list[int]] = {}

    def look(self, processes: Iterable[psutil.Process]) -> None:
        """Take one sample of each."""
        for process in processes:
            with suppress(psutil.Error):
                self._samples.setdefault(process, []).append(process.memory_info().rss)

    def grown(self) -> Sequence[str]:
        """Print how those that lived long enough went, and name those that grew too much."""
        found: list[str] = []
        for process, samples in self._samples.items():
            if len(samples) < LEAST_SAMPLES:
                continue
            quarter = len(samples) // 4
            early = statistics.median(samples[quarter : 2 * quarter])
            late = statistics.median(samples[-quarter:])
            print(f"memory: {early / 1e6:.1f} MB, then {late / 1e6:.1f} MB: {named(process)}")
            if late - early > MOST_GROWTH:
                found.append(f"{named(process)} grew by {late - early:.0f} bytes")
        return found
