"""Says whether the disk has room for what is only prepared."""

from __future__ import annotations

import os

from workspace_provisioner.disk.layout import Layout

_LEAST_FREE = 0.1


def has_room(layout: Layout) -> bool:
    """Say whether a tenth of the disk's bytes and of its inodes is free; blocking."""
    found = os.statvfs(layout.root)
    # Some file systems count no inodes.
    inodes = found.f_favail / found.f_files if found.f_files else 1.0
    return min(inodes, found.f_bavail / found.f_blocks) > _LEAST_FREE
