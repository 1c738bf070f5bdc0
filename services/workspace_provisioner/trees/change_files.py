"""Writes small changes over a clean checkout without a git process of their own: the objects come
from the request's pack and from a resident reader of the store.

Files are written by descriptors of directories and never through a link; see openat(2).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

from workspace_provisioner.disk.layout import Layout
from workspace_provisioner.disk.work import FileWork
from workspace_provisioner.git.checkout import CHANGES_PACK
from workspace_provisioner.git.object_readers import ObjectReaders
from workspace_provisioner.git.pack_objects import Found, PackObjects, Unsuited
from workspace_provisioner.git.tree_changes import TreeChanges, Written, compared, tree_of
from workspace_provisioner.ports import CheckoutPlan

SHARED_BYTES = 1024 * 1024
"""Files of a tree of changes with more bytes in all are written once on a host, not for each
workspace.
"""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class ChangeFiles:
    """Applies the changes of a plan."""

    def __init__(self, *, layout: Layout, files: FileWork, readers: ObjectReaders) -> None:
        self._layout = layout
        self._files = files
        self._readers = readers

    async def apply(self, top: Path, baseline: Path, plan: CheckoutPlan, *, layered: bool) -> bool:
        """Write the changes below `top`, which nobody else sees yet, and note them in `baseline`;
        returns False, with nothing written, when git has to do it.

        With `layered`, `top` is the upper layer over a clean checkout, and what is gone becomes a
        whiteout; False is returned as well when the files should be shared.
        """
        try:
            changes = await self._read(plan)
        except Unsuited:
            return False
        pack = plan.changes.pack if plan.changes else b""
        size = sum(len(each.content) for each in changes.written)
        if layered and not pack and size > SHARED_BYTES:
            return False
        await self._files.run(_write_all, top, changes, baseline, pack, layered)
        return True

    async def _read(self, plan: CheckoutPlan) -> TreeChanges:
        changes, store = plan.changes, self._layout.store(plan.key)
        if changes is None:
            return TreeChanges()
        object_format = plan.key.object_format
        own: Mapping[str, Found] = {}
        wanted = {plan.commit}
        if changes.pack:
            pack = PackObjects(changes.pack, object_format)
            wanted |= pack.bases
        there = await self._readers.fetch(store, wanted)
        if changes.pack:
            own = pack.resolve(there.get)

        async def fetch(oids: Iterable[str]) -> Mapping[str, Found]:
            lacking = [oid for oid in oids if oid not in own]
            found = await self._readers.fetch(store, lacking) if lacking else {}
            return {**found, **{oid: own[oid] for oid in oids if oid in own}}

        old = tree_of(there, plan.commit, object_format)
        return await compared(fetch, object_format, old, changes.tree)


def _write_all(top: Path, changes: TreeChanges, baseline: Path, pack: bytes, layered: bool) -> None:
    write_changes(top, changes, layered=layered)
    baseline.mkdir(mode=0o700, exist_ok=True)
    (baseline / CHANGES_PACK).write_bytes(pack)


def write_changes(top: Path, changes: TreeChanges, *, layered: bool) -> None:
    """Make one tree of another below `top`, or say in an upper layer what differs; blocking."""
    root = os.open(top, _DIRECTORY)
    try:
        places = _Places(root, layered=layered)
        try:
            for path in changes.gone:
                places.remove(path)
            # In a layer, what is written hides what is below.
            for path in () if layered else changes.replaced:
                places.remove(path)
            for path in changes.directories:
                places.make(path)
            for each in changes.written:
                places.write(each)
        finally:
            places.close()
    finally:
        os.close(root)


class _Places:
    """The directories of a tree, each opened once and beneath the one before."""

    def __init__(self, root: int, *, layered: bool) -> None:
        self._root = root
        self._layered = layered
        self._opened: dict[tuple[bytes, ...], int] = {}

    def close(self) -> None:
        """Close every directory but the root."""
        for descriptor in self._opened.values():
            os.close(descriptor)

    def remove(self, path: tuple[bytes, ...]) -> None:
        """Take away what is there, or hide what is below."""
        directory, name = self._open(path[:-1]), path[-1]
        if self._layered:
            os.mknod(name, stat.S_IFCHR, 0, dir_fd=directory)
        else:
            _delete(directory, name)

    def make(self, path: tuple[bytes, ...]) -> None:
        """Make a directory."""
        os.mkdir(path[-1], 0o755, dir_fd=self._open(path[:-1]))

    def write(self, each: Written) -> None:
        """Write a file or a link."""
        directory, name = self._open(each.path[:-1]), each.path[-1]
        if each.mode is None:
            os.symlink(each.content, name, dir_fd=directory)
            return
        descriptor = os.open(name, _CREATE, each.mode, dir_fd=directory)
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            os.fchmod(descriptor, each.mode)
            left = memoryview(each.content)
            while left:
                left = left[file.write(left) :]

    def _open(self, path: tuple[bytes, ...]) -> int:
        if not path:
            return self._root
        if path not in self._opened:
            above = self._open(path[:-1])
            try:
                self._opened[path] = os.open(path[-1], _DIRECTORY, dir_fd=above)
            except FileNotFoundError:
                # In a layer only what differs is there; the rest shows through.
                os.mkdir(path[-1], 0o755, dir_fd=above)
                self._opened[path] = os.open(path[-1], _DIRECTORY, dir_fd=above)
        return self._opened[path]


def _delete(directory: int, name: bytes) -> None:
    """Delete a file, or a directory with all that is in it."""
    try:
        os.unlink(name, dir_fd=directory)
        return
    except IsADirectoryError:
        pass
    opened = os.open(name, _DIRECTORY, dir_fd=directory)
    try:
        for each in os.listdir(opened):
            _delete(opened, os.fsencode(each))
    finally:
        os.close(opened)
    os.rmdir(name, dir_fd=directory)
