"""Finds out by trial which cgroup limits this worker can set, and why not the others; blocking."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fairlead_limits.table import SANDBOX_LIMITS
from sandbox_worker.isolation.cgroup_files import GroupTree, Place, members, own_places, write
from sandbox_worker.isolation.cgroup_trees import hold_tree, sweep_beside
from sandbox_worker.isolation.cgroup_v1 import CgroupV1Tree
from sandbox_worker.isolation.cgroup_v2 import CgroupV2Tree
from sandbox_worker.sandbox import Limits, Wall

CONTROLLERS = ("memory", "pids", "cpu")
_TRIAL = "trial"
_TRIAL_SECONDS = 10.0
_ABSENT = "no cgroup hierarchy with this controller is mounted here"
_JOIN = "import os, sys; [os.write(int(door), b'0') for door in sys.argv[1:]]"
_REASONS = {
    errno.EROFS: "the cgroup file system is mounted read-only",
    errno.EACCES: "this user may not make cgroups here; the service manager can delegate one"
    " (systemd: Delegate=yes)",
    errno.EBUSY: "other processes are in the worker's cgroup; give it one of its own",
}
_REASONS[errno.EPERM] = _REASONS[errno.EACCES]


@dataclass(frozen=True, slots=True)
class Survey:
    """What was found: `tree` is None when nothing can be limited; `locks` are the descriptors that
    keep it from being swept.
    """

    tree: GroupTree | None
    walls: tuple[Wall, ...]
    locks: tuple[int, ...] = ()


def survey(*, name: str, mounts: str = "", memberships: str = "") -> Survey:
    """Make the tree `name` where it can be made, nearest to this process; the two texts are those
    of /proc/self/mountinfo and /proc/self/cgroup by default.
    """
    places = own_places(
        mounts or Path("/proc/self/mountinfo").read_text(),
        memberships or Path("/proc/self/cgroup").read_text(),
    )
    reasons = dict.fromkeys(CONTROLLERS, _ABSENT)
    v1 = {
        controller: place
        for place in places
        for controller in CONTROLLERS
        if controller in place.controllers
    }
    tree: GroupTree | None = None
    locks: list[int] = []
    if set(CONTROLLERS) & set(v1):
        tree = _tried_v1(name, v1, reasons, locks)
    else:
        for place in places:
            if not place.controllers:
                tree = _tried_v2(name, place, reasons, locks)
    held = tree.controllers if tree is not None else frozenset()
    walls = tuple(
        Wall(f"cgroup_{each}", each in held, "" if each in held else reasons[each])
        for each in CONTROLLERS
    )
    return Survey(tree, walls, tuple(locks))


def _tried_v1(
    name: str, places: Mapping[str, Place], reasons: dict[str, str], locks: list[int]
) -> GroupTree | None:
    """Keep those hierarchies in which cgroups can be made."""
    kept: dict[str, Path] = {}
    for controller, place in places.items():
        parent = place.path / name
        try:
            if parent not in kept.values():
                locks.append(hold_tree(parent))
                sweep_beside(parent)
                _make_trial(CgroupV1Tree(parents={controller: parent}))
        except OSError as error:
            with suppress(OSError):
                parent.rmdir()
            reasons[controller] = _reason(error)
        else:
            kept[controller] = parent
    tree = CgroupV1Tree(parents=kept)
    try:
        if tree.controllers:
            _try(tree)
            return tree
    except OSError as error:
        reasons.update(dict.fromkeys(kept, _reason(error)))
    with suppress(OSError):
        tree.remove(_TRIAL)
    tree.close()
    _let_go(locks)
    return None


def _tried_v2(
    name: str, place: Place, reasons: dict[str, str], locks: list[int]
) -> GroupTree | None:
    """Take this process's own cgroup, or the nearest one above that holds more than processes."""
    above = [place.path, *place.path.parents]
    first = True
    for directory in above[: above.index(place.mount) + 1]:
        parent = directory / name
        try:
            enabled = _divide(directory, own=directory == place.path)
            locks.append(hold_tree(parent))
            sweep_beside(parent)
            for controller in enabled:
                write(parent / "cgroup.subtree_control", f"+{controller}")
            tree = CgroupV2Tree(parent=parent, controllers=frozenset(enabled))
            _make_trial(tree)
            _try(tree)
        except OSError as error:
            with suppress(OSError):
                parent.rmdir()
            _let_go(locks)
            if first:
                reasons.update(dict.fromkeys(CONTROLLERS, _reason(error)))
                first = False
        else:
            if enabled:
                return tree
            tree.close()
            _let_go(locks)
    return None


def _let_go(locks: list[int]) -> None:
    for lock in locks:
        os.close(lock)
    locks.clear()


def _divide(directory: Path, *, own: bool) -> Sequence[str]:
    """Return the controllers that children of `directory` get, enabled where that is possible."""
    offered = set((directory / "cgroup.controllers").read_text().split())
    enabled = set((directory / "cgroup.subtree_control").read_text().split())
    wanted = [each for each in CONTROLLERS if each in offered]
    if own and set(wanted) - enabled and (directory / "cgroup.type").exists():
        # A cgroup that gives its children controllers holds no process itself ("no internal
        # process" rule): the worker, when it is alone here, moves down.
        if set(members(directory)) != {os.getpid()}:
            raise OSError(errno.EBUSY, "other processes are in this cgroup")
        leaf = directory / "worker"
        leaf.mkdir(exist_ok=True)
        write(leaf / "cgroup.procs", str(os.getpid()))
    for controller in wanted:
        if controller not in enabled:
            with suppress(OSError):
                write(directory / "cgroup.subtree_control", f"+{controller}")
    enabled = set((directory / "cgroup.subtree_control").read_text().split())
    return [each for each in wanted if each in enabled]


def _make_trial(tree: GroupTree) -> None:
    """Make the cgroup of the trial, also where a worker was killed that tried; raises OSError."""
    with suppress(OSError):
        tree.kill(_TRIAL)
        tree.remove(_TRIAL)
    tree.make(_TRIAL)


def _try(tree: GroupTree) -> None:
    """Limit the trial's cgroup, join it with a process, and remove it; raises OSError."""
    try:
        tree.limit(
            _TRIAL,
            Limits(
                memory_bytes=int(SANDBOX_LIMITS["memory_bytes"].least),
                processes=int(SANDBOX_LIMITS["processes"].least),
                cpu_milli=1000,
            ),
        )
        tree.counts(_TRIAL)
        doors = tree.doors(_TRIAL)
        try:
            ended = subprocess.run(  # noqa: S603 - this interpreter, fixed text
                [sys.executable, "-ISc", _JOIN, *map(str, doors)],
                pass_fds=doors,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_TRIAL_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise OSError(errno.ETIMEDOUT, "a process does not get into a cgroup") from error
        finally:
            for door in doors:
                os.close(door)
        if ended.returncode != 0:
            raise OSError(errno.EACCES, "a process may not join a cgroup")
    finally:
        with suppress(OSError):
            tree.kill(_TRIAL)
            tree.remove(_TRIAL)


def _reason(error: OSError) -> str:
    return _REASONS.get(error.errno or 0) or error.strerror or "cgroups cannot be made here"
