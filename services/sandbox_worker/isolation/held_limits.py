"""Who holds which limit of a sandbox: its cgroup, or the kernel for each of its processes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from chassis.packets import number
from sandbox_worker.isolation.cgroups import Cgroup
from sandbox_worker.sandbox import Limits


@dataclass(frozen=True, slots=True)
class HeldLimits:
    """The limits that a sandbox has, of those that were asked for, and what its init is told of
    them: resource limits, and the most bytes of files outside the workspace, where they are the
    sandbox's own; 0 for the default.
    """

    asked: Limits
    limits: Limits
    fields: tuple[bytes, ...]
    file_bytes: int


def hold_limits(limits: Limits, group: Cgroup, *, counts_processes: bool) -> HeldLimits:
    """Divide limits between a cgroup, to which nothing is written yet, and resource limits;
    `counts_processes` says whether the kernel counts the sandbox's alone.
    """
    return _divided(limits, group.controllers, counts_processes)


@lru_cache(maxsize=64)
def _divided(limits: Limits, controllers: frozenset[str], counts_processes: bool) -> HeldLimits:
    in_group = Limits(
        memory_bytes=limits.memory_bytes if "memory" in controllers else 0,
        processes=limits.processes if "pids" in controllers else 0,
        cpu_milli=limits.cpu_milli if "cpu" in controllers else 0,
    )
    each = Limits(
        memory_bytes=0 if in_group.memory_bytes else limits.memory_bytes,
        processes=limits.processes if counts_processes and not in_group.processes else 0,
        open_files=limits.open_files,
        file_bytes=limits.file_bytes,
    )
    values = {
        b"memory": each.memory_bytes,
        b"processes": each.processes,
        b"files": each.open_files,
        b"file_size": each.file_bytes,
    }
    fields = [name + b"=" + number(value) for name, value in values.items() if value]
    # Files in memory do not go when their writer is killed: if they could fill all that a sandbox
    # may hold, the next one to be killed would be its init.
    bounds = [most for most in (limits.disk_bytes, limits.memory_bytes // 2) if most]
    held = each.over(in_group)
    return HeldLimits(limits, held, tuple(fields), min(bounds, default=0))
