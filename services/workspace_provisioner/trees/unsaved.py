"""Looks whether a workspace is the only place of some work, before a checked release.

The workspace's git directory is hostile: its refs are read as plain files, and git sees a fresh git
directory instead, with links to the workspace's own object files and the tenant's store below.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from workspace_provisioner.disk.deletion import move_to_trash
from workspace_provisioner.disk.host_root import Owners
from workspace_provisioner.disk.layout import Layout
from workspace_provisioner.disk.work import FileWork
from workspace_provisioner.errors import CheckoutFailed
from workspace_provisioner.git.command import Git, GitTimedOut, Place
from workspace_provisioner.git.directory import make_git_directory
from workspace_provisioner.ports import ObjectsLacking
from workspace_provisioner.store.files import TIPS, read_pins, read_records
from workspace_provisioner.trees.layer_files import read_layer
from workspace_provisioner.trees.layer_views import View, opened_view
from workspace_provisioner.trees.refs import GitRefs, Head, RefsUnreadable
from workspace_provisioner.workspace_errors import WorkspaceDirty, WorkspaceUnpushed
from workspace_provisioner.workspaces import Workspace

log = logging.getLogger(__name__)

_CHECK_SECONDS = 30.0
_MOST_TIPS = 100
_MOST_OBJECTS = 50_000
_MOST_OUTPUT = 64 * 1024 * 1024
_OWN_INDEX = "index.own"
_DEFAULT_BRANCHES = ("refs/heads/main", "refs/heads/master")


class Viewed(Protocol):
    """Shows git the files of a workspace; see GitTrees.view."""

    async def view(self, workspace: Workspace) -> Place:
        """Return where git sees the files, with an index of what they were made from."""
        ...


@dataclass(frozen=True, slots=True)
class _Refs:
    """What the workspace's git directory says; `untouched` is a layer without any file."""

    head: Head
    tips: Mapping[str, str]
    remotes: frozenset[str]
    untouched: bool


@dataclass(frozen=True, slots=True)
class _Known:
    """Commits that are elsewhere too: the store's durable tips, and the default branch's."""

    tips: frozenset[str]
    default: str


