"""Counts what sandboxes could leave behind: processes, mounts, cgroups, Redis keys, descriptors,
files, memory.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path

import psutil
import redis

from fairlead_walls import kernel_calls
from sandbox_worker.isolation.cgroup_files import own_places

_SUBREAPER = 36


def adopt_orphans() -> None:
    """Let what a killed worker leaves become children of this process (prctl(2))."""
    ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0)


def leave_mounts() -> None:
    """Take a mount namespace of this process's own, which sees no later mount of the machine and
    shows it none; whoever may not do so starts nothing that can mount.
    """
    with suppress(PermissionError):
        kernel_calls.unshare(kernel_calls.OWN_MOUNTS)
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)


def below(expected: Sequence[int]) -> list[psutil.Process]:
    """Return the live processes below this one, without the `expected` ones; the dead that nobody
    else waits for are buried.
    """
    found: list[psutil.Process] = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                if process.pid not in expected:
                    found.append(process)
            elif process.ppid() == os.getpid() and process.pid not in expected:
                with suppress(ChildProcessError):
                    os.waitpid(process.pid, os.WNOHANG)
    return found


def kept_programs(worker: int) -> list[psutil.Process]:
    """Return a worker, its spawner and its zygotes."""
    with suppress(psutil.Error):
        process = psutil.Process(worker)
        return [process, *process.children()]
    return []


def named(process: psutil.Process) -> str:
    """Say what this process runs."""
    try:
        return " ".join(process.cmdline())[-160:] or process.name()
    except psutil.Error:
        return "a process that has just ended"


def numbered(names: Iterable[str]) -> frozenset[str]:
    """Tell the same names apart by how often they were seen before."""
    seen: Counter[str] = Counter()
    for name in names:
        seen[name] += 1
    return frozenset(f"{name} ({number})" for name, all_ in seen.items() for number in range(all_))


@dataclass(frozen=True, slots=True)
class Census:
    """What is there at one moment; each field is a set of names."""

    processes: frozenset[str]
    mounts: frozenset[str]
    cgroups: frozenset[str]
    keys: frozenset[str]
    descriptors: frozenset[str]
    files: frozenset[str]

    def more_than(self, before: Census) -> list[str]:
        """Name what is there now and was not before."""
        left: list[str] = []
        for each in fields(self):
            now, then = getattr(self, each.name), getattr(before, each.name)
            left += [f"{each.name}: {name}" for name in sorted(now - then)]
        return left


def take_census(
    *, root: Path, tree: str, worker: int | None, expected: Sequence[int], redis_url: str
) -> Census:
    """Count what is there now; `tree` is the name of the worker's cgroups, `worker` the process
    whose descriptors count, with those of the programs that it keeps.
    """
    with redis.Redis.from_url(redis_url, decode_responses=True) as client:
        keys = frozenset(client.scan_iter("*", count=1000))
    return Census(
        processes=numbered(_unnumbered(named(each)) for each in below(expected)),
        mounts=numbered(_mounts()),
        cgroups=numbered(_cgroups(tree)),
        keys=keys,
        descriptors=numbered(_descriptors(worker)) if worker else frozenset(),
        files=frozenset(_files(root)),
    )


def _unnumbered(name: str) -> str:
    """Leave out what differs from one life of a program to the next."""
    return re.sub(r"\d+", "…", name)


def _mounts() -> Iterator[str]:
    """Name the mounts of this namespace, without their ids."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        yield " ".join(line.split()[3:5])


def _descriptors(worker: int) -> Iterator[str]:
    """Name what a worker and the programs that it started itself hold open, without the user
    namespaces that it keeps for the next sandboxes (256 at most).
    """
    for process in kept_programs(worker):
        with suppress(OSError, psutil.Error):
            program = named(process)
            for entry in Path(f"/proc/{process.pid}/fd").iterdir():
                with suppress(FileNotFoundError):
                    name = os.readlink(entry)
                    if not name.startswith("user:"):
                        yield _unnumbered(f"{name} of {program}")


def _cgroups(tree: str) -> Iterator[str]:
    """Name each cgroup of a worker by its hierarchy; their own names are never used again."""
    places = own_places(
        Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text()
    )
    for place in places:
        with suppress(FileNotFoundError):
            for found in os.scandir(place.path / tree):
                if found.is_dir():
                    yield str(place.path / tree)


def _files(root: Path) -> Iterator[str]:
    """Name the files that no sandbox may leave: all but the content of workspaces, and the records
    that a key was released, which are kept for a time of their own.
    """
    layers = root / "host" / "layers"
    for folder, folders, files in os.walk(root):
        for path in (Path(folder) / name for name in (*folders, *files)):
            is_kept = path.parent.name == "records" or path.is_relative_to(layers)
            if not is_kept and not path.is_socket():
                yield str(path.relative_to(root))
