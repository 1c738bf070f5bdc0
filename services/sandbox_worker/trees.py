"""The workspaces that the host's provisioner made."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

from chassis.ids import is_id
from sandbox_worker.errors import WorkspaceNotFound
from sandbox_worker.ports import Layers, Tree


class HostTrees:
    """Finds workspaces below a host root: at `trees/<workspace_id>`, and what they stand on at
    `layers/<workspace_id>`.
    """

    def __init__(self, *, host_root: Path) -> None:
        self._host_root = str(host_root)

    async def find(self, workspace_id: str) -> Tree:
        if not is_id("wsp", workspace_id):
            raise WorkspaceNotFound(workspace_id)
        # Not in a thread: to look at what the provisioner has just written takes less than to hand
        # that over and back.
        found = _find(self._host_root, workspace_id)
        if found is None:
            raise WorkspaceNotFound(workspace_id)
        return found


def _find(host_root: str, workspace_id: str) -> Tree | None:
    # Strings: as paths they take as long as all the rest (a create waits for this).
    path = f"{host_root}/trees/{workspace_id}"
    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            return None
    except OSError:
        return None
    place = f"{host_root}/layers/{workspace_id}"
    try:
        note = json.loads(_content(f"{place}/mount.json"))
        # TypeError for what is no string.
        lower = tuple(map(os.fspath, note["lower"]))
        stores = tuple(map(os.fspath, note.get("stores", ())))
    except FileNotFoundError:
        return Tree(Path(path))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    layers = Layers(lower, f"{place}/upper", f"{place}/work") if lower else None
    return Tree(Path(path), layers, stores)


def _content(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)
