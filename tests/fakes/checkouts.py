"""Stores, trees and a ledger of the workspace-provisioner in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from workspace_provisioner.ports import CheckoutPlan, ObjectsLacking, Quarantine
from workspace_provisioner.sources import ProjectKey
from workspace_provisioner.workspaces import Snapshot, State, Workspace


class MemoryQuarantine:
    """Takes any bytes for a pack; whole unless `lacking` says otherwise."""

    def __init__(self, stores: MemoryStores) -> None:
        self._stores = stores

    async def receive(self, chunks: AsyncIterator[bytes]) -> int:
        return sum([len(chunk) async for chunk in chunks])

    async def admit(self, snapshot: Snapshot) -> None:
        self._stores.kept.append(snapshot)


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

    async def knows_tree(self, key: ProjectKey, tree: str) -> bool:
        return any(tree == each.changes_tree for each in self._of(key))

    async def tips(self, key: ProjectKey) -> tuple[str, ...]:
        return tuple(commit for each in self._of(key) for commit in each.commits)[:64]

    async def is_whole(self, key: ProjectKey, roots: Sequence[str]) -> bool:
        return key not in self.damaged

    async def forget(self, key: ProjectKey) -> None:
        self.kept = [each for each in self.kept if each.key != key]
        self.damaged.discard(key)

    def quarantine(self, key: ProjectKey) -> AbstractAsyncContextManager[Quarantine]:
        return self._quarantine()

    @asynccontextmanager
    async def _quarantine(self) -> AsyncIterator[Quarantine]:
        yield MemoryQuarantine(self)

    async def snapshots(self) -> Sequence[Snapshot]:
        return list(self.kept)


class MemoryTrees:
    """Trees that are names; a build waits for `gate` and fails when `lacking` is set."""

    def __init__(self) -> None:
        self.staged: set[str] = set()
        self.placed: set[str] = set()
        self.builds: list[CheckoutPlan] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.begun = asyncio.Event()
        self.lacking = False
        self.free = 2**40

    async def build(self, plan: CheckoutPlan) -> bool:
        self.builds.append(plan)
        self.staged.add(plan.workspace_id)
        self.begun.set()
        await self.gate.wait()
        if self.lacking:
            raise ObjectsLacking
        return False

    async def publish(self, workspace_id: str) -> None:
        self.staged.remove(workspace_id)
        self.placed.add(workspace_id)

    async def discard(self, workspace_id: str) -> None:
        self.staged.discard(workspace_id)
        self.placed.discard(workspace_id)

    async def count_changes(self, workspace: Workspace) -> int | None:
        return 0 if workspace.workspace_id in self.placed else None

    async def present(self) -> frozenset[str]:
        return frozenset(self.placed)

    async def sweep(self) -> None:
        self.staged.clear()

    async def empty_trash(self) -> bool:
        return True

    async def free_bytes(self) -> int:
        return self.free


class MemoryLedger:
    """Records in a dict."""

    def __init__(self) -> None:
        self.records: dict[str, Workspace] = {}

    def get(self, workspace_id: str) -> Workspace | None:
        return self.records.get(workspace_id)

    def provisioned(self) -> int:
        return sum(each.state is State.PROVISIONED for each in self.records.values())

    def all(self) -> Iterable[Workspace]:
        return [self.records[each] for each in sorted(self.records)]

    async def put(self, workspace: Workspace) -> None:
        self.records[workspace.workspace_id] = workspace
        await asyncio.sleep(0)

    async def remove(self, workspace_id: str) -> None:
        self.records.pop(workspace_id, None)
