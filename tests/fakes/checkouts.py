"""Stores, trees and a ledger of the workspace-provisioner in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime

from workspace_provisioner.ports import (
    CheckoutPlan,
    Drifted,
    ObjectsLacking,
    Quarantine,
    Taken,
)
from workspace_provisioner.sources import ProjectKey, Tip
from workspace_provisioner.stamps import PackedTags, StoreStamp
from workspace_provisioner.workspaces import MissReason, Rung, Snapshot, State, Workspace


class MemoryQuarantine:
    """Takes any bytes for a pack; whole unless `lacking` says otherwise."""

    def __init__(self, stores: MemoryStores) -> None:
        self._stores = stores

    async def receive(self, chunks: AsyncIterator[bytes]) -> int:
        return sum([len(chunk) async for chunk in chunks])

    async def admit(self, snapshot: Snapshot) -> Snapshot:
        self._stores.kept.append(snapshot)
        return snapshot


class MemoryStores:
    """Stores that know what was admitted; `damaged` keys have lost it."""

    def __init__(self) -> None:
        self.kept: list[Snapshot] = []
        self.damaged: set[ProjectKey] = set()

    def _of(self, key: ProjectKey) -> list[Snapshot]:
        return [each for each in self.kept if each.key == key]

    async def holds(self, key: ProjectKey) -> bool:
        return bool(self._of(key))

    async def knows(self, key: ProjectKey, commit: str) -> bool:
        return any(commit in each.commits for each in self._of(key))

    async def lack(self, key: ProjectKey, commit: str, *, again: bool = False) -> MissReason | None:
        if again and key in self.damaged:
            await self.forget(key)
            return MissReason.MISSING_OBJECTS
        if not await self.holds(key):
            return MissReason.NO_BASE
        return None if await self.knows(key, commit) else MissReason.UNKNOWN_COMMIT

    async def stamp(self, key: ProjectKey, commit: str) -> StoreStamp | None:
        known = await self.knows(key, commit)
        return StoreStamp(0, commit, commit, False, ()) if known else None

    def verify(self, key: ProjectKey, stamp: StoreStamp) -> MissReason | None:
        if any(stamp.pin in each.commits for each in self._of(key)):
            return MissReason.MISSING_OBJECTS if key in self.damaged else None
        return MissReason.REF_DRIFT

    async def mark_used(self, key: ProjectKey) -> None:
        return

    async def is_shallow(self, key: ProjectKey, commit: str) -> bool:
        return any(commit in each.shallow for each in self._of(key))

    async def tags(self, key: ProjectKey) -> tuple[Tip, ...]:
        tips = [tip for each in self._of(key) for tip in each.tips]
        return tuple(tip for tip in tips if tip.ref.startswith("refs/tags/"))

    def packed_tags(self, key: ProjectKey) -> PackedTags:
        return PackedTags()

    async def doubt(self, key: ProjectKey) -> bool:
        if key not in self.damaged:
            return False
        await self.forget(key)
        return True

    async def knows_tree(self, key: ProjectKey, tree: str) -> bool:
        return any(tree == each.changes_tree for each in self._of(key))

    async def tips(self, key: ProjectKey) -> tuple[str, ...]:
        return tuple(commit for each in self._of(key) for commit in each.commits)[:64]

    async def forget(self, key: ProjectKey) -> None:
        self.kept = [each for each in self.kept if each.key != key]
        self.damaged.discard(key)

    def quarantine(
        self, key: ProjectKey, *, alone: Sequence[str] = ()
    ) -> AbstractAsyncContextManager[Quarantine]:
        return self._quarantine()

    @asynccontextmanager
    async def _quarantine(self) -> AsyncIterator[Quarantine]:
        yield MemoryQuarantine(self)

    async def snapshots(self) -> Sequence[Snapshot]:
        return list(self.kept)


class MemoryCare:
    """Stores that need no care; `asked` are the calls."""

    def __init__(self, *keys: ProjectKey) -> None:
        self._keys = keys
        self.asked: list[tuple[str, ProjectKey, datetime | None]] = []

    async def keys(self) -> Sequence[ProjectKey]:
        return self._keys

    async def tend(self, key: ProjectKey) -> None:
        self.asked.append(("tend", key, None))

    async def prune(self, key: ProjectKey, *, live_since: datetime | None) -> None:
        self.asked.append(("prune", key, live_since))


class MemoryTrees:
    """Trees that are names; a take waits for `gate` and fails when `lacking` is set."""

    def __init__(self) -> None:
        self.placed: set[str] = set()
        self.builds: list[CheckoutPlan] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.begun = asyncio.Event()
        self.lacking = False
        self.drifted: MissReason | None = None
        self.refreshed: list[ProjectKey] = []
        self.can_overlay = True
        self.free = 2**40

    async def take(self, plan: CheckoutPlan) -> Taken:
        self.builds.append(plan)
        self.begun.set()
        await self.gate.wait()
        if self.lacking:
            raise ObjectsLacking
        if self.drifted is not None:
            raise Drifted(self.drifted)
        self.placed.add(plan.workspace_id)
        rung = Rung.OVERLAY if plan.overlay and self.can_overlay else Rung.CHECKOUT
        return Taken(rung, has_submodules=False, lfs_pointers=0, submodules_fault="")

    async def refresh(self, key: ProjectKey) -> None:
        self.refreshed.append(key)
        self.drifted = None

    async def discard(self, workspace_id: str) -> None:
        self.placed.discard(workspace_id)

    async def count_changes(self, workspace: Workspace) -> int | None:
        return 0 if workspace.workspace_id in self.placed else None

    async def present(self) -> frozenset[str]:
        return frozenset(self.placed)

    async def strays(self) -> frozenset[str]:
        return frozenset(self.placed)

    async def sweep(self) -> None:
        return

    async def empty_trash(self) -> bool:
        return True

    async def make_durable(self) -> None:
        return

    async def free_bytes(self) -> int:
        return self.free


class MemoryLedger:
    """Records in a dict."""

    def __init__(self) -> None:
        self.records: dict[str, Workspace] = {}

    def get(self, workspace_id: str) -> Workspace | None:
        return self.records.get(workspace_id)

    def provisioned(self, tenant: str = "") -> int:
        return sum(
            each.state is State.PROVISIONED and tenant in ("", each.tenant)
            for each in self.records.values()
        )

    def all(self) -> Iterable[Workspace]:
        return [self.records[each] for each in sorted(self.records)]

    async def put(self, workspace: Workspace) -> None:
        self.records[workspace.workspace_id] = workspace
        await asyncio.sleep(0)

    async def remove(self, workspace_id: str) -> None:
        self.records.pop(workspace_id, None)

    async def flush(self, first: Callable[[], Awaitable[None]]) -> None:
        await first()
