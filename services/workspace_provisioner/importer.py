"""Takes uploads in: a pack, connected and durable, becomes a snapshot."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import datetime, timedelta

from chassis.clock import Clock
from chassis.errors import Unavailable
from chassis.ids import derived_id
from workspace_provisioner.errors import HostFull, SnapshotIncomplete, storage_errors
from workspace_provisioner.keyed_locks import KeyedLocks
from workspace_provisioner.ports import SnapshotDirectory, Stores, Trees
from workspace_provisioner.sources import Source, Tip
from workspace_provisioner.workspaces import Snapshot

log = logging.getLogger(__name__)

_TAG_REFS = "refs/tags/"
_REPUBLISH_ANYWAY = timedelta(days=1)


class Importer:
    """Receives uploads and what origins send, at most `uploads` at once, half of them for one
    tenant; what comes whole with a request is not counted. `reserve_bytes` of the disk stay free.

    `on_snapshot` is told of each snapshot that became durable.
    """

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
        on_snapshot: Callable[[Snapshot], None],
    ) -> None:
        self._stores = stores
        self._trees = trees
        self._directory = directory
        self._clock = clock
        self._secret = secret
        self._slots = asyncio.Semaphore(uploads)
        self._turns = KeyedLocks(most=max(1, uploads // 2))
        self._reserve_bytes = reserve_bytes
        self._on_snapshot = on_snapshot
        self._republished: datetime | None = None
        self._behind = False

    async def receive(
        self,
        source: Source,
        tips: tuple[Tip, ...],
        chunks: AsyncIterator[bytes],
        *,
        tips_only: bool = False,
    ) -> Snapshot:
        """Take a pack in that makes the source's commit, its tree of changes and all tips whole;
        with `tips_only` their trees alone, while their history comes in another upload.

        The same upload again gives the same snapshot. When it fails or the caller leaves, nothing
        stays. Raises PackInvalid, PackTooLarge, SnapshotIncomplete, UploadIdle, HostFull,
        StoreLocked and StorageUnavailable.
        """
        if tips_only:
            tips = tuple(tip for tip in tips if not tip.ref.startswith(_TAG_REFS))
        async with self._turns.hold(source.key.tenant), self._slots:
            return await self._receive(source, tips, chunks, tips_only=tips_only)

    async def receive_whole(self, source: Source, tips: tuple[Tip, ...], pack: bytes) -> Snapshot:
        """Take a pack in that came whole with a request, as `receive` does: it waits for no upload,
        since nobody has to send anything more.
        """
        return await self._receive(source, tips, _once(pack), tips_only=False)

    async def _receive(
        self,
        source: Source,
        tips: tuple[Tip, ...],
        chunks: AsyncIterator[bytes],
        *,
        tips_only: bool,
    ) -> Snapshot:
        with storage_errors():
            snapshot = await self._take_in(source, tips, chunks, tips_only=tips_only)
        log.info(
            "snapshot imported",
            extra={
                "snapshot_id": snapshot.snapshot_id,
                "received_bytes": snapshot.received_bytes,
            },
        )
        self._on_snapshot(snapshot)
        await self._announce(snapshot)
        return snapshot

    async def _take_in(
        self,
        source: Source,
        tips: tuple[Tip, ...],
        chunks: AsyncIterator[bytes],
        *,
        tips_only: bool,
    ) -> Snapshot:
        if await self._trees.free_bytes() < self._reserve_bytes:
            raise HostFull("its disk is nearly full")
        snapshot = self._snapshot(source, tips, tips_only=tips_only)
        alone = snapshot.commits if tips_only else ()
        try:
            async with self._stores.quarantine(source.key, alone=alone) as quarantine:
                received = await quarantine.receive(chunks)
                return await quarantine.admit(replace(snapshot, received_bytes=received))
        except SnapshotIncomplete as error:
            # Perhaps for want of what this host has lost: then the next miss asks for it.
            error.is_lost_here = await self._stores.doubt(source.key)
            raise

    async def republish(self) -> None:
        """Write all snapshots of this host into the directory again when it may have lost them,
        and once a day.
        """
        now = self._clock.now()
        due = self._republished is None or now - self._republished >= _REPUBLISH_ANYWAY
        try:
            if not due and not self._behind and await self._directory.is_current():
                return
        except Unavailable as error:
            log.warning("directory not read", extra={"cause": error.reason})
            return
        self._behind = True
        for snapshot in await self._stores.snapshots():
            if not await self._announce(snapshot):
                return
        self._behind = False
        self._republished = now

    async def _announce(self, snapshot: Snapshot) -> bool:
        try:
            await self._directory.publish(snapshot)
        except Unavailable as error:
            log.warning("snapshot not in the directory", extra={"cause": error.reason})
            self._behind = True
            return False
        return True

    def _snapshot(self, source: Source, tips: tuple[Tip, ...], *, tips_only: bool) -> Snapshot:
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
                *(["tips only"] if tips_only else []),
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


async def _once(pack: bytes) -> AsyncIterator[bytes]:
    yield pack
