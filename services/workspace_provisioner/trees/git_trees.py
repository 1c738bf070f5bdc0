"""The workspaces' files: taken, counted, taken away.

A workspace has its own git directory, which borrows objects from the store and shares nothing
that can be written. What the sandboxed program does to that directory is never read here again:
counting uses the baseline, an index (and the objects of the changes) from before the program ran.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from dataclasses import replace
from pathlib import Path

from chassis.ids import is_id
from workspace_provisioner.disk.deletion import empty_trash, move_to_trash, take_away
from workspace_provisioner.disk.host_root import Owners
from workspace_provisioner.disk.layout import Layout, sync_directory
from workspace_provisioner.disk.room import has_room
from workspace_provisioner.disk.work import FileWork
from workspace_provisioner.errors import CheckoutFailed
from workspace_provisioner.git.checkout import GitCheckouts, start_baseline
from workspace_provisioner.git.command import LITERAL_PATHS, Git, GitTimedOut, Place
from workspace_provisioner.git.object_readers import ObjectReaders
from workspace_provisioner.keyed_locks import KeyedLocks
from workspace_provisioner.ports import CheckoutPlan, ObjectsLacking, Taken
from workspace_provisioner.sources import ProjectKey
from workspace_provisioner.trees.layer_files import read_layer, read_note
from workspace_provisioner.trees.layer_stock import LayerStock
from workspace_provisioner.trees.pool_files import PoolFiles
from workspace_provisioner.trees.take import Takes
from workspace_provisioner.trees.template_files import TemplateFiles
from workspace_provisioner.trees.touched import TouchedPaths
from workspace_provisioner.workspaces import Workspace

log = logging.getLogger(__name__)

_COUNT_SECONDS = 10.0
# Git compresses each large file that it hashes, also where it throws the result away.
_ONLY_HASHES = {"core.compression": "0", "pack.compression": "0"}
_DELETION_SLICE_SECONDS = 0.05
_READ_BYTES = 64 * 1024


class GitTrees:
    """The workspaces' files below a layout's host root."""

    def __init__(
        self,
        *,
        layout: Layout,
        git: Git,
        files: FileWork,
        slow: FileWork,
        owners: Owners,
        checkouts: GitCheckouts,
        templates: TemplateFiles,
        pool: PoolFiles,
        takes: Takes,
        stock: LayerStock,
        readers: ObjectReaders,
    ) -> None:
        self._layout = layout
        self._git = git
        self._files = files
        self._slow = slow
        self._owners = owners
        self._checkouts = checkouts
        self._templates = templates
        self._pool = pool
        self._takes = takes
        self._stock = stock
        self._readers = readers
        self._viewing = KeyedLocks()
        self._touched = TouchedPaths(layout=layout, git=git, files=files)

    @property
    def can_overlay(self) -> bool:
        return self._takes.can_overlay

    async def take(self, plan: CheckoutPlan) -> Taken:
        return await self._takes.take(plan)

    def take_ready(self, plan: CheckoutPlan) -> Taken | None:
        """See Takes.take_ready."""
        return self._takes.take_ready(plan)

    def taken_ready(self, plan: CheckoutPlan) -> None:
        """See Takes.taken_ready."""
        self._takes.taken_ready(plan)

    async def refresh(self, key: ProjectKey) -> None:
        await self._templates.restamp(key)
        await self._pool.refresh(key)

    async def prepare(self, key: ProjectKey, commit: str, *, depth: int) -> None:
        if self.can_overlay:
            await self._slow.run(self._stock.fill)
            if await self._files.run(has_room, self._layout):
                await self._templates.make(key, commit, idle=True)
            await self._templates.make_durable()
        while await self._files.run(self._pool.depth, key, commit) < depth:
            if not await self._pool.add(key, commit):
                break

    async def make_durable(self) -> None:
        await self._templates.make_durable()

    async def collect(self) -> None:
        await self._files.run(self._take_away_foreign)
        await self._templates.collect()
        await self._pool.collect()

    async def close(self) -> None:
        """Stop what is being prepared, and the readers of the stores."""
        await self._templates.close()
        await self._readers.close()

    async def discard(self, workspace_id: str) -> None:
        await self._files.run(self.discard_now, workspace_id)

    async def count_changes(self, workspace: Workspace) -> int | None:
        try:
            async with asyncio.timeout(_COUNT_SECONDS):
                untouched = await self.is_untouched(workspace)
                count = 0 if untouched else await self._count(workspace)
        except (TimeoutError, GitTimedOut, OSError, CheckoutFailed, ObjectsLacking):
            count = None
        if count is None:
            log.warning("changes not counted", extra={"workspace_id": workspace.workspace_id})
        return count

    async def is_untouched(self, workspace: Workspace) -> bool:
        """Say whether files and index are surely those of the commit, as far as the upper layer
        tells without git; its refs may differ.
        """
        if workspace.changes_tree:
            return False
        return await self._files.run(self._is_untouched, workspace.workspace_id)

    def _is_untouched(self, workspace_id: str) -> bool:
        layer = read_layer(self._layout.layers / workspace_id)
        if layer is None or os.listdir(layer.upper) != [".git"]:
            return False
        return stat.S_ISDIR(os.lstat(layer.upper / ".git").st_mode) and not os.path.lexists(
            layer.upper / ".git/index"
        )

    async def view(self, workspace: Workspace) -> Place:
        """Return where git sees a workspace's files with the index of what it was made with; its
        own git directory has no say.
        """
        tree = self._layout.trees / workspace.workspace_id
        baseline = self._layout.baselines / workspace.workspace_id
        layer = await self._files.run(read_layer, self._layout.layers / workspace.workspace_id)
        async with self._viewing.hold(workspace.workspace_id):
            if layer is not None:
                index = layer.template / "baseline/index"
                await self._files.run(start_baseline, index, baseline)
            place = await self._checkouts.complete_baseline(
                baseline, workspace.key, workspace.commit, workspace.changes_tree
            )
        return replace(
            place,
            config={**place.config, **_ONLY_HASHES},
            work_tree=tree,
            index=baseline / "index",
            overlay=layer.readable(tree) if layer else None,
        )

    async def _count(self, workspace: Workspace) -> int | None:
        """Count while git prints: the sandbox decides how many files there are."""
        place = await self.view(workspace)
        tree = workspace.changes_tree or workspace.commit
        paths = await self._touched.find(workspace, place, tree)
        if paths is not None and not paths:
            return 0
        async with self._git.started(
            "status", "--porcelain", "-z", "--no-renames", "--untracked-files=all",
            "--ignore-submodules=all", "--", *(paths or ()),
            place=replace(place, variables={**place.variables, **LITERAL_PATHS}),
            complaints=asyncio.subprocess.DEVNULL,
        ) as process:  # fmt: skip
            assert process.stdout is not None  # noqa: S101 - it was asked for
            count, rest = 0, b""
            while chunk := await process.stdout.read(_READ_BYTES):
                *entries, rest = (rest + chunk).split(b"\0")
                # The second letter compares the files with the baseline; the first one is about
                # the unborn HEAD of the baseline's git directory.
                count += sum(1 for entry in entries if entry[1:2] not in (b"", b" "))
            return count if await process.wait() == 0 else None

    async def present(self) -> frozenset[str]:
        return await self._files.run(self._present)

    def _present(self) -> frozenset[str]:
        names = frozenset(_workspaces(self._layout.trees))
        torn = {
            name
            for name in names.intersection(_workspaces(self._layout.layers))
            if not self._is_whole(name)
        }
        return names - torn

    async def strays(self) -> frozenset[str]:
        return await self._files.run(self._strays)

    def _strays(self) -> frozenset[str]:
        places = (self._layout.trees, self._layout.layers, self._layout.baselines)
        return frozenset(name for place in places for name in _workspaces(place))

    async def sweep(self) -> None:
        await self._files.run(self._sweep)

    async def empty_trash(self) -> bool:
        return await self._files.run(
            empty_trash, self._layout.trash, seconds=_DELETION_SLICE_SECONDS
        )

    async def free_bytes(self) -> int:
        found = os.statvfs(self._layout.root)
        return found.f_bavail * found.f_frsize

    def discard_now(self, workspace_id: str) -> None:
        """Do the same at once, in any thread: move everything that there is, and only then say what
        could not be moved.
        """
        failed: OSError | None = None
        for parent in (self._layout.trees, self._layout.layers, self._layout.baselines):
            try:
                move_to_trash(parent / workspace_id, self._layout.trash)
            except OSError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def _sweep(self) -> None:
        """Throw away what dead processes left unfinished, and be ready for the first take."""
        for parent in (self._layout.staging, self._layout.blanks, self._layout.incoming):
            for name in os.listdir(parent):
                if self._owners.left_behind(name):
                    move_to_trash(parent / name, self._layout.trash)
        self._take_away_foreign()
        self._templates.sweep()
        self._pool.sweep()
        if self.can_overlay:
            self._stock.fill()
        sync_directory(self._layout.trees)

    def _take_away_foreign(self) -> None:
        """Take away what a program made beside its workspace (`git worktree add ../x`): no
        provisioner puts anything there but whole workspaces, by their ids.
        """
        for name in os.listdir(self._layout.trees):
            if not is_id("wsp", name):
                try:
                    take_away(name, self._layout.trees, self._layout.trash)
                except OSError as error:
                    log.warning("foreign entry not taken away", extra={"cause": str(error)})

    def _is_whole(self, workspace_id: str) -> bool:
        """Say whether all is there that a workspace with a note stands on."""
        note = read_note(self._layout.layers / workspace_id)
        if note is None or not note.lower:
            return note is not None
        return all(path.is_dir() for path in (note.upper, *note.lower))


def _workspaces(directory: Path) -> list[str]:
    return [name for name in os.listdir(directory) if is_id("wsp", name)]
