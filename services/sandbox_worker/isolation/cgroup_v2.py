"""One cgroup per sandbox in the unified hierarchy (kernel: admin-guide/cgroup-v2)."""

from __future__ import annotations

import os
from collections.abc import Set
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


class CgroupV2Tree:
    """Cgroups below `parent`, in which `controllers` are enabled.

    memory.oom.group stays off: the kernel kills the largest process, and the sandbox's init lives
    to tell of it.
    """

    def __init__(self, *, parent: Path, controllers: Set[str]) -> None:
        self._parent = parent
        self._controllers = frozenset(controllers)

    @property
    def controllers(self) -> frozenset[str]:
        return self._controllers

    def make(self, name: str) -> None:
        (self._parent / name).mkdir()

    def limit(self, name: str, limits: Limits) -> None:
        group = self._parent / name
        if "memory" in self._controllers and limits.memory_bytes:
            write(group / "memory.max", str(limits.memory_bytes))
            with suppress(FileNotFoundError):  # a kernel without swap has no such file
                write(group / "memory.swap.max", "0")
        if "pids" in self._controllers and limits.processes:
            write(group / "pids.max", str(limits.processes))
        if "cpu" in self._controllers and limits.cpu_milli:
            write(group / "cpu.max", f"{limits.cpu_milli * _PERIOD // 1000} {_PERIOD}")

    def doors(self, name: str) -> list[int]:
        return [os.open(self._parent / name / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)]

    def counts(self, name: str) -> Counts:
        group = f"{self._parent}/{name}"
        memory = counters(f"{group}/memory.events") if "memory" in self._controllers else {}
        forks = counters(f"{group}/pids.events") if "pids" in self._controllers else {}
        return Counts(memory.get("oom_kill", 0), forks.get("max", 0))

    def kill(self, name: str) -> bool:
        """Write cgroup.kill, which no fork escapes; before Linux 5.14 freeze, kill and thaw."""
        group = self._parent / name
        if not members(group):
            return True
        try:
            write(group / "cgroup.kill", "1")
        except FileNotFoundError:
            write(group / "cgroup.freeze", "1")
            kill_members(group)
            write(group / "cgroup.freeze", "0")
        return False

    def remove(self, name: str) -> None:
        remove_all([self._parent / name])

    def names(self) -> list[str]:
        return sorted(path.name for path in self._parent.iterdir() if path.is_dir())

    def close(self) -> None:
        with suppress(OSError):
            remove_all([self._parent])
