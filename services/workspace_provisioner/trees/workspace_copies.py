"""Forks a live workspace: its files are copied where nobody looks, put on a branch of their own,
and moved into place.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from workspace_provisioner.disk.deletion import move_to_trash
from workspace_provisioner.disk.host_root import Owners
from workspace_provisioner.disk.layout import Layout
from workspace_provisioner.disk.work import FileWork
from workspace_provisioner.errors import HostFull
from workspace_provisioner.sources import ObjectFormat
from workspace_provisioner.trees.layer_files import Layer, note_stores, read_layer, read_note
from workspace_provisioner.trees.layer_views import opened_view
from workspace_provisioner.trees.refs import GitRefs, RefsUnreadable
from workspace_provisioner.trees.tree_copies import TreeCopy
from workspace_provisioner.workspace_errors import BranchInUse, ForkFailed
from workspace_provisioner.workspaces import Workspace

log = logging.getLogger(__name__)

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_ENTRIES_BETWEEN_LOOKS = 256
_ATTEMPTS = 3
_NAMING = frozenset(("HEAD", "index", "packed-refs"))
_MOST_MARKS = 10_000


class CopyStopped(Exception):
    """Who wanted the copy has gone."""


class WorkspaceCopies:
    """Copies below a layout's host root; `reserve_bytes` of its disk stay free."""

    def __init__(
        self, *, layout: Layout, files: FileWork, owners: Owners, reserve_bytes: int
    ) -> None:
        self._layout = layout
        self._files = files
        self._owners = owners
        self._reserve_bytes = reserve_bytes

    async def copy(self, source: Workspace, made: Workspace, *, overlay: bool) -> None:
        staged = self._layout.staging / self._owners.own_name()
        stop = threading.Event()
        ended = asyncio.Event()

        async def work() -> None:
            try:
                await self._files.run(self._copy, staged, source, made, overlay, stop)
            finally:
                ended.set()

        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(work())
                try:
                    await ended.wait()
                except asyncio.CancelledError:
                    stop.set()  # a thread is not cancelled
                    raise
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            await self._files.run(move_to_trash, staged, self._layout.trash)

    def _copy(
        self, staged: Path, source: Workspace, made: Workspace, overlay: bool, stop: threading.Event
    ) -> None:
        source_id = source.workspace_id
        staged.mkdir(mode=0o700)
        copy = _Watched(self._layout.root, self._reserve_bytes, stop)
        layer = read_layer(self._layout.layers / source_id)
        below: Sequence[Path] = layer.lower if layer is not None and overlay else ()
        try:
            self._copy_of_one_moment(layer, source_id, staged, copy, overlay=overlay)
            top = staged / ("tree" if layer is None or not overlay else "layer/upper")
            if made.claims_branch:
                put_on_branch([top, *below], made.branch, ObjectFormat(made.object_format))
            self._copy_baseline(layer, source_id, staged, copy)
            note = read_note(self._layout.layers / source_id)
            if note is not None and not (staged / "layer").exists():
                note_stores(staged / "layer", note.stores)
        except FileNotFoundError:
            # Its directories were moved away, as those of a released workspace are.
            raise ForkFailed("it was released meanwhile") from None
        except PermissionError:
            raise ForkFailed("it has files that cannot be read") from None
        self._publish(staged, made.workspace_id)

    def _copy_of_one_moment(
        self, layer: Layer | None, source_id: str, staged: Path, copy: _Watched, *, overlay: bool
    ) -> None:
        """Copy all files; again when git changed HEAD, index or refs meanwhile, but not for ever:
        then files and index may differ, as after a command that was cut short.
        """
        source = [layer.upper, *layer.lower] if layer else [self._layout.trees / source_id]
        for attempt in range(_ATTEMPTS):
            if attempt:
                move_to_trash(staged, self._layout.trash)
                staged.mkdir(mode=0o700)
            before = git_marks(source)
            if layer is not None and overlay:
                self._copy_own_layer(layer, staged, copy)
            else:
                self._copy_layers(source, staged / "tree", copy, layer=False)
            if git_marks(source) == before:
                return
        log.info("forked while git went on", extra={"workspace_id": source_id})

    def _copy_layers(
        self, layers: Sequence[Path], target: Path, copy: _Watched, *, layer: bool
    ) -> None:
        target.mkdir(mode=0o755)
        descriptor = os.open(target, _DIRECTORY)
        try:
            with opened_view(layers) as view:
                TreeCopy(layer=layer, goes_on=copy.goes_on).directory(view, descriptor)
        finally:
            os.close(descriptor)

    def _copy_own_layer(self, layer: Layer, staged: Path, copy: _Watched) -> None:
        (staged / "tree").mkdir(mode=0o755)
        (staged / "layer").mkdir(mode=0o700)
        (staged / "layer/work").mkdir(mode=0o755)
        self._copy_layers([layer.upper], staged / "layer/upper", copy, layer=True)
        layer.copy_note(staged / "layer")

    def _copy_baseline(
        self, layer: Layer | None, source_id: str, staged: Path, copy: _Watched
    ) -> None:
        """Take along what the changes are counted against."""
        baseline = self._layout.baselines / source_id
        if baseline.is_dir():
            self._copy_layers([baseline], staged / "baseline", copy, layer=False)
        elif layer is not None and not (staged / "layer").exists():
            self._copy_layers([layer.template / "baseline"], staged / "baseline", copy, layer=False)

    def _publish(self, staged: Path, workspace_id: str) -> None:
        """Move everything into its place; a directory that is there already and not empty is left
        alone, and the copy fails.
        """
        for name, parent in (
            ("layer", self._layout.layers),
            ("baseline", self._layout.baselines),
            ("tree", self._layout.trees),
        ):
            if (staged / name).exists():
                (staged / name).rename(parent / workspace_id)


