"""Finding, stopping and killing everything below this process, which must be a child subreaper.

Runs in the spawner and in the inits only: single-threaded, standard library only.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Container

_FREEZE_PASSES = 64


def _children(pid: int) -> list[int]:
    """Read the children of every thread of `pid` (proc(5), /proc/pid/task/tid/children)."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as listing:
                found.extend(int(child) for child in listing.read().split())
    except OSError:
        pass
    return found


def _parent(pid: int) -> int:
    """Return the parent of `pid`, 0 when there is no such process; field 4 of /proc/pid/stat."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return int(stat.read().rpartition(b")")[2].split()[1])
    except OSError:
        return 0


def _children_by_scan() -> dict[int, list[int]]:
    """Read the whole process table; for kernels without CONFIG_PROC_CHILDREN."""
    by_parent: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            by_parent.setdefault(_parent(int(name)), []).append(int(name))
    return by_parent


def below(root: int, spare: Container[int] = ()) -> dict[int, int]:
    """Return pid → parent of all descendants of `root`, leaving out `spare` and what is below
    those.
    """
    scanned: dict[int, list[int]] | None = None
    if not os.path.exists(f"/proc/{root}/task/{root}/children"):
        scanned = _children_by_scan()
    found: dict[int, int] = {}
    parents = [root]
    while parents:
        parent = parents.pop()
        for child in scanned.get(parent, []) if scanned is not None else _children(parent):
            if child not in found and child not in spare:
                found[child] = parent
                parents.append(child)
    return found


def _send(pid: int, number: int, family: Container[int]) -> None:
    """Signal a descendant that may have been reaped by its own parent: a recycled pid is never hit.

    The descriptor pins the process; that its parent is still one of `family` proves that it is the
    one we saw.
    """
    try:
        pinned = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except OSError:
        # Kernels before 5.3 and some sandboxes' own kernels have no pidfd.
        if _parent(pid) in family:
            with contextlib.suppress(OSError):
                os.kill(pid, number)
        return
    try:
        if _parent(pid) in family:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(pinned, number)
    finally:
        os.close(pinned)


def kill_below(spare: Container[int] = ()) -> None:
    """Stop, then kill, every descendant; call again until reaping finds no child left.

    All are stopped first, again and again until a pass finds no new one, so that a fork bomb cannot
    outrun the kill. A daemon that left its session is found too: it is a child of this subreaper or
    of another descendant.
    """
    root = os.getpid()
    stopped: set[int] = set()
    found: dict[int, int] = {}
    for _ in range(_FREEZE_PASSES):
        found = below(root, spare)
        fresh = found.keys() - stopped
        if not fresh:
            break
        family = {root, *found}
        for pid in fresh:
            _send(pid, signal.SIGSTOP, family)
        stopped |= fresh
    family = {root, *found, *stopped}
    for pid in found:
        _send(pid, signal.SIGKILL, family)
