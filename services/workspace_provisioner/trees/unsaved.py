"""Looks whether a workspace is the only place of some work, before a checked release.

The workspace's git directories are hostile, those of its submodules too: their refs are read as
plain files, and git sees a fresh git directory instead, with links to the workspace's own object
files and the tenant's store below.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from workspace_provisioner.disk.deletion import move_to_trash
from workspace_provisioner.disk.host_root import Owners
from workspace_provisioner.disk.layout import Layout
from workspace_provisioner.disk.work import FileWork
from workspace_provisioner.errors import CheckoutFailed
from workspace_provisioner.git.command import Git, GitTimedOut, Place
from workspace_provisioner.ports import ObjectsLacking
from workspace_provisioner.trees.layer_files import read_layer
from workspace_provisioner.trees.layer_views import opened_view
from workspace_provisioner.trees.refs import RefsUnreadable
from workspace_provisioner.trees.repositories import (
    Parts,
    RepositoryRefs,
    module_directories,
    read_refs,
)
from workspace_provisioner.trees.stand_ins import StandIn, elsewhere_of
from workspace_provisioner.trees.touched import TouchedPaths
from workspace_provisioner.trees.unpushed import GitUnpushed, Subject
from workspace_provisioner.trees.unsaved_submodules import Inspected, UnsavedSubmodules
from workspace_provisioner.workspace_errors import WorkspaceUnpushed
from workspace_provisioner.workspaces import Workspace

log = logging.getLogger(__name__)

_CHECK_SECONDS = 30.0
_GIT: Parts = (".git",)


class Viewed(Protocol):
    """Shows git the files of a workspace; see GitTrees.view."""

    async def view(self, workspace: Workspace) -> Place:
        """Return where git sees the files, with an index of what they were made from."""
        ...


@dataclass(frozen=True, slots=True)
class _Own:
    """What the workspace's own git directory says, and where those of submodules are; `untouched`
    is a layer without any file.
    """

    layers: Sequence[Path]
    refs: RepositoryRefs
    modules: set[Parts]
    untouched: bool


class GitUnsaved:
    """Checks workspaces below a layout's host root."""

    def __init__(
        self, *, layout: Layout, git: Git, files: FileWork, owners: Owners, trees: Viewed
    ) -> None:
        self._layout = layout
        self._files = files
        self._owners = owners
        self._trees = trees
        self._touched = TouchedPaths(layout=layout, git=git, files=files)
        self._unpushed = GitUnpushed(git=git)
        self._submodules = UnsavedSubmodules(
            layout=layout, git=git, files=files, unpushed=self._unpushed
        )

    async def check(self, workspace: Workspace) -> None:
        workspace_id = workspace.workspace_id
        staged = self._layout.staging / self._owners.own_name()
        try:
            async with asyncio.timeout(_CHECK_SECONDS):
                await self._check(workspace, staged)
        except RefsUnreadable as error:
            detail = f"its git directory cannot be read ({error})"
            raise WorkspaceUnpushed(workspace_id, detail) from None
        except (TimeoutError, GitTimedOut):
            raise WorkspaceUnpushed(workspace_id, "it could not be looked at in time") from None
        except (OSError, CheckoutFailed, ObjectsLacking) as error:
            log.warning("workspace not checked", extra={"cause": str(error)})
            raise WorkspaceUnpushed(workspace_id, "it could not be looked at") from None
        finally:
            await self._files.run(move_to_trash, staged, self._layout.trash)

    async def _check(self, workspace: Workspace, staged: Path) -> None:
        own = await self._files.run(self._read, workspace)
        refs, head = own.refs, own.refs.head.commit
        known = await self._files.run(elsewhere_of, self._layout.store(workspace.key))
        alone = refs.alone(known.tips | known.tags | {workspace.commit})
        if not alone and own.untouched and head == workspace.commit:
            return
        view = await self._trees.view(workspace)
        stand_in = StandIn(
            workspace.key.object_format,
            head,
            self._layout.store(workspace.key),
            view.index,
            reads_own=bool(alone) or head not in known.tips | {workspace.commit, ""},
        )
        git_dir = await self._files.run(self._make, staged, own, stand_in)
        place = replace(view, git_dir=git_dir, index=git_dir / "index", objects=None)
        subject = Subject(workspace.workspace_id)
        is_moved = head != workspace.commit or bool(workspace.changes_tree)
        paths = await self._touched.find(workspace, place, head)
        await self._unpushed.check_files(subject, head, place, reads=is_moved, paths=paths)
        await self._unpushed.check_tips(subject, alone, place, known, refs.remotes)
        await self._submodules.check(Inspected(workspace, own.layers, place, staged, own.modules))

    def _read(self, workspace: Workspace) -> _Own:
        layers = self._layers(workspace)
        with opened_view(layers) as top:
            refs = read_refs(top, _GIT, workspace.key.object_format)
            modules = module_directories(top)
        # The upper layer holds all that was ever written, so the files need not be compared.
        untouched = (
            len(layers) > 1
            and not modules
            and not workspace.changes_tree
            and os.listdir(layers[0]) == [".git"]
            and not os.path.lexists(layers[0] / ".git/index")
        )
        return _Own(layers, refs, modules, untouched)

    def _layers(self, workspace: Workspace) -> Sequence[Path]:
        layer = read_layer(self._layout.layers / workspace.workspace_id)
        if layer is not None:
            return (layer.upper, *layer.lower)
        return (self._layout.trees / workspace.workspace_id,)

    def _make(self, staged: Path, own: _Own, stand_in: StandIn) -> Path:
        """Make the git directory that git sees instead of the workspace's own."""
        staged.mkdir(mode=0o700)
        with opened_view(own.layers) as top:
            stand_in.make(staged / "git", top, _GIT)
        return staged / "git"
