"""Finds the only paths in which a layered workspace can differ from a tree, so that git looks at
these instead of at all files: everything that was ever written or removed is in the upper layer, or
came with the workspace.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from workspace_provisioner.disk.layout import Layout
from workspace_provisioner.disk.work import FileWork
from workspace_provisioner.git.command import Git, Place
from workspace_provisioner.trees.layer_files import Layer, read_layer
from workspace_provisioner.trees.layer_views import View, opened_view
from workspace_provisioner.trees.template_records import read_ready
from workspace_provisioner.workspaces import Workspace

MOST_PATHS = 200
"""Git compares each entry of its index with each path; with more it looks at everything."""
_MOST_BYTES = 32 * 1024
# By these, files can differ that nobody touched, or belong to another repository.
_DELICATE = (".git", ".gitattributes", ".gitmodules")


class TouchedPaths:
    """The touched paths of workspaces below a layout's host root."""

    def __init__(self, *, layout: Layout, git: Git, files: FileWork) -> None:
        self._layout = layout
        self._git = git
        self._files = files

    async def find(self, workspace: Workspace, place: Place, tree: str) -> Sequence[str] | None:
        """Return the paths, where a directory stands for all below it; None when they are many,
        or cannot be told. `place` has the objects of `tree`, which may be a commit.
        """
        layer = await self._files.run(read_layer, self._layout.layers / workspace.workspace_id)
        if layer is None or not tree:
            return None
        paths = await self._files.run(_changed_paths, workspace, layer)
        if paths is not None and tree != workspace.commit:
            # A file that came with the tree, and not from below, leaves nothing when it goes.
            found = await self._git.run(
                "diff-tree", "-r", "-z", "--name-only", "--no-renames", workspace.commit, tree,
                place=replace(place, work_tree=None, index=None, overlay=None),
            )  # fmt: skip
            if not found.succeeded:
                return None
            paths += [os.fsdecode(path) for path in found.output.split(b"\0")[:-1]]
        if paths is None or not _is_little(paths := list(dict.fromkeys(paths))):
            return None
        return paths


def _changed_paths(workspace: Workspace, layer: Layer) -> list[str] | None:
    """List where the files can differ from the commit's: in the upper layer, and in the one below
    it when that holds the changes that the workspace was made with.
    """
    found = upper_paths((layer.upper, *layer.lower))
    if found is None or not workspace.changes_tree:
        return found
    template = read_ready(layer.template)
    if template is not None and not template[0].tree:
        return found
    shared = upper_paths(layer.lower)
    return None if shared is None else found + shared


def upper_paths(layers: Sequence[Path]) -> list[str] | None:
    """List what the topmost layer, at `layers[0]`, changes; None when it is much or delicate."""
    found: list[str] = []
    with opened_view(layers) as top:
        return found if _list(top, "", found) else None


def _list(view: View, prefix: str, found: list[str]) -> bool:
    upper = view.descriptors[0]
    for name in os.listdir(upper):
        if name in _DELICATE:
            if prefix or name != ".git":
                return False
            continue
        looked = view.look(name, upper)
        below = view.directory(name) if looked is None or stat.S_ISDIR(looked.st_mode) else None
        try:
            if below is None or len(below.descriptors) == 1:
                # A file, a whiteout, or a directory that hides all that may lie below it.
                found.append(f"{prefix}{name}")
                if len(found) > MOST_PATHS:
                    return False
            elif not _list(below, f"{prefix}{name}/", found):
                return False
        finally:
            if below is not None:
                below.close()
    return True


def _is_little(paths: Sequence[str]) -> bool:
    return len(paths) <= MOST_PATHS and sum(map(len, paths)) <= _MOST_BYTES
