"""Says whether the disk has room for what is only prepared."""

from __future__ import annotations

import os

from workspace_provisioner.disk.layout import Layout

_LEAST_FREE = 0.1


def has_room(layout: Layout) -> bool:
    """Say whether a tenth of the disk's bytes and of its inodes is free; blocking.

    Like df(1), it leaves out of account what the file system reserves, which may be most of it.
    """
    found = os.statvfs(layout.root)
    used, used_inodes = found.f_blocks - found.f_bfree, found.f_files - found.f_ffree
    free = _share(found.f_bavail, used), _share(found.f_favail, used_inodes)
    return min(free) > _LEAST_FREE


def _share(free: int, used: int) -> float:
    # Some file systems count no inodes.
    return free / (free + used) if free + used else 1.0
