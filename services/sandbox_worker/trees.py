"""The workspaces that the host's provisioner made, and paths inside them."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import Executor
from pathlib import Path

from chassis.ids import is_id
from sandbox_worker.errors import WorkspaceNotFound
from sandbox_worker.execution_errors import DirectoryNotFound, DirectoryOutside


class HostTrees:
    """Finds workspaces at `<root>/<workspace_id>`."""

    def __init__(self, *, root: Path, executor: Executor) -> None:
        self._root = root
        self._executor = executor

    async def find(self, workspace_id: str) -> Path:
        if not is_id("wsp", workspace_id):
            raise WorkspaceNotFound(workspace_id)
        path = self._root / workspace_id
        loop = asyncio.get_running_loop()
        if not await loop.run_in_executor(self._executor, _is_real_directory, path):
            raise WorkspaceNotFound(workspace_id)
        return path


def working_directory(root: Path, directory: str) -> Path:
    """Return `directory` below `root` with links resolved; blocking.

    Raises DirectoryOutside, DirectoryNotFound. A program in the workspace can swap a link
    afterwards: walls that must hold against that are the isolation's.
    """
    if not directory:
        return root
    if os.path.isabs(directory):
        raise DirectoryOutside(directory)
    top = os.path.realpath(root)
    path = os.path.realpath(os.path.join(top, directory))
    if path != top and not path.startswith(top + os.sep):
        raise DirectoryOutside(directory)
    if not os.path.isdir(path):
        raise DirectoryNotFound(directory)
    return Path(path)


def _is_real_directory(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()
