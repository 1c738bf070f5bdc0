"""Takes uploads in: a pack, connected and durable, becomes a snapshot."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import replace

from chassis.clock import Clock
from chassis.errors import Unavailable
from chassis.ids import derived_id
from workspace_provisioner.errors import HostFull, storage_errors
from workspace_provisioner.ports import SnapshotDirectory, Stores, Trees
from workspace_provisioner.sources import Source, Tip
from workspace_provisioner.workspaces import Snapshot

log = logging.getLogger(__name__)


class Importer:
    """Receives uploads, at most `uploads` at once; `reserve_bytes` of the disk stay free."""

    def __init__(
        self,
        *,
        stores: Stores,
        trees: Trees,
        directory: SnapshotDirectory,
        clock: Clock,
        secret: bytes,
        uploads: int,
        reserve_bytes: int,
    ) -> None:
        self._stores = stores
        self._trees = trees
        self._directory = directory
        self._clock = clock
        self._secret = secret
        self._slots = asyncio.Semaphore(uploads)
        self._reserve_bytes = reserve_bytes

    async def receive(
        self, source: Source, tips: tuple[Tip, ...], chunks: AsyncIterator[bytes]
    ) -> Snapshot:
        """Take a pack in that makes the source's commit, its tree of changes and all tips whole.

        The same upload again gives the same snapshot. When it fails or the caller leaves, nothing
        stays. Raises PackInvalid, PackTooLarge, SnapshotIncomplete, UploadIdle, HostFull and
        StorageUnavailable.
        """
        async with self._slots:
            with storage_errors():
                snapshot = await self._take_in(source, tips, chunks)
        log.info(
            "snapshot imported",
            extra={
                "snapshot_id": snapshot.snapshot_id,
                "received_bytes": snapshot.received_bytes,
            },
        )
        await self._announce(snapshot)
        return snapshot

    async def _take_in(
        self, source: Source, tips: tuple[Tip, ...], chunks: AsyncIterator[bytes]
    ) -> Snapshot:
        if await self._trees.free_bytes() < self._reserve_bytes:
            raise HostFull("its disk is nearly full")
        async with self._stores.quarantine(source.key) as quarantine:
            snapshot = self._snapshot(source, tips)
            received = await quarantine.receive(chunks)
            snapshot = replace(snapshot, received_bytes=received)
            await quarantine.admit(snapshot)
        return snapshot

    async def republish(self) -> None:
        """Write all snapshots of this host into the directory again, which may have lost them."""
        for snapshot in await self._stores.snapshots():
            if not await self._announce(snapshot):
                return

    async def _announce(self, snapshot: Snapshot) -> bool:
        try:
            await self._directory.publish(snapshot)
        except Unavailable as error:
            log.warning("snapshot not in the directory", extra={"cause": error.reason})
            return False
        return True

    def _snapshot(self, source: Source, tips: tuple[Tip, ...]) -> Snapshot:
        key = source.key
        tree = source.changes.tree if source.changes and not source.changes.pack else ""
        named = sorted(f"{tip.commit} {tip.ref}" for tip in tips)
        return Snapshot(
            snapshot_id=derived_id(
                "snp",
                key.tenant,
                key.project,
                key.object_format,
                source.commit,
                tree,
                source.digest,
                *named,
                key=self._secret,
            ),
            key=key,
            digest=source.digest,
            commit=source.commit,
            changes_tree=tree,
            tips=tips,
            created_at=self._clock.now(),
            received_bytes=0,
        )
