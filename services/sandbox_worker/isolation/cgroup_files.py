"""The small files of a cgroup, and where this process is in the mounted hierarchies; blocking."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from sandbox_worker.sandbox import Limits

_LONGEST_COUNTERS = 4096


@dataclass(frozen=True, slots=True)
class Counts:
    """How often the kernel killed a process of a cgroup for memory, and refused it a fork."""

    memory_kills: int = 0
    refused_forks: int = 0


@dataclass(frozen=True, slots=True)
class Place:
    """Where this process is in one hierarchy; `controllers` is empty for version 2."""

    controllers: frozenset[str]
    mount: Path
    path: Path


class GroupTree(Protocol):
    """The directory (or one per hierarchy) that holds one cgroup per sandbox."""

    @property
    def controllers(self) -> frozenset[str]:
        """Which of memory, pids and cpu are limited here."""
        ...

    def make(self, name: str) -> None:
        """Make a cgroup; raises OSError, and leaves nothing then."""
        ...

    def limit(self, name: str, limits: Limits) -> None:
        """Write those limits that are not 0; raises OSError."""
        ...

    def doors(self, name: str) -> list[int]:
        """Open what a process joins by (cgroup_join.join); raises OSError."""
        ...

    def counts(self, name: str) -> Counts:
        """Read the counters; raises OSError."""
        ...

    def kill(self, name: str) -> bool:
        """Kill every process in it such that none can fork on; return whether it was empty."""
        ...

    def remove(self, name: str) -> None:
        """Remove a cgroup that is empty; again is harmless. Raises OSError."""
        ...

    def names(self) -> list[str]:
        """Return the cgroups that are there."""
        ...

    def close(self) -> None:
        """Remove the tree itself, when it is empty."""
        ...


def own_places(mounts: str, memberships: str) -> list[Place]:
    """Return this process's places from the texts of mountinfo and cgroup (proc(5), cgroups(7));
    what is not visible from here is left out.
    """
    own: dict[frozenset[str], str] = {}
    for line in memberships.splitlines():
        _, controllers, path = line.split(":", 2)
        own[frozenset(controllers.split(",")) - {""}] = path
    places: list[Place] = []
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        root, mount = before.split()[3:5]
        kind, _, options = after.split()[:3]
        if kind == "cgroup2":
            key: frozenset[str] = frozenset()
        elif kind == "cgroup":
            offered = set(options.split(","))
            key = next((each for each in own if each and each <= offered), frozenset({kind}))
        else:
            continue
        member = own.get(key)
        if member is not None and PurePosixPath(member).is_relative_to(root):
            below = PurePosixPath(member).relative_to(root)
            places.append(Place(key, Path(mount), Path(mount) / below))
    return places


def write(path: Path | str, text: str) -> None:
    """Write a setting in one call; raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def counters(path: str) -> Mapping[str, int]:
    """Read lines of a name and a number; raises OSError.

    Asked for each execution: by way of pathlib and text files it takes three times as long.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = os.read(descriptor, _LONGEST_COUNTERS)
    finally:
        os.close(descriptor)
    pairs = (line.split() for line in content.decode("ascii").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}


def members(group: Path | str) -> list[int]:
    """Return the processes of a cgroup, in the numbers of this pid namespace; none when it is
    gone.
    """
    try:
        with open(f"{group}/cgroup.procs", "rb", buffering=0) as file:
            return [int(line) for line in file.readall().split()]
    except FileNotFoundError:
        return []


def kill_members(group: Path | str) -> None:
    """Send SIGKILL to every process of a cgroup, and to nobody who has one's number since."""
    with ExitStack() as stack:
        pinned: dict[int, int] = {}
        for pid in members(group):
            with suppress(OSError):
                pinned[pid] = os.pidfd_open(pid)
                stack.callback(os.close, pinned[pid])
        for pid in members(group):
            if pid in pinned:
                with suppress(OSError):
                    signal.pidfd_send_signal(pinned[pid], signal.SIGKILL)


def remove_all(groups: Sequence[Path | str]) -> None:
    """Remove empty cgroups; raises OSError of the first that stays."""
    for group in groups:
        with suppress(FileNotFoundError):
            os.rmdir(group)
