"""Makes small delta layers without a git process: files and index of one commit over the checkout
of another, from the objects that a resident reader gives.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from workspace_provisioner.disk.layout import Layout
from workspace_provisioner.disk.work import FileWork
from workspace_provisioner.errors import CheckoutFailed
from workspace_provisioner.git.command import Place
from workspace_provisioner.git.content import GitContent
from workspace_provisioner.git.index import SETTLED_SECONDS, Contents, IndexUnreadable
from workspace_provisioner.git.index_edits import FileEntry, edited
from workspace_provisioner.git.object_readers import ObjectReaders
from workspace_provisioner.git.pack_objects import Found, Unsuited
from workspace_provisioner.git.tree_changes import TreeChanges, Written, compared, tree_of
from workspace_provisioner.lfs import is_pointer
from workspace_provisioner.sources import ProjectKey
from workspace_provisioner.templates import Template
from workspace_provisioner.trees.change_files import write_changes

_FILE, _EXECUTABLE, _LINK = 0o100644, 0o100755, 0o120000


class DeltaFiles:
    """Writes the delta layers of a layout's templates."""

    def __init__(
        self, *, layout: Layout, files: FileWork, content: GitContent, readers: ObjectReaders
    ) -> None:
        self._layout = layout
        self._files = files
        self._content = content
        self._readers = readers

    async def changes(self, key: ProjectKey, base: Template, commit: str) -> TreeChanges | None:
        """Return what makes a commit's files of a template's; None when git has to find out.
        Raises PackTooLarge.
        """
        store, object_format = self._layout.store(key), key.object_format
        await self._content.check_tree(Place(store), commit)
        if base.converts or base.lfs_pointers:
            return None

        async def fetch(oids: Iterable[str]) -> Mapping[str, Found]:
            return await self._readers.fetch(store, oids)

        try:
            commits = await fetch((base.commit, commit))
            old = tree_of(commits, base.commit, object_format)
            found = await compared(
                fetch, object_format, old, tree_of(commits, commit, object_format)
            )
        except Unsuited:
            return None
        return None if any(is_pointer(each.content) for each in found.written) else found

    async def write(
        self, staged: Path, key: ProjectKey, base: Template, changes: TreeChanges
    ) -> Contents:
        """Write changes into `staged/layer`, with a settled index; raises CheckoutFailed."""
        index = self._layout.templates / base.template_id / "baseline/index"
        return await self._files.run(_write, staged, key, base, index, changes)


def _write(
    staged: Path, key: ProjectKey, base: Template, index: Path, changes: TreeChanges
) -> Contents:
    layer = staged / "layer"
    write_changes(layer, changes, layered=True)
    moment = (int(time.time()) - SETTLED_SECONDS) * 10**9
    try:
        found = edited(
            index.read_bytes(),
            key.object_format,
            gone=[b"/".join(path) for path in (*changes.gone, *changes.replaced)],
            written=[_settled(os.fsencode(layer), each, moment) for each in changes.written],
        )
    except IndexUnreadable as error:
        raise CheckoutFailed("reading git's index") from error
    for path in (layer / ".git/index", staged / "baseline/index"):
        path.write_bytes(found.content)
        path.chmod(0o644)
    return Contents(
        has_submodules=base.has_submodules,
        submodules_fault=base.submodules_fault,
        files=found.files,
        size=base.size + found.growth,
    )


def _settled(layer: bytes, each: Written, moment: int) -> FileEntry:
    name = b"/".join(each.path)
    path = os.path.join(layer, name)
    os.utime(path, ns=(moment, moment), follow_symlinks=False)
    mode = _LINK if each.mode is None else _EXECUTABLE if each.mode & 0o100 else _FILE
    return FileEntry(name, mode, bytes.fromhex(each.oid), os.lstat(path))
