"""Decides whether a source can be made from what is here, and takes the commits in that came along
with it.
"""

from __future__ import annotations

from dataclasses import replace

from workspace_provisioner.errors import CheckoutFailed, SnapshotIncomplete
from workspace_provisioner.importer import Importer
from workspace_provisioner.ports import Stores
from workspace_provisioner.sources import Commits, Source, Tip
from workspace_provisioner.workspaces import Miss, MissReason, miss_without_commit


class Gate:
    """Lets a commit through that is reachable from the tenant's durable tips of the project."""

    def __init__(self, *, stores: Stores, importer: Importer) -> None:
        self._stores = stores
        self._importer = importer

    async def passed(self, source: Source) -> None:
        """Say that a commit was served without a check: what was prepared from it still fits the
        store, which says as much.
        """
        await self._stores.mark_used(source.key)

    async def check(self, source: Source) -> Miss | None:
        """Say what is lacking, or None; warm, the answer comes from memory.

        Commits and tags that travel with the source are taken in first, as an upload would be; tags
        that cannot be made whole are left out. Raises PackInvalid, PackTooLarge, HostFull,
        StoreLocked and StorageUnavailable.
        """
        reason = await self._stores.lack(source.key, source.commit)
        if reason is None:
            if self.brings_tags(source) and not await self._stores.is_shallow(
                source.key, source.commit
            ):
                await self._take_in(source, source.tags)
                reason = await self._stores.lack(source.key, source.commit)  # reads the store again
        elif source.commits and (
            (source.tags and await self._take_in(source, source.tags))
            or await self._take_in(source, ())
        ):
            reason = await self._stores.lack(source.key, source.commit)
        if reason is not None:
            return await self.miss(source, reason)
        changes = source.changes
        if (
            changes
            and not changes.pack
            and not await self._stores.knows_tree(source.key, changes.tree)
        ):
            return await self._without_changes(source, changes.tree)
        return None

    def brings_tags(self, source: Source) -> bool:
        """Say whether a tag travels with the source that the store does not have, from memory."""
        if not source.tags:
            return False
        known = self._stores.packed_tags(source.key).text
        return any(f"\n{tag.commit} {tag.ref}\n" not in known for tag in source.tags)

    async def _take_in(self, source: Source, tags: tuple[Tip, ...]) -> bool:
        """Take commits and tags in; False when they do not connect with what is here."""
        commits = source.commits or Commits((), b"")
        for base in commits.against:
            if await self._stores.lack(source.key, base) is not None:
                return False
        # The changes go their own way, with the request or with an upload.
        bare = replace(source, changes=None, commits=None, tags=())
        try:
            await self._importer.receive_whole(bare, tags, commits.pack)
        except SnapshotIncomplete:
            return False
        return True

    async def miss(self, source: Source, reason: MissReason) -> Miss:
        """Say that the commit is lacking, and the newest tips that there are."""
        tips = await self._stores.tips(source.key)
        return miss_without_commit(source, reason, tips)

    async def distrust(self, source: Source) -> Miss | None:
        """Look at the store again after something that was made from it no longer fits; None when
        the commit is here all the same.
        """
        lack = await self._stores.lack(source.key, source.commit, again=True)
        return None if lack is None else await self.miss(source, lack)

    async def lacking(self, source: Source) -> Miss:
        """Say what is lacking after a checkout did not find an object: changes that came
        incomplete, or what the store has lost. Raises CheckoutFailed when it is neither.
        """
        changes = source.changes
        if await self._stores.doubt(source.key):
            return await self.miss(source, MissReason.MISSING_OBJECTS)
        lack = await self._stores.lack(source.key, source.commit)
        if lack is not None:
            return await self.miss(source, lack)
        if changes is None or not changes.pack:
            raise CheckoutFailed("reading objects")
        return await self._without_changes(source, changes.tree)

    async def _without_changes(self, source: Source, tree: str) -> Miss:
        tips = await self._stores.tips(source.key)
        return Miss(MissReason.UNKNOWN_CHANGES, (tree,), tips)