class GitUnsaved:
    """Checks workspaces below a layout's host root."""

    def __init__(
        self, *, layout: Layout, git: Git, files: FileWork, owners: Owners, trees: Viewed
    ) -> None:
        self._layout = layout
        self._git = git
        self._files = files
        self._owners = owners
        self._trees = trees

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
        refs = await self._files.run(self._read, workspace)
        known = await self._files.run(self._known, workspace)
        elsewhere = known.tips | refs.remotes | {workspace.commit, ""}
        alone = {oid: ref for ref, oid in refs.tips.items() if oid not in elsewhere}
        head = refs.head.commit
        if not alone and refs.untouched and head == workspace.commit:
            return
        view = await self._trees.view(workspace)
        reads_own = bool(alone) or head not in known.tips | {workspace.commit, ""}
        place = await self._files.run(self._lay_out, staged, workspace, head, view, reads_own)
        await self._check_files(workspace, head, place)
        if len(alone) > _MOST_TIPS:
            raise WorkspaceUnpushed(workspace.workspace_id, f"it has {len(alone)} other tips")
        for oid, ref in alone.items():
            if not await self._is_elsewhere(place, oid, known, refs.remotes):
                raise WorkspaceUnpushed(workspace.workspace_id, f"{ref} is not pushed")

    def _read(self, workspace: Workspace) -> _Refs:
        layers = self._layers(workspace)
        # The upper layer holds all that was ever written, so the files need not be compared.
        untouched = (
            len(layers) > 1
            and os.listdir(layers[0]) == [".git"]
            and not os.path.lexists(layers[0] / ".git/index")
        )
        with opened_view(layers) as top:
            refs = GitRefs(top=top, object_format=workspace.key.object_format)
            head = refs.head()
            tips = {"HEAD": head.commit, **refs.below("heads")}
            stash = refs.commit("refs/stash")
            if stash:
                tips["refs/stash"] = stash
            remotes = frozenset(refs.below("remotes").values())
            return _Refs(head, tips, remotes, untouched and not workspace.changes_tree)

    def _layers(self, workspace: Workspace) -> Sequence[Path]:
        layer = read_layer(self._layout.layers / workspace.workspace_id)
        if layer is not None:
            return (layer.upper, *layer.lower)
        return (self._layout.trees / workspace.workspace_id,)

    def _known(self, workspace: Workspace) -> _Known:
        store = self._layout.store(workspace.key)
        tips = frozenset(oid for ref, oid in read_pins(store).items() if ref.startswith(TIPS))
        snapshots = [each.snapshot for each in read_records(store, {}).values()]
        snapshots.sort(key=lambda each: each.created_at, reverse=True)
        for branch in _DEFAULT_BRANCHES:
            for snapshot in snapshots:
                for tip in snapshot.tips:
                    if tip.ref == branch and tip.commit in tips:
                        return _Known(tips, tip.commit)
        newest = next((each.commit for each in snapshots if each.commit in tips), "")
        return _Known(tips, newest)

    def _lay_out(
        self, staged: Path, workspace: Workspace, head: str, view: Place, reads_own: bool
    ) -> Place:
        """Make the git directory that git sees instead of the workspace's own."""
        staged.mkdir(mode=0o700)
        git_dir = staged / "git"
        make_git_directory(
            git_dir,
            object_format=workspace.key.object_format,
            bare=False,
            alternate=self._layout.store(workspace.key) / "objects",
            commit=head,
        )
        index = git_dir / "index"
        if view.index is not None:
            shutil.copy2(view.index, index)
        with opened_view(self._layers(workspace)) as top:
            own_index = top.read((".git", "index"), _MOST_OUTPUT)
            if own_index is not None and own_index != index.read_bytes():
                (git_dir / _OWN_INDEX).write_bytes(own_index)
            if reads_own:
                _link_objects(top, git_dir / "objects")
        return replace(view, git_dir=git_dir, index=index, objects=None)

    async def _check_files(self, workspace: Workspace, head: str, place: Place) -> None:
        if head != workspace.commit or workspace.changes_tree:
            # Entries that are the same in the commit keep what is known of their files.
            arguments = ("-m", "-i", head) if head else ("--empty",)
            found = await self._git.run("read-tree", *arguments, place=place)
            if not found.succeeded:
                log.warning("HEAD not read", extra={"complaint": found.complaint[-500:]})
                raise WorkspaceUnpushed(workspace.workspace_id, "its HEAD cannot be read")
        own_index = place.git_dir / _OWN_INDEX
        if head != "" and await self._files.run(own_index.exists):
            # What was staged may be in no file; an index that cannot be read may hold anything.
            own = replace(place, index=own_index, work_tree=None, overlay=None)
            found = await self._git.run("diff-index", "--cached", "--quiet", head, place=own)
            if not found.succeeded:
                raise WorkspaceDirty(workspace.workspace_id)
        async with self._git.started(
            "status", "--porcelain", "-z", "--no-renames", "--untracked-files=normal",
            "--ignore-submodules=all",
            place=place,
            complaints=asyncio.subprocess.DEVNULL,
        ) as process:  # fmt: skip
            assert process.stdout is not None  # noqa: S101 - it was asked for
            if await process.stdout.read(1):
                raise WorkspaceDirty(workspace.workspace_id)
            if await process.wait() != 0:
                raise WorkspaceUnpushed(workspace.workspace_id, "its files cannot be compared")

    async def _is_elsewhere(
        self, place: Place, tip: str, known: _Known, remotes: frozenset[str]
    ) -> bool:
        """Say whether all that a tip reaches is elsewhere too, or has the same files there."""
        bare = replace(place, work_tree=None, overlay=None, index=None)
        for others in (known.tips | remotes, known.tips):
            given = "".join(f"{line}\n" for line in (tip, *(f"^{oid}" for oid in others)))
            found = await self._git.run(
                "rev-list", "--max-count=1", "--stdin", place=bare, given=given.encode()
            )
            if found.succeeded:
                if not found.output:
                    return True
                break
        return bool(known.default) and await self._is_squashed(bare, tip, known.default)

    async def _is_squashed(self, place: Place, tip: str, default: str) -> bool:
        """Say whether every path that the tip changed is the same in the default branch."""
        found = await self._git.run("merge-base", default, tip, place=place)
        base = found.output.decode("ascii", "replace").strip()
        if not found.succeeded or not base:
            return False
        changed = await self._differences(place, base, tip)
        merged = await self._differences(place, base, default)
        if not changed or merged is None:
            return False
        return all(merged.get(path) == entry for path, entry in changed.items())

    async def _differences(self, place: Place, old: str, new: str) -> dict[bytes, bytes] | None:
        """Return the paths in which two commits differ, with mode and object in the newer one."""
        found = await self._git.run(
            "diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev", old, new, place=place
        )
        if not found.succeeded or len(found.output) > _MOST_OUTPUT:
            return None
        parts = found.output.split(b"\0")[:-1]
        entries: dict[bytes, bytes] = {}
        for described, path in zip(parts[::2], parts[1::2], strict=True):
            _, mode, _, oid, _ = described.split(b" ")
            entries[path] = mode + b" " + oid
        return entries


def _link_objects(top: View, objects: Path) -> None:
    """Link the workspace's own object files; a file that is changed later is a broken object."""
    linked = 0
    with top.below((".git", "objects")) as own:
        if own is None:
            return
        for name in own.entries():
            is_fan = len(name) == 2 and name.isalnum()
            if not is_fan and name != "pack":
                continue
            with own.below((name,)) as parent:
                if parent is None:
                    continue
                (objects / name).mkdir(mode=0o755, exist_ok=True)
                for child, descriptor in parent.entries().items():
                    found = parent.look(child, descriptor)
                    if found is None or not stat.S_ISREG(found.st_mode):
                        continue
                    linked += 1
                    if linked > _MOST_OBJECTS:
                        raise RefsUnreadable("it has too many objects")
                    with suppress(FileNotFoundError):
                        os.link(
                            child, objects / name / child,
                            src_dir_fd=descriptor, follow_symlinks=False,
                        )  # fmt: skip
