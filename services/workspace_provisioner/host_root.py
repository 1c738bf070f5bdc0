"""Takes a host root for this process alone, and counts its starts."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from workspace_provisioner.errors import HostRootInUse
from workspace_provisioner.file_layout import Layout, write_whole


@contextmanager
def taken_host_root(layout: Layout) -> Iterator[int]:
    """Hold the host root for the block and yield its epoch, which grows with each start; raises
    HostRootInUse.
    """
    layout.make()
    descriptor = os.open(layout.root / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HostRootInUse from None
        path = layout.root / ".epoch"
        try:
            epoch = int(path.read_text(encoding="ascii")) + 1
        except (FileNotFoundError, ValueError):
            epoch = 1
        write_whole(path, str(epoch).encode(), durably=True)
        yield epoch
    finally:
        os.close(descriptor)
