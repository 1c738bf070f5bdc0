"""Takes workspaces from what was prepared: the first rung of the ladder that the machine and the
request allow, down to a checkout on the spot.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from workspace_provisioner.disk.deletion import move_to_trash
from workspace_provisioner.disk.host_root import Owners
from workspace_provisioner.disk.layout import Layout
from workspace_provisioner.disk.work import FileWork
from workspace_provisioner.errors import CheckoutFailed
from workspace_provisioner.git.checkout import GitCheckouts
from workspace_provisioner.git.index import Contents
from workspace_provisioner.ports import CheckoutPlan, Drifted, Stores, Taken
from workspace_provisioner.templates import Template, template_id
from workspace_provisioner.trees.change_files import ChangeFiles
from workspace_provisioner.trees.layer_files import (
    Layer,
    complete_history,
    fill_blank,
    lay_over,
    note_stores,
    read_layer,
    write_head,
    write_tags,
)
from workspace_provisioner.trees.layer_stock import LayerStock
from workspace_provisioner.trees.pool_files import PoolFiles
from workspace_provisioner.trees.template_files import TemplateFiles
from workspace_provisioner.workspaces import Rung

log = logging.getLogger(__name__)


class _Dropped(Exception):
    """The template was dropped while a workspace was laid over it."""


@dataclass(frozen=True, slots=True)
class _Staged:
    """A workspace that is whole but for its changes, where nobody looks."""

    path: Path
    rung: Rung
    template: Template | None
    holds: Template | Contents

    @property
    def layer(self) -> Layer | None:
        """Its layer, when it is laid over a template."""
        return read_layer(self.path / "layer")


class Takes:
    """The ladder of one host; `overlay` says whether overlays can be mounted on it.

    `on_demand` is told of each take for which a pool entry was wanted, `on_layer` of each after
    which something should be prepared for layers.
    """

    def __init__(
        self,
        *,
        layout: Layout,
        files: FileWork,
        stores: Stores,
        templates: TemplateFiles,
        pool: PoolFiles,
        checkouts: GitCheckouts,
        changes: ChangeFiles,
        stock: LayerStock,
        owners: Owners,
        overlay: bool,
        on_demand: Callable[[CheckoutPlan], None],
        on_layer: Callable[[CheckoutPlan], None],
    ) -> None:
        self._layout = layout
        self._files = files
        self._stores = stores
        self._templates = templates
        self._pool = pool
        self._checkouts = checkouts
        self._changes = changes
        self._stock = stock
        self._owners = owners
        self._overlay = overlay
        self._on_demand = on_demand
        self._on_layer = on_layer

    @property
    def can_overlay(self) -> bool:
        """Say whether overlays can be mounted here."""
        return self._overlay

    async def take(self, plan: CheckoutPlan) -> Taken:
        """Put a workspace in place; when it fails, what was made is left to `discard`.

        Raises Drifted, ObjectsLacking, PackInvalid and CheckoutFailed.
        """
        if plan.overlay and self._overlay:
            taken = await self._take_over_template(plan)
            if taken is not None:
                return taken
        staged = self._layout.staging / self._owners.own_name()
        placed = False
        try:
            found = await self._stage_tree(plan, staged)
            found = await self._apply(plan, found)
            taken = await self._files.run(self._publish, plan, found)
            placed = True
            return taken
        finally:
            if not placed:
                await self._files.run(move_to_trash, staged, self._layout.trash)

    def take_ready(self, plan: CheckoutPlan) -> Taken | None:
        """Lay a workspace without changes over the template that is ready: no git, nothing that
        grows with the repository. Blocking.

        None when there is none, or not any more, or something is wrong with it; nothing stays then.
        """
        blank = self._stock.take()
        taken = None
        try:
            found = self._lay_out(plan, blank)
            if found is not None and not found.holds.submodules_fault:
                taken = self._publish(plan, found)
        except (_Dropped, Drifted):
            return None
        finally:
            if taken is None:
                self._take_back(plan.workspace_id)
                move_to_trash(blank, self._layout.trash)
        return taken

    def taken_ready(self, plan: CheckoutPlan) -> None:
        """Let more be prepared after `take_ready`."""
        if self._stock.is_low:
            self._on_layer(plan)

    async def _take_over_template(self, plan: CheckoutPlan) -> Taken | None:
        blank = self._stock.take()
        taken = None
        try:
            taken = await self._take_layer(plan, blank)
        except _Dropped:
            await self._files.run(self._take_back, plan.workspace_id)
        finally:
            if taken is None:
                await self._files.run(move_to_trash, blank, self._layout.trash)
        return taken

    async def _take_layer(self, plan: CheckoutPlan, staged: Path) -> Taken | None:
        """Lay a layer over the commit's template, which is made when there is none."""
        found = await self._files.run(self._lay_out, plan, staged)
        if found is None:
            await self._templates.make(plan.key, plan.commit, idle=False)
            found = await self._files.run(self._lay_out, plan, staged)
        if found is None:
            return None
        self._on_layer(plan)
        found = await self._apply(plan, found)
        return await self._files.run(self._publish, plan, found)

    def _lay_out(self, plan: CheckoutPlan, staged: Path) -> _Staged | None:
        tree = _shareable(plan)
        template = self._templates.read(template_id(plan.key, plan.commit, tree))
        if template is None and tree:
            template = self._templates.read(template_id(plan.key, plan.commit))
        if template is None:
            return None
        self._verify(template)
        lower, stores = self._templates.lower(template), [self._objects(plan)]
        fill_blank(staged, lower, stores, plan.commit, plan.branch)
        git_dir = staged / "layer/upper/.git"
        self._bring_tags(template, git_dir)
        if template.grafted and not template.stamp.shallow:
            complete_history(git_dir, layered=True)
        rung = Rung.OVERLAY_DELTA if template.base else Rung.OVERLAY
        return _Staged(staged, rung, template, template)

    async def _stage_tree(self, plan: CheckoutPlan, staged: Path) -> _Staged:
        """Take an entry of the pool, or one of another commit and move it, or check out."""
        key, commit = plan.key, plan.commit
        self._on_demand(plan)
        template = await self._files.run(self._pool.take, key, commit, staged)
        if template is not None:
            self._verify(template)
            await self._files.run(self._bring_tags, template, staged / "tree/.git")
            if template.grafted and not await self._stores.is_shallow(key, commit):
                complete_history(staged / "tree/.git", layered=False)
            found = _Staged(staged, Rung.POOL, template, template)
        else:
            rung = Rung.POOL_ADVANCED
            shallow = await self._stores.is_shallow(key, commit)
            other = None if shallow else await self._files.run(self._pool.take_other, key, staged)
            if other is not None and await self._can_advance(other, commit):
                contents = await self._checkouts.advance(staged, key, other.commit, commit)
                await self._files.run(self._bring_tags, other, staged / "tree/.git")
            else:
                await self._files.run(move_to_trash, staged, self._layout.trash)
                rung = Rung.CHECKOUT
                contents = await self._checkouts.make(staged, key, commit)
            found = _Staged(staged, rung, None, contents)
        await self._files.run(write_head, staged / "tree/.git", commit, plan.branch)
        return found

    async def _can_advance(self, other: Template, commit: str) -> bool:
        if other.grafted:
            return False
        return await self._checkouts.differing(other.key, other.commit, commit) is not None

    def _bring_tags(self, template: Template, git_dir: Path) -> None:
        """Show the tags that came since something was prepared."""
        tags = self._stores.packed_tags(template.key)
        if tags.digest != template.tags:
            write_tags(git_dir, tags)

    async def _apply(self, plan: CheckoutPlan, found: _Staged) -> _Staged:
        changes, layer = plan.changes, found.layer
        if changes is None:
            return found
        baseline, template = found.path / "baseline", found.template
        is_there = layer is not None and template is not None and template.tree != ""
        if not is_there and not found.holds.converts:
            top = layer.upper if layer else found.path / "tree"
            if await self._changes.apply(top, baseline, plan, layered=layer is not None):
                return found
        if layer is not None and template is not None and _shareable(plan) and not is_there:
            found = await self._lay_over_changes(found, template, changes.tree)
            layer, is_there = found.layer, True
        if layer is not None:
            try:
                await self._files.run(_copy_baseline, layer.template, baseline)
            except FileNotFoundError:
                raise _Dropped from None
        if is_there:
            return found
        mount = layer.writable(found.path / "tree") if layer else None
        await self._checkouts.apply(
            baseline, found.path / "tree", plan.key, plan.commit, changes, mount,
            converts=found.holds.converts,
        )  # fmt: skip
        return found

    async def _lay_over_changes(self, found: _Staged, base: Template, tree: str) -> _Staged:
        """Lay a layer over the files of large changes, which are written when they are not there:
        an unchanged tree costs nothing then, whatever its size.
        """
        try:
            changed = await self._templates.make_changed(base, tree)
        except (CheckoutFailed, OSError):
            if await self._files.run(self._templates.read, base.template_id) is None:
                raise _Dropped from None
            raise
        lower = await self._files.run(self._templates.lower, changed)
        await self._files.run(lay_over, found.path / "layer", lower)
        return replace(found, rung=Rung.OVERLAY_DELTA, template=changed, holds=changed)

    def _verify(self, template: Template) -> None:
        reason = self._stores.verify(template.key, template.stamp)
        if reason is not None:
            raise Drifted(reason)

    def _publish(self, plan: CheckoutPlan, found: _Staged) -> Taken:
        """Put a whole workspace in its place, and look again whether what it needs is there: a
        store or a template that is cleared up meanwhile says so before it deletes anything.
        """
        staged, workspace_id = found.path, plan.workspace_id
        layered = found.rung in (Rung.OVERLAY, Rung.OVERLAY_DELTA)
        if not layered:
            note_stores(staged / "layer", [self._objects(plan)])
        self._move(staged / "layer", self._layout.layers / workspace_id)
        self._move(staged / "tree", self._layout.trees / workspace_id)
        top = self._layout.trees / workspace_id
        if layered:
            top = self._layout.layers / workspace_id / "upper"
        holds = found.holds
        has_submodules = holds.has_submodules
        if plan.changes is not None:
            has_submodules = has_submodules or os.path.lexists(top / ".gitmodules")
        if plan.changes is not None or not layered:
            self._move(staged / "baseline", self._layout.baselines / workspace_id)
        if found.template is not None:
            self._verify(found.template)
            if layered and not self._templates.keep(found.template):
                raise _Dropped
        self._stock.put_back(staged)  # last, as it is thrown away when this fails
        # With changes the files are the client's, which sends what it has in place of pointers.
        pointers = 0 if plan.changes is not None else holds.lfs_pointers
        return Taken(found.rung, has_submodules, holds.submodules_fault, pointers)

    def _objects(self, plan: CheckoutPlan) -> Path:
        return self._layout.store(plan.key) / "objects"

    def _take_back(self, workspace_id: str) -> None:
        for parent in (self._layout.trees, self._layout.layers, self._layout.baselines):
            move_to_trash(parent / workspace_id, self._layout.trash)

    def _move(self, source: Path, target: Path) -> None:
        try:
            source.rename(target)
        except OSError:
            if not move_to_trash(target, self._layout.trash):
                raise
            source.rename(target)


def _shareable(plan: CheckoutPlan) -> str:
    """Return the tree of the changes when the store has it, so that workspaces may share its files;
    empty otherwise.
    """
    return plan.changes.tree if plan.changes is not None and not plan.changes.pack else ""


def _copy_baseline(template: Path, baseline: Path) -> None:
    baseline.mkdir(mode=0o700, exist_ok=True)
    shutil.copy2(template / "baseline/index", baseline / "index")
