"""The workspaces that the host's provisioner made."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import Executor
from pathlib import Path

from chassis.ids import is_id
from sandbox_worker.errors import WorkspaceNotFound
from sandbox_worker.ports import Layers, Tree


class HostTrees:
    """Finds workspaces below a host root: at `trees/<workspace_id>`, and with their layers at
    `layers/<workspace_id>`.
    """

    def __init__(self, *, host_root: Path, executor: Executor) -> None:
        self._host_root = host_root
        self._executor = executor

    async def find(self, workspace_id: str) -> Tree:
        if not is_id("wsp", workspace_id):
            raise WorkspaceNotFound(workspace_id)
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._executor, _find, self._host_root, workspace_id)
        if found is None:
            raise WorkspaceNotFound(workspace_id)
        return found


def _find(host_root: Path, workspace_id: str) -> Tree | None:
    path = host_root / "trees" / workspace_id
    if not path.is_dir() or path.is_symlink():
        return None
    place = host_root / "layers" / workspace_id
    try:
        mount = json.loads((place / "mount.json").read_bytes())
        lower = tuple(Path(each) for each in mount["lower"])
    except FileNotFoundError:
        return Tree(path)
    except (ValueError, KeyError, TypeError):
        return None
    return Tree(path, Layers(lower, place / "upper", place / "work"))
