"""Checks workspaces out, counts what changed in them and takes them away.

A workspace has its own git directory, which borrows objects from the store and shares nothing
that can be written. What the sandboxed program does to that directory is never read here again:
counting uses the baseline, a copy of the index (and of the objects of the changes) from before
the program ran.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import shutil
from dataclasses import replace
from pathlib import Path

from chassis.ids import is_id
from workspace_provisioner.errors import CheckoutFailed, PackInvalid
from workspace_provisioner.file_deletion import empty_trash, move_to_trash
from workspace_provisioner.file_layout import Layout, sync_directory
from workspace_provisioner.file_work import FileWork
from workspace_provisioner.git_command import Finished, Git, GitTimedOut, Place
from workspace_provisioner.git_complaints import (
    FORGIVEN,
    first_line,
    pack_is_at_fault,
    pack_lacks_objects,
    store_lacks_objects,
)
from workspace_provisioner.git_directory import make_git_directory
from workspace_provisioner.ports import CheckoutPlan, ObjectsLacking
from workspace_provisioner.sources import INLINE_PACK_BYTES, ObjectFormat, ProjectKey
from workspace_provisioner.workspaces import Workspace

log = logging.getLogger(__name__)

_COUNT_SECONDS = 10.0
_DELETION_SLICE_SECONDS = 0.05
_FEW_OBJECTS = 100
_READ_BYTES = 64 * 1024
_PACK = "changes.pack"
# A power cut ends the sandbox too, so the workspace's own objects need not survive one.
_UNSYNCED = {"core.fsync": "none", "pack.threads": "1"}


class GitTrees:
    """The workspaces' files below a layout's host root."""

    def __init__(self, *, layout: Layout, git: Git, files: FileWork) -> None:
        self._layout = layout
        self._git = git
        self._files = files
        self._staged: dict[str, Path] = {}

    async def build(self, plan: CheckoutPlan) -> bool:
        # A name that no other build has: a git process which outlived a killed provisioner must not
        # meet the next build of the same workspace.
        staged = self._layout.staging / f"{plan.workspace_id}.{secrets.token_hex(8)}"
        self._staged[plan.workspace_id] = staged
        await self._files.run(self._lay_out, staged, plan)
        tree = staged / "tree"
        place = Place(tree / ".git", work_tree=tree, config=_UNSYNCED)
        changes = plan.changes
        try:
            if changes is None:
                await self._read_tree(place, "-m", "-u", plan.commit)
                return await self._files.run(self._keep_baseline, staged)
            async with asyncio.TaskGroup() as steps:
                steps.create_task(self._read_tree(place, "-m", "-u", plan.commit))
                if changes.pack:
                    steps.create_task(self._unpack(place, changes.pack))
            # The index stays at HEAD: what now changes in the files is unstaged or untracked, as
            # at the client. The baseline is a second index that goes along.
            await self._files.run(self._keep_baseline, staged, changes.pack)
            both = replace(place, index=staged / "baseline/index")
            await self._read_tree(both, "-m", "-u", plan.commit, changes.tree)
            return await self._files.run(os.path.lexists, tree / ".gitmodules")
        except GitTimedOut as error:
            raise CheckoutFailed(f"git {error} within its time") from error
        except ExceptionGroup as group:
            raise group.exceptions[0] from None

    async def publish(self, workspace_id: str) -> None:
        await self._files.run(self._publish, self._staged[workspace_id], workspace_id)
        del self._staged[workspace_id]

    async def discard(self, workspace_id: str) -> None:
        await self._files.run(self._discard, self._staged.pop(workspace_id, None), workspace_id)

    async def count_changes(self, workspace: Workspace) -> int | None:
        tree = self._layout.trees / workspace.workspace_id
        baseline = self._layout.baselines / workspace.workspace_id
        key = ProjectKey(workspace.tenant, workspace.project, ObjectFormat(workspace.object_format))
        place = Place(
            self._layout.store(key),
            work_tree=tree,
            index=baseline / "index",
            alternates=(baseline,),
        )
        try:
            async with asyncio.timeout(_COUNT_SECONDS):
                await self._unpack_baseline(place, baseline)
                count = await self._count(place)
        except (TimeoutError, GitTimedOut, OSError):
            count = None
        if count is None:
            log.warning("changes not counted", extra={"workspace_id": workspace.workspace_id})
        return count

    async def _count(self, place: Place) -> int | None:
        """Count while git prints: the sandbox decides how many files there are."""
        async with self._git.started(
            "status", "--porcelain", "-z", "--no-renames", "--untracked-files=all",
            "--ignore-submodules=all",
            place=place,
            complaints=asyncio.subprocess.DEVNULL,
        ) as process:  # fmt: skip
            assert process.stdout is not None  # noqa: S101 - it was asked for
            count, rest = 0, b""
            while chunk := await process.stdout.read(_READ_BYTES):
                *entries, rest = (rest + chunk).split(b"\0")
                # The second letter compares the files with the baseline; the first one is about
                # the store's unborn HEAD.
                count += sum(1 for entry in entries if entry[1:2] not in (b"", b" "))
            return count if await process.wait() == 0 else None

    async def present(self) -> frozenset[str]:
        names = await self._files.run(os.listdir, self._layout.trees)
        return frozenset(name for name in names if is_id("wsp", name))

    async def sweep(self) -> None:
        await self._files.run(self._sweep)

    async def empty_trash(self) -> bool:
        return await self._files.run(
            empty_trash, self._layout.trash, seconds=_DELETION_SLICE_SECONDS
        )

    async def free_bytes(self) -> int:
        found = os.statvfs(self._layout.root)
        return found.f_bavail * found.f_frsize

    async def _read_tree(self, place: Place, *arguments: str) -> None:
        finished = await self._git.run("read-tree", *arguments, place=place)
        if not finished.succeeded:
            self._fail("git read-tree", finished)

    async def _unpack(self, place: Place, pack: bytes) -> None:
        """Add the objects of the changes to the workspace's own; nothing is written unless all is
        well.
        """
        size = f"--max-input-size={INLINE_PACK_BYTES}"
        if int.from_bytes(pack[8:12], "big") <= _FEW_OBJECTS:
            # 4 ms against 9 ms for an index-pack of a dozen objects (measured).
            arguments: tuple[str, ...] = ("unpack-objects", "-q", "--strict", size)
        else:
            arguments = ("index-pack", "--stdin", "--fix-thin", f"--strict={FORGIVEN}", size)
        finished = await self._git.run(*arguments, place=place, given=pack)
        if finished.succeeded:
            return
        if pack_lacks_objects(finished.complaint):
            raise ObjectsLacking
        if pack_is_at_fault(finished.complaint):
            raise PackInvalid(first_line(finished.complaint))
        self._fail(f"git {arguments[0]}", finished)

    async def _unpack_baseline(self, place: Place, baseline: Path) -> None:
        """Make the objects of the changes readable; a symlink is compared with its object."""
        pack = baseline / _PACK
        if not await self._files.run(pack.exists):
            return
        given = await self._files.run(pack.read_bytes)
        own = replace(
            place, work_tree=None, objects=baseline, alternates=(place.git_dir / "objects",)
        )
        if (await self._git.run("unpack-objects", "-q", place=own, given=given)).succeeded:
            await self._files.run(pack.unlink, missing_ok=True)

    def _fail(self, step: str, finished: Finished) -> None:
        log.warning("git failed", extra={"step": step, "complaint": finished.complaint[-500:]})
        if store_lacks_objects(finished.complaint):
            raise ObjectsLacking
        raise CheckoutFailed(step)

    def _lay_out(self, staged: Path, plan: CheckoutPlan) -> None:
        staged.mkdir(mode=0o700)
        (staged / "tree").mkdir(mode=0o755)
        (staged / "baseline").mkdir(mode=0o700)
        make_git_directory(
            staged / "tree/.git",
            object_format=plan.key.object_format,
            bare=False,
            alternate=self._layout.store(plan.key) / "objects",
            branch=plan.branch,
            commit=plan.commit,
        )

    def _keep_baseline(self, staged: Path, pack: bytes = b"") -> bool:
        """Copy the index, and the pack of changes; returns whether the tree has submodules.

        The index keeps its time, by which git tells an entry that may have changed unseen.
        """
        tree, baseline = staged / "tree", staged / "baseline"
        shutil.copy2(tree / ".git/index", baseline / "index")
        if pack:
            (baseline / _PACK).write_bytes(pack)
        return os.path.lexists(tree / ".gitmodules")

    def _publish(self, staged: Path, workspace_id: str) -> None:
        baseline = self._layout.baselines / workspace_id
        move_to_trash(baseline, self._layout.trash)
        (staged / "baseline").rename(baseline)
        (staged / "tree").rename(self._layout.trees / workspace_id)
        staged.rmdir()

    def _discard(self, staged: Path | None, workspace_id: str) -> None:
        """Move everything that there is; only then say what could not be moved."""
        failed: OSError | None = None
        for path in (
            *([staged] if staged else []),
            self._layout.trees / workspace_id,
            self._layout.baselines / workspace_id,
        ):
            try:
                move_to_trash(path, self._layout.trash)
            except OSError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def _sweep(self) -> None:
        kept = {name for name in os.listdir(self._layout.trees) if is_id("wsp", name)}
        for parent in (self._layout.staging, self._layout.incoming, self._layout.baselines):
            for name in os.listdir(parent):
                if parent != self._layout.baselines or name not in kept:
                    move_to_trash(parent / name, self._layout.trash)
        sync_directory(self._layout.trees)
