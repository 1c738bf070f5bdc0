"""One cgroup per sandbox in the hierarchies of version 1 (memory, pids, cpu)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from sandbox_worker.isolation.cgroup_files import (
    Counts,
    counters,
    kill_members,
    members,
    remove_all,
    write,
)
from sandbox_worker.sandbox import Limits

_PERIOD = 100_000
"""Microseconds in which the processor time of a sandbox is counted; the kernel's own default."""


class CgroupV1Tree:
    """Directories of the same name in several hierarchies; `parents` is by controller."""

    def __init__(self, *, parents: Mapping[str, Path]) -> None:
        self._parents = {controller: str(parent) for controller, parent in parents.items()}
        # Once each: cpu and pids may be mounted together.
        self._distinct = list(dict.fromkeys(self._parents.values()))

    @property
    def controllers(self) -> frozenset[str]:
        return frozenset(self._parents)

    def make(self, name: str) -> None:
        try:
            for parent in self._distinct:
                os.mkdir(f"{parent}/{name}")
        except OSError:
            with suppress(OSError):
                self.remove(name)
            raise

    def limit(self, name: str, limits: Limits) -> None:
        memory, pids, cpu = (self._group(each, name) for each in ("memory", "pids", "cpu"))
        if memory is not None and limits.memory_bytes:
            write(f"{memory}/memory.limit_in_bytes", str(limits.memory_bytes))
            try:
                write(f"{memory}/memory.memsw.limit_in_bytes", str(limits.memory_bytes))
            except FileNotFoundError:
                write(f"{memory}/memory.swappiness", "0")
        if pids is not None and limits.processes:
            write(f"{pids}/pids.max", str(limits.processes))
        if cpu is not None and limits.cpu_milli:
            write(f"{cpu}/cpu.cfs_quota_us", str(limits.cpu_milli * _PERIOD // 1000))

    def doors(self, name: str) -> list[int]:
        opened: list[int] = []
        try:
            for parent in self._distinct:
                opened.append(os.open(f"{parent}/{name}/tasks", os.O_WRONLY | os.O_CLOEXEC))
        except OSError:
            for door in opened:
                os.close(door)
            raise
        return opened

    def counts(self, name: str) -> Counts:
        memory, pids = self._group("memory", name), self._group("pids", name)
        kills = counters(f"{memory}/memory.oom_control") if memory is not None else {}
        forks = counters(f"{pids}/pids.events") if pids is not None else {}
        return Counts(kills.get("oom_kill", 0), forks.get("max", 0))

    def kill(self, name: str) -> bool:
        """Kill all, once no fork is let through any more.

        The freezer would stop forks as well, but who dies between freezing and thawing leaves
        processes that nothing can kill.
        """
        # A process joins this one first, and is in all of them or is not a program yet.
        group = f"{self._distinct[0]}/{name}"
        if not members(group):
            return True
        pids = self._group("pids", name)
        if pids is not None:
            write(f"{pids}/pids.max", "0")
        kill_members(group)
        return False

    def remove(self, name: str) -> None:
        remove_all([f"{parent}/{name}" for parent in self._distinct])

    def names(self) -> list[str]:
        return sorted(
            {
                entry.name
                for parent in self._distinct
                if os.path.isdir(parent)
                for entry in os.scandir(parent)
                if entry.is_dir()
            }
        )

    def close(self) -> None:
        with suppress(OSError):
            remove_all(self._distinct)

    def _group(self, controller: str, name: str) -> str | None:
        parent = self._parents.get(controller)
        return f"{parent}/{name}" if parent is not None else None
