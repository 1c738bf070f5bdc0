"""Locks, claims, copies and checks of the workspace-provisioner in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

from tests.fakes.checkouts import MemoryTrees
from workspace_provisioner.keyed_locks import KeyedLocks
from workspace_provisioner.names import Claim, claims_of
from workspace_provisioner.ports import CheckoutPlan, Claims, Ledger, Trees
from workspace_provisioner.sources import Source
from workspace_provisioner.workspaces import Freshness, Workspace


class MemoryLocks:
    """Locks between the tasks of a process."""

    def __init__(self) -> None:
        self._tasks = KeyedLocks()

    @asynccontextmanager
    async def hold(self, key: str) -> AsyncIterator[None]:
        async with self._tasks.hold(key):
            yield

    @asynccontextmanager
    async def attempt(self, key: str) -> AsyncIterator[bool]:
        if self._tasks.is_held(key):
            yield False
        else:
            async with self._tasks.hold(key):
                yield True

    @asynccontextmanager
    async def wrest(self, key: str, *, seconds: float) -> AsyncIterator[bool]:
        async with self._tasks.hold(key):
            yield False

    def is_wanted(self, key: str) -> bool:
        return False


class MemoryClaims:
    """Claims in a dict: which workspace has what."""

    def __init__(self) -> None:
        self.taken: dict[Claim, str] = {}

    async def take(self, workspace_id: str, claims: Sequence[Claim]) -> None:
        await asyncio.sleep(0)
        for claim in claims:
            if self.taken.get(claim, workspace_id) != workspace_id:
                raise claim.refused()
        self.taken.update(dict.fromkeys(claims, workspace_id))

    async def drop(self, workspace_id: str, claims: Iterable[Claim]) -> None:
        for claim in claims:
            if self.taken.get(claim) == workspace_id:
                del self.taken[claim]

    async def restore(self) -> None:
        return


class StepByStep:
    """Nothing is prepared, and what is given back is given back one after the other."""

    def __init__(self, *, ledger: Ledger, trees: Trees, claims: Claims) -> None:
        self._ledger = ledger
        self._trees = trees
        self._claims = claims

    async def take(self, requested: Workspace, plan: CheckoutPlan) -> Workspace | None:
        return None

    async def give_back(self, released: Workspace) -> None:
        await self._ledger.put(released)
        try:
            await self._trees.discard(released.workspace_id)
        finally:
            await self._claims.drop(released.workspace_id, claims_of(released))


class MemoryCopies:
    """Copies that are names; a copy waits for the gate of the trees."""

    def __init__(self, trees: MemoryTrees) -> None:
        self._trees = trees
        self.made: list[tuple[str, str, bool]] = []
        self.failure: Exception | None = None

    async def copy(self, source: Workspace, made: Workspace, *, overlay: bool) -> None:
        self.made.append((source.workspace_id, made.workspace_id, overlay))
        self._trees.begun.set()
        await self._trees.gate.wait()
        self._trees.placed.add(made.workspace_id)
        if self.failure is not None:
            raise self.failure


class MemoryUnsaved:
    """Finds what it is told to find."""

    def __init__(self) -> None:
        self.found: Exception | None = None

    async def check(self, workspace: Workspace) -> None:
        if self.found is not None:
            raise self.found


class NoUpstreams:
    """Knows no upstream."""

    async def resolve(self, source: Source) -> tuple[Source, Freshness | None]:
        assert source.upstream is not None
        return source, Freshness(
            source.upstream.branch, None, fallback=True, reason="origin_denied"
        )


async def nothing() -> None:
    """Do nothing first."""
