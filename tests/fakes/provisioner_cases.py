"""The provisioner's use cases over fakes: no file, no git, no process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import timedelta

from chassis.errors import Unavailable
from tests.fakes.checkouts import MemoryLedger, MemoryStores, MemoryTrees
from tests.fakes.clock import FakeClock
from tests.fakes.registry import (
    MemoryClaims,
    MemoryCopies,
    MemoryLocks,
    MemoryUnsaved,
    NoUpstreams,
    StepByStep,
)
from workspace_provisioner.builder import Builder
from workspace_provisioner.gate import Gate
from workspace_provisioner.importer import Importer
from workspace_provisioner.ports import UpstreamTips
from workspace_provisioner.provisioner import Limits, Provisioner
from workspace_provisioner.sources import Changes, Source, Tip, checked_source
from workspace_provisioner.workspaces import (
    Miss,
    MissReason,
    PlacedSubmodule,
    Snapshot,
    Workspace,
)

LEASE = timedelta(minutes=30)
COMMIT, TREE = "a" * 40, "b" * 40


class AwayDirectory:
    """A directory that cannot be reached."""

    def __init__(self) -> None:
        self.asked = 0

    async def publish(self, snapshot: Snapshot) -> None:
        self.asked += 1
        raise Unavailable("away", reason="redis_unavailable")

    async def is_current(self) -> bool:
        raise Unavailable("away", reason="redis_unavailable")


class NoSubmodules:
    """Initialises nothing."""

    async def initialise(self, workspace_id: str, source: Source) -> tuple[PlacedSubmodule, ...]:
        return ()


@dataclass
class Room:
    stores: MemoryStores = field(default_factory=MemoryStores)
    trees: MemoryTrees = field(default_factory=MemoryTrees)
    ledger: MemoryLedger = field(default_factory=MemoryLedger)
    clock: FakeClock = field(default_factory=FakeClock)
    directory: AwayDirectory = field(default_factory=AwayDirectory)
    capacity: int = 10
    tenant_capacity: int = 10
    upstreams: UpstreamTips = field(default_factory=NoUpstreams)

    def __post_init__(self) -> None:
        self.claims = MemoryClaims()
        self.copies = MemoryCopies(self.trees)
        self.unsaved = MemoryUnsaved()
        self.reasons: list[MissReason] = []
        warm = StepByStep(ledger=self.ledger, trees=self.trees, claims=self.claims)
        self.importer = Importer(
            stores=self.stores,
            trees=self.trees,
            directory=self.directory,
            clock=self.clock,
            secret=b"s",
            uploads=2,
            reserve_bytes=1000,
            on_snapshot=lambda snapshot: None,
        )
        slots = asyncio.Semaphore(4)
        builder = Builder(
            gate=Gate(stores=self.stores, importer=self.importer),
            trees=self.trees,
            ledger=self.ledger,
            warm=warm,
            submodules=NoSubmodules(),
            clock=self.clock,
            reserve_bytes=1000,
            slots=slots,
            on_discard=lambda: None,
            on_reason=self.reasons.append,
        )
        self.provisioner = Provisioner(
            builder=builder,
            trees=self.trees,
            ledger=self.ledger,
            claims=self.claims,
            copies=self.copies,
            warm=warm,
            unsaved=self.unsaved,
            upstreams=self.upstreams,
            locks=MemoryLocks(),
            clock=self.clock,
            secret=b"s",
            limits=Limits(
                workspaces=self.capacity, builds=4, tenant_workspaces=self.tenant_capacity
            ),
            slots=slots,
            on_discard=lambda: None,
        )

    async def upload(self, source: Source) -> Snapshot:
        async def chunks() -> AsyncIterator[bytes]:
            yield b"12"
            yield b"345"

        return await self.importer.receive(source, (Tip("refs/heads/x", "d" * 40),), chunks())

    async def ask(
        self,
        source: Source,
        key: str = "k",
        branch: str = "",
        name: str = "",
        *,
        claims_branch: bool = False,
    ) -> Workspace | Miss:
        return await self.provisioner.materialize(
            idempotency_key=key,
            source=source,
            branch=branch,
            lease=LEASE,
            name=name,
            claims_branch=claims_branch,
        )

    async def make(self, key: str = "k", tenant: str = "ada") -> Workspace:
        made = await self.ask(source(tenant=tenant), key)
        assert isinstance(made, Workspace)
        return made


def source(
    tenant: str = "ada", commit: str = COMMIT, changes: Changes | None = None, branch: str = "main"
) -> Source:
    return checked_source(
        tenant=tenant,
        project="p",
        object_format="",
        commit=commit,
        branch=branch,
        digest="",
        changes=changes,
    )


async def room_with_commit(capacity: int = 10) -> Room:
    room = Room(capacity=capacity)
    await room.upload(source())
    return room
