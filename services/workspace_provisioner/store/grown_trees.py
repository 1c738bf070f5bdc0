"""Counts trees that grew a little from a counted one without git: the objects come from a small
pack and from a resident reader of the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from workspace_provisioner.disk.work import FileWork
from workspace_provisioner.errors import PackTooLarge
from workspace_provisioner.git.content import GitContent
from workspace_provisioner.git.object_readers import ObjectReaders
from workspace_provisioner.git.pack_objects import Found, PackObjects, Unsuited
from workspace_provisioner.git.tree_changes import compared, tree_of
from workspace_provisioner.sources import ObjectFormat


class GrownTrees:
    """Looks at what commits of small packs add to the trees before them."""

    def __init__(self, *, files: FileWork, content: GitContent, readers: ObjectReaders) -> None:
        self._files = files
        self._content = content
        self._readers = readers

    async def read(
        self, store: Path | None, object_format: ObjectFormat, pack: bytes
    ) -> Mapping[str, Found]:
        """Return a pack's objects, whose bases may be in `store`; none when git has to read it."""
        try:
            objects = await self._files.run(PackObjects, pack, object_format)
            bases: Mapping[str, Found] = {}
            if store is not None and objects.bases:
                bases = await self._readers.fetch(store, objects.bases)
            return await self._files.run(objects.resolve, bases.get)
        except Unsuited:
            return {}

    async def fits(
        self, store: Path, object_format: ObjectFormat, own: Mapping[str, Found], commit: str
    ) -> bool:
        """Say whether the tree of a commit, whose objects are `own` or in the store, surely fits;
        False when git has to count it.
        """
        try:
            return await self._fits(store, object_format, own, commit)
        except (Unsuited, PackTooLarge):
            return False

    async def _fits(
        self, store: Path, object_format: ObjectFormat, own: Mapping[str, Found], commit: str
    ) -> bool:
        before = _before(own, commit)
        counted = self._content.counted(before)
        if counted is None:
            return False

        async def fetch(oids: Iterable[str]) -> Mapping[str, Found]:
            wanted = set(oids)
            lacking = wanted - own.keys()
            found = await self._readers.fetch(store, lacking) if lacking else {}
            return {**found, **{oid: own[oid] for oid in wanted & own.keys()}}

        commits = await fetch((before, commit))
        old, new = (tree_of(commits, each, object_format) for each in (before, commit))
        changes = await compared(fetch, object_format, old, new)
        added = [(b"/".join(path), 0) for path in changes.directories]
        added += [(b"/".join(each.path), len(each.content)) for each in changes.written]
        self._content.count_grown(counted, commit, added)
        return True


def _before(own: Mapping[str, Found], commit: str) -> str:
    """Return the first ancestor, along first parents, that is not in the pack."""
    while commit in own:
        kind, content = own[commit]
        lines = content.split(b"\n", 2)
        if kind != "commit" or len(lines) < 2 or not lines[1].startswith(b"parent "):
            raise Unsuited("a commit without parents")
        commit = lines[1][7:].decode("ascii", "replace")
    return commit
