"""Processes of sandboxes of an earlier life: none, unless worker, spawner and init were all killed
at once.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Set
from contextlib import suppress
from pathlib import Path

_VARIABLE = b"FAIRLEAD_SANDBOX_ID="


def kill_strays(sandbox_ids: Set[str]) -> None:
    """Kill every process that carries one of these ids in its environment; blocking."""
    for path in Path("/proc").iterdir():
        if not path.name.isdigit() or int(path.name) == os.getpid():
            continue
        with suppress(OSError):
            pinned = os.pidfd_open(int(path.name))
            try:
                for entry in (path / "environ").read_bytes().split(b"\0"):
                    if not entry.startswith(_VARIABLE):
                        continue
                    if os.fsdecode(entry.removeprefix(_VARIABLE)) in sandbox_ids:
                        signal.pidfd_send_signal(pinned, signal.SIGKILL)
            finally:
                os.close(pinned)
