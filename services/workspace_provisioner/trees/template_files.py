"""Templates on disk: made aside, moved into place whole, never changed afterwards but for READY.

A template is a checkout, or a layer over another template: with what differs in another commit, or
with the files of uncommitted changes that are large, which workspaces share so. Whoever lays a
workspace over one writes that down first (`mount.json`) and then looks whether READY is still
there; whoever drops one takes READY away first and then looks who uses it.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import shutil
import stat
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from workspace_provisioner.disk.deletion import move_to_trash
from workspace_provisioner.disk.file_disk import boot_id
from workspace_provisioner.disk.host_root import Owners
from workspace_provisioner.disk.layout import Layout
from workspace_provisioner.disk.room import has_room
from workspace_provisioner.disk.work import FileWork
from workspace_provisioner.errors import CheckoutFailed
from workspace_provisioner.git.checkout import FileAt, GitCheckouts, packed_tags, settled
from workspace_provisioner.git.command import OverlayMount
from workspace_provisioner.git.index import Contents
from workspace_provisioner.git.tree_changes import TreeChanges
from workspace_provisioner.ports import Disk, ObjectsLacking, Stores
from workspace_provisioner.sources import Changes, ProjectKey
from workspace_provisioner.templates import Template, family, template_id
from workspace_provisioner.trees.delta_files import DeltaFiles
from workspace_provisioner.trees.layer_files import used_templates
from workspace_provisioner.trees.template_records import READY, read_ready, ready_text

log = logging.getLogger(__name__)

RETIRED = "RETIRED"
USED = "USED"
"""An empty file whose time is that of the last take."""
KEPT_TEMPLATES = 3
"""Newest full checkouts of a project key that are kept though nobody uses them."""
_UNUSED_SECONDS = 3600.0
_OVERTAKEN_SECONDS = 600.0
"""How long changes stay unused that are not the newest of their project."""
_KEPT_SECONDS = 7 * 24 * 3600.0
_LINKABLE = "linkable.json"
"""Mode, object and path of the files in a layer of changes that others may link."""
_LEAST_LINKED_BYTES = 64 * 1024
_LARGEST_DELTA = 4
"""A delta holds at most one file in so many; beyond that a full checkout is made."""


class TemplateFiles:
    """The templates below a layout's root."""

    def __init__(
        self,
        *,
        layout: Layout,
        disk: Disk,
        files: FileWork,
        stores: Stores,
        checkouts: GitCheckouts,
        deltas: DeltaFiles,
        owners: Owners,
        overlay: bool,
    ) -> None:
        self._layout = layout
        self._disk = disk
        self._files = files
        self._stores = stores
        self._checkouts = checkouts
        self._deltas = deltas
        self._owners = owners
        self._overlay = overlay
        self._boot = boot_id()
        self._read: dict[str, tuple[tuple[int, int], Template]] = {}
        self._makes: dict[tuple[str, bool], asyncio.Task[Template]] = {}

    def read(self, identity: str) -> Template | None:
        """Return a template that is ready; blocking, a stat(2) unless READY changed."""
        path = f"{self._layout.templates}/{identity}"
        try:
            seen = os.stat(f"{path}/{READY}")
        except FileNotFoundError:
            self._read.pop(identity, None)
            return None
        version = (seen.st_ino, seen.st_mtime_ns)
        known = self._read.get(identity)
        if known is not None and known[0] == version:
            return known[1]
        found = read_ready(Path(path))
        if found is None or found[1] not in ("", self._boot):
            return None
        self._read[identity] = (version, found[0])
        return found[0]

    def keep(self, template: Template) -> bool:
        """Note that a workspace was laid over a template; returns whether it is still ready, and
        what it is laid over too. Blocking.
        """
        for identity in template.chain:
            path = f"{self._layout.templates}/{identity}"
            try:
                os.utime(f"{path}/{USED}")
                os.stat(f"{path}/{READY}")
            except FileNotFoundError:
                return False
        return True

    def lower(self, template: Template) -> tuple[Path, ...]:
        """Return the directories that a workspace is laid over, topmost first."""
        *above, last = (self._layout.templates / each for each in template.chain)
        return (*(each / "layer" for each in above), last / "tree")

    async def make(self, key: ProjectKey, commit: str, *, idle: bool) -> Template:
        """Return the commit's template, and make it when there is none.

        Calls for the same one share the work; only the work of a call for background's sake is
        not waited for by others. Raises ObjectsLacking and CheckoutFailed.
        """
        identity = template_id(key, commit)
        return await self._shared(identity, lambda: self._make(key, commit, idle=idle), idle=idle)

    async def make_changed(self, base: Template, tree: str) -> Template:
        """Return the template of a tree of changes over a commit's, and make it when there is none.

        Raises ObjectsLacking, PackTooLarge and CheckoutFailed.
        """
        identity = template_id(base.key, base.commit, tree)
        return await self._shared(identity, lambda: self._make_changed(base, tree), idle=False)

    async def _shared(
        self, identity: str, make: Callable[[], Coroutine[None, None, Template]], *, idle: bool
    ) -> Template:
        found = await self._files.run(self.read, identity)
        if found is not None:
            return found
        running = self._makes.get((identity, False)) or (
            self._makes.get((identity, True)) if idle else None
        )
        if running is None:
            running = asyncio.create_task(make(), name=f"template {identity}")
            self._makes[identity, idle] = running
            running.add_done_callback(lambda task: self._made((identity, idle), task))
        return await asyncio.shield(running)

    async def close(self) -> None:
        """Stop what is being made."""
        running = list(self._makes.values())
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    def _made(self, place: tuple[str, bool], task: asyncio.Task[Template]) -> None:
        self._makes.pop(place, None)
        if not task.cancelled():
            task.exception()  # seen here, also when every caller has left

    async def _make(self, key: ProjectKey, commit: str, *, idle: bool) -> Template:
        staged = self._layout.staging / self._owners.own_name()
        base: Template | None = None
        try:
            stamp = await self._stores.stamp(key, commit)
            if stamp is None:
                raise ObjectsLacking
            tags = self._stores.packed_tags(key)
            base = None if stamp.shallow else await self._base(key)
            changes = await self._deltas.changes(key, base, commit) if base else None
            if base is not None and await self._is_near(base, commit, changes):
                contents = await self._make_delta(staged, base, commit, changes, idle=idle)
            else:
                base = None
                contents = await self._checkouts.make(staged, key, commit, idle=idle)
            template = Template(
                template_id=template_id(key, commit),
                key=key,
                commit=commit,
                base=base.template_id if base else "",
                under="",
                tree="",
                has_submodules=contents.has_submodules,
                submodules_fault=contents.submodules_fault,
                lfs_pointers=contents.lfs_pointers,
                converts=contents.converts,
                files=contents.files,
                size=contents.size,
                made_at=time.time(),
                grafted=stamp.shallow,
                tags=tags.digest,
                stamp=stamp,
            )
            return await self._files.run(self._publish, staged, template)
        except (CheckoutFailed, OSError):
            if base is None or await self._files.run(self.read, base.template_id) is not None:
                raise
            # Who drops a template does not know of a delta that is just being made over it.
            log.info("made again without the base that was dropped", extra={"commit": commit})
            return await self._make(key, commit, idle=idle)
        finally:
            await self._files.run(move_to_trash, staged, self._layout.trash)

    async def _base(self, key: ProjectKey) -> Template | None:
        """Return the newest full checkout of the project, if there can be a delta over it."""
        if not self._overlay:
            return None
        full = [each for each in await self._files.run(self._of, key) if not each.base]
        return full[0] if full and not full[0].grafted else None

    async def _is_near(self, base: Template, commit: str, changes: TreeChanges | None) -> bool:
        differing: int | None
        if changes is not None:
            differing = len(changes.written) + len(changes.gone)
        else:
            differing = await self._checkouts.differing(base.key, base.commit, commit)
        return differing is not None and differing * _LARGEST_DELTA <= base.files

    async def _make_delta(
        self,
        staged: Path,
        base: Template,
        commit: str,
        changes: TreeChanges | None,
        *,
        idle: bool,
    ) -> Contents:
        key = base.key
        tags = packed_tags(await self._stores.tags(key))
        await self._files.run(_lay_out_delta, staged, commit, tags)
        if changes is not None:
            return await self._deltas.write(staged, key, base, changes)
        below = self._layout.templates / base.template_id
        mount = OverlayMount(
            lower=(below / "tree",),
            target=staged / "seen",
            upper=staged / "layer",
            work=staged / "work",
        )
        await self._files.run(_lay_out_mount, staged)
        await self._checkouts.advance_layer(key, mount, base.commit, commit, idle=idle)
        return await self._files.run(
            _settled_delta, staged, below / "tree", key, self._layout.trash
        )

    async def _make_changed(self, base: Template, tree: str, *, reuse: bool = True) -> Template:
        """Write what differs from a commit into a layer. Files that are in another such layer and
        not small are linked: when little of a large tree has changed, that little is written.
        """
        key, commit = base.key, base.commit
        staged = self._layout.staging / self._owners.own_name()
        lower = await self._files.run(self.lower, base)
        mount = OverlayMount(
            lower=lower, target=staged / "seen", upper=staged / "layer", work=staged / "work"
        )
        changes = Changes(tree=tree, pack=b"")
        try:
            files = await self._checkouts.changed_files(key, commit, tree)
            below = self._layout.templates / base.template_id
            await self._files.run(_lay_out_changed, staged, below)
            linked: Mapping[bytes, FileAt] = {}
            if reuse and not base.converts:
                known = await self._files.run(self._linkable, key)
                linked = await self._files.run(_link, staged / "layer", files, known, lower)
            try:
                await self._checkouts.apply(
                    staged / "baseline", mount.target, key, commit, changes, mount,
                    converts=base.converts, present=linked,
                )  # fmt: skip
            except (CheckoutFailed, ObjectsLacking):
                if not linked:
                    raise
                return await self._make_changed(base, tree, reuse=False)
            size, own_modules = await self._files.run(
                _finish_changed, staged, files, self._layout.trash
            )
            template = replace(
                base,
                template_id=template_id(key, commit, tree),
                base=base.template_id,
                under=base.base,
                tree=tree,
                has_submodules=base.has_submodules or own_modules,
                size=base.size + size,
                made_at=time.time(),
            )
            return await self._files.run(self._publish, staged, template)
        finally:
            await self._files.run(move_to_trash, staged, self._layout.trash)

    def _linkable(self, key: ProjectKey) -> dict[FileAt, Path]:
        """Return the larger files of a project's trees of changes."""
        found: dict[FileAt, Path] = {}
        for template in self._of(key):
            if template.tree:
                top = self._layout.templates / template.template_id
                try:
                    noted: list[tuple[str, str, str]] = json.loads((top / _LINKABLE).read_bytes())
                except (OSError, ValueError):
                    continue
                for mode, oid, path in noted:
                    found.setdefault((mode, oid), top / "layer" / path)
        return found

    def _publish(self, staged: Path, template: Template) -> Template:
        """Move a finished template into place; another process may have been first."""
        (staged / USED).touch()
        (staged / READY).write_bytes(ready_text(template, self._boot))
        target = self._layout.templates / template.template_id
        with self._locked():
            found = self.read(template.template_id)
            if found is not None:
                return found
            if template.base and self.read(template.base) is None:
                raise CheckoutFailed("keeping the base of the delta")
            if (target / RETIRED).exists():
                self._finish_drop(target)
                found = self.read(template.template_id)
                if found is not None:
                    return found
            move_to_trash(target, self._layout.trash)
            staged.rename(target)
        return template

    async def make_durable(self) -> None:
        """Bring the templates of this boot to the disk, so that they outlive a power cut."""
        await self._files.run(self._make_durable)

    def _make_durable(self) -> None:
        fresh = [found for found in self._all() if found[1] == self._boot]
        if not fresh:
            return
        self._disk.sync_all(self._layout.templates)
        # Nothing is good for the next boot whose base is not.
        for template, _ in sorted(fresh, key=lambda each: len(each[0].chain)):
            self._rewrite(template, "")

    async def restamp(self, key: ProjectKey) -> None:
        """Look at the templates of a store after it changed: those whose commit is still promised
        get a new stamp, the others are dropped.
        """
        for template in await self._files.run(self._of, key):
            stamp = await self._stores.stamp(key, template.commit)
            if stamp is None:
                await self._files.run(self._drop, template.template_id)
            elif stamp != template.stamp:
                await self._files.run(self._rewrite, replace(template, stamp=stamp), None)

    async def collect(self) -> None:
        """Drop the templates that nobody uses and that are neither new nor the newest; when room is
        short, all that nobody uses.
        """
        await self._files.run(self._collect)

    def _collect(self) -> None:
        is_short = not has_room(self._layout)
        by_family: dict[str, list[Template]] = {}
        for template, _ in self._all():
            by_family.setdefault(family(template.key), []).append(template)
        for templates in by_family.values():
            templates.sort(key=_made_at, reverse=True)
            full = [each.template_id for each in templates if not each.base]
            commits = [each.template_id for each in templates if not each.tree]
            kept = {*full[:KEPT_TEMPLATES], *commits[:KEPT_TEMPLATES]}
            newest = [each.template_id for each in templates if each.tree][:1]
            for each in templates:
                longest = _KEPT_SECONDS if each.template_id in kept else _UNUSED_SECONDS
                if each.tree and each.template_id not in newest:
                    longest = _OVERTAKEN_SECONDS
                if is_short or self._unused_for(each.template_id) > longest:
                    self._drop(each.template_id)

    def sweep(self) -> None:
        """Put right what a killed process left half dropped, and take away what a power cut may
        have torn and nobody uses; blocking, at start.
        """
        with self._locked():
            used = used_templates(self._layout)
            for name in self._names():
                path = self._layout.templates / name
                if (path / RETIRED).exists():
                    self._finish_drop(path)
                    continue
                found = read_ready(path)
                if name not in used and (found is None or found[1] not in ("", self._boot)):
                    move_to_trash(path, self._layout.trash)
            for template, _ in self._all():
                below = [self._layout.templates / each / READY for each in template.chain[1:]]
                if template.template_id not in used and not all(each.exists() for each in below):
                    move_to_trash(self._layout.templates / template.template_id, self._layout.trash)

    def _drop(self, identity: str) -> None:
        path = self._layout.templates / identity
        with self._locked():
            try:
                (path / READY).rename(path / RETIRED)
            except FileNotFoundError:
                return
            self._finish_drop(path)

    def _finish_drop(self, path: Path) -> None:
        """Delete a retired template unless a workspace or a delta needs it; then it is ready
        again.
        """
        based = {template.base for template, _ in self._all()}
        if path.name in based or path.name in used_templates(self._layout):
            (path / RETIRED).rename(path / READY)
            return
        move_to_trash(path, self._layout.trash)
        log.info("template dropped", extra={"template_id": path.name})

    def _unused_for(self, identity: str) -> float:
        """Return the seconds since the template was made or taken."""
        try:
            return time.time() - (self._layout.templates / identity / USED).stat().st_mtime
        except FileNotFoundError:
            return 0.0

    def _rewrite(self, template: Template, boot: str | None) -> None:
        """Say something else of a template in READY, unless it was dropped meanwhile."""
        path = self._layout.templates / template.template_id
        with self._locked():
            found = read_ready(path)
            if found is not None:
                said = found[1] if boot is None else boot
                self._disk.write_whole(path / READY, ready_text(template, said))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Change what is ready alone, also among processes; takes need no lock."""
        path = self._layout.templates / ".lock"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _of(self, key: ProjectKey) -> Sequence[Template]:
        prefix = f"{family(key)}-"
        names = os.listdir(self._layout.templates)
        found = [self.read(name) for name in names if name.startswith(prefix)]
        templates = [each for each in found if each is not None]
        return sorted(templates, key=_made_at, reverse=True)

    def _all(self) -> list[tuple[Template, str]]:
        found = [read_ready(self._layout.templates / name) for name in self._names()]
        return [each for each in found if each is not None]

    def _names(self) -> list[str]:
        return [name for name in os.listdir(self._layout.templates) if not name.startswith(".")]


def _made_at(template: Template) -> float:
    return template.made_at


def _lay_out_delta(staged: Path, commit: str, packed_tags: str) -> None:
    staged.mkdir(mode=0o700)
    for name in ("layer", "layer/.git"):
        (staged / name).mkdir(mode=0o755)
    (staged / "baseline").mkdir(mode=0o700)
    (staged / "layer/.git/HEAD").write_text(f"{commit}\n")
    if packed_tags:
        (staged / "layer/.git/packed-refs").write_text(packed_tags, encoding="utf-8")


def _lay_out_changed(staged: Path, below: Path) -> None:
    staged.mkdir(mode=0o700)
    (staged / "layer").mkdir(mode=0o755)
    (staged / "baseline").mkdir(mode=0o700)
    shutil.copy2(below / "baseline/index", staged / "baseline/index")
    _lay_out_mount(staged)


def _link(
    layer: Path,
    files: Mapping[bytes, FileAt],
    known: dict[FileAt, Path],
    lower: Sequence[Path],
) -> Mapping[bytes, FileAt]:
    """Link those files of a layer that are known, each once: two files that are one would be seen.

    Returns which.
    """
    linked: dict[bytes, FileAt] = {}
    for name, file in files.items():
        source, path = known.get(file), os.fsdecode(name)
        if source is None:
            continue
        with suppress(OSError):
            seconds = int(os.lstat(source).st_mtime)
            if all(_leaves_alone(each, path, seconds) for each in lower):
                (layer / path).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
                os.link(source, layer / path, follow_symlinks=False)
                linked[name] = file
                del known[file]
    return linked


def _leaves_alone(below: Path, path: str, seconds: int) -> bool:
    """Say whether a file of that time may lie over what a layer has in its place: a directory is
    git's to replace, and a file of the same time and size would look unchanged.
    """
    parts = path.split("/")
    for depth in range(1, len(parts) + 1):
        try:
            found = os.lstat(below / "/".join(parts[:depth]))
        except FileNotFoundError:
            return True
        if depth < len(parts) and not stat.S_ISDIR(found.st_mode):
            return False
    return not stat.S_ISDIR(found.st_mode) and int(found.st_mtime) != seconds


def _finish_changed(staged: Path, files: Mapping[bytes, FileAt], trash: Path) -> tuple[int, bool]:
    """Keep layer and index of a tree of changes, and note its files; returns its bytes, and whether
    it has a `.gitmodules`.
    """
    for path in (staged / "work", staged / "seen", staged / "baseline/git"):
        move_to_trash(path, trash)
    total, linkable = 0, []
    for name, file in files.items():
        size = os.lstat(staged / "layer" / os.fsdecode(name)).st_size
        total += size
        if size >= _LEAST_LINKED_BYTES:
            linkable.append((*file, os.fsdecode(name)))
    (staged / _LINKABLE).write_text(json.dumps(linkable), encoding="ascii")
    return total, os.path.lexists(staged / "layer/.gitmodules")


def _lay_out_mount(staged: Path) -> None:
    for name in ("work", "seen"):
        (staged / name).mkdir(mode=0o755)


def _settled_delta(staged: Path, below: Path, key: ProjectKey, trash: Path) -> Contents:
    for name in ("work", "seen"):
        move_to_trash(staged / name, trash)
    return settled(staged / "layer", staged / "baseline", key, below=below)