class _Watched:
    """Ends a copy when nobody wants it any more or the disk fills up."""

    def __init__(self, root: Path, reserve_bytes: int, stop: threading.Event) -> None:
        self._root = root
        self._reserve_bytes = reserve_bytes
        self._stop = stop
        self._entries = 0

    def goes_on(self) -> None:
        if self._stop.is_set():
            raise CopyStopped
        if self._entries % _ENTRIES_BETWEEN_LOOKS == 0:
            found = os.statvfs(self._root)
            if found.f_bavail * found.f_frsize < self._reserve_bytes:
                raise HostFull("its disk is nearly full")
        self._entries += 1


def git_marks(layers: Sequence[Path]) -> dict[str, tuple[int, int, int]]:
    """Return what tells HEAD, index and refs of a workspace from what they were before."""
    marks: dict[str, tuple[int, int, int]] = {}
    pending: list[tuple[str, ...]] = [(".git", "refs")]
    with opened_view(layers) as top:
        with top.below((".git",)) as git:
            if git is not None:
                for name in sorted(_NAMING & (entries := git.entries()).keys()):
                    _mark(marks, name, git.look(name, entries[name]))
        while pending and len(marks) < _MOST_MARKS:
            parts = pending.pop()
            with top.below(parts) as view:
                for name, descriptor in (view.entries() if view is not None else {}).items():
                    found = view.look(name, descriptor) if view is not None else None
                    if found is not None and stat.S_ISDIR(found.st_mode):
                        pending.append((*parts, name))
                    else:
                        _mark(marks, "/".join((*parts, name)), found)
    return marks


def _mark(marks: dict[str, tuple[int, int, int]], name: str, found: os.stat_result | None) -> None:
    if found is not None:
        marks[name] = (found.st_ino, found.st_size, found.st_mtime_ns)


def put_on_branch(layers: Sequence[Path], branch: str, object_format: ObjectFormat) -> None:
    """Put HEAD of a copy on a new branch at the commit that it names; only the topmost layer is
    written.

    Raises ForkFailed, and BranchInUse when the copy has such a branch at another commit, or one
    that stands in its way.
    """
    try:
        with opened_view(layers) as top:
            refs = GitRefs(top=top, object_format=object_format)
            commit = refs.head().commit
            known = refs.below("heads")
    except RefsUnreadable as error:
        raise ForkFailed(f"its git directory cannot be read ({error})") from None
    wanted = f"refs/heads/{branch}"
    for ref, oid in known.items():
        blocks = ref.startswith(f"{wanted}/") or wanted.startswith(f"{ref}/")
        if blocks or (ref == wanted and oid != commit):
            raise BranchInUse(branch)
    try:
        if commit and wanted not in known:
            _write(layers[0], [".git", *wanted.split("/")], f"{commit}\n")
        _write(layers[0], [".git", "HEAD"], f"ref: {wanted}\n")
    except OSError as error:
        log.warning("branch of a fork not written", extra={"cause": str(error)})
        raise ForkFailed("its git directory cannot be written") from None


def _write(top: Path, parts: Sequence[str], text: str) -> None:
    """Write a file of a copy, making directories, never through a link."""
    descriptor = os.open(top, _DIRECTORY)
    try:
        for part in parts[:-1]:
            with suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=descriptor)
            below = os.open(part, _DIRECTORY, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        draft = f"{parts[-1]}.fork"
        file = os.open(draft, _NEW, 0o644, dir_fd=descriptor)
        try:
            os.write(file, text.encode())
        finally:
            os.close(file)
        os.rename(draft, parts[-1], src_dir_fd=descriptor, dst_dir_fd=descriptor)
    finally:
        os.close(descriptor)
