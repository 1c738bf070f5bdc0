"""The directory that holds all cgroups of one worker: locked while it lives, so that others know
which of them are nobody's any more; blocking.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from sandbox_worker.isolation.cgroup_files import members, remove_all

_PREFIX = "fairlead-"
_SECONDS = 2.0
_PAUSE = 0.005


def hold_tree(tree: Path) -> int:
    """Make a directory, unless an earlier life has left it, and lock it; returns the descriptor
    that holds the lock. Raises OSError.
    """
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        # Not Path.mkdir: where it is there, that looks again, and it may be swept in between.
        with suppress(FileExistsError):
            os.mkdir(tree)
        held = _locked(tree)
        if held is not None:
            return held
        time.sleep(_PAUSE)
    raise OSError(errno.EAGAIN, "another worker has these cgroups")


def _locked(tree: Path) -> int | None:
    """Open and lock a directory; None while somebody has it, who may sweep it, and when it was
    swept before it was locked.
    """
    with ExitStack() as stack, suppress(BlockingIOError, FileNotFoundError):
        held = os.open(tree, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        stack.callback(os.close, held)
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(held), os.stat(tree)):
            stack.pop_all()
            return held
    return None


def sweep_beside(tree: Path) -> None:
    """Remove the trees beside this one that no worker holds, when no process is in them: a worker
    was killed, and its host is gone.
    """
    for other in tree.parent.glob(f"{_PREFIX}*"):
        if other == tree:
            continue
        with suppress(OSError), _unheld(other):
            groups = [path for path in other.iterdir() if path.is_dir()]
            if not any(members(group) for group in groups):
                remove_all([*groups, other])


@contextmanager
def _unheld(tree: Path) -> Iterator[None]:
    """Hold somebody's tree; raises BlockingIOError when that lives."""
    descriptor = os.open(tree, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)
