"""A workspace-provisioner in this process, over a real directory and real git, without wire and
Redis.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from chassis.clock import Clock, SystemClock
from tests.fakes.git_client import GitClient
from workspace_provisioner.core import Bounds, Core, opened_core
from workspace_provisioner.git.pack_caps import PackCaps
from workspace_provisioner.ports import Disk, SnapshotDirectory
from workspace_provisioner.sources import Source, Tip
from workspace_provisioner.store.quarantine import Intake
from workspace_provisioner.workspaces import Miss, MissReason, Snapshot, Workspace

LEASE = timedelta(minutes=30)


class SnapshotList:
    """A directory of snapshots in a list."""

    def __init__(self) -> None:
        self.published: list[Snapshot] = []

    async def publish(self, snapshot: Snapshot) -> None:
        self.published.append(snapshot)

    async def is_current(self) -> bool:
        return True


async def chunked(pack: bytes, size: int = 64 * 1024) -> AsyncIterator[bytes]:
    """Yield a pack in chunks; nothing for an empty one."""
    for start in range(0, len(pack), size):
        yield pack[start : start + size]


class ProvisionerRoom:
    """The parts of the room; `reasons` are those that it counted."""

    def __init__(self, core: Core, reasons: list[MissReason]) -> None:
        self.core = core
        self.reasons = reasons
        self.layout = core.layout
        self.stores = core.stores
        self.trees = core.trees
        self.ledger = core.ledger
        self.preparations = core.preparations
        self.importer = core.importer
        self.provisioner = core.provisioner

    async def upload(
        self,
        client: GitClient,
        source: Source | None = None,
        *,
        having: Sequence[str] = (),
        tips: tuple[Tip, ...] = (),
    ) -> Snapshot:
        """Upload what makes a source whole: HEAD of the client when none is given."""
        source = source or client.source()
        wanted = [source.commit, *(tip.commit for tip in tips)]
        if source.changes and not source.changes.pack:
            wanted.append(source.changes.tree)
        pack = client.pack(wanted, having)
        return await self.importer.receive(source, tips, chunked(pack))

    async def ask(
        self, key: str, source: Source, branch: str = "", *, overlay: bool = False
    ) -> Workspace | Miss:
        """Materialize."""
        return await self.provisioner.materialize(
            idempotency_key=key, source=source, branch=branch, lease=LEASE, overlay=overlay
        )

    async def make(
        self, key: str, source: Source, branch: str = "", *, overlay: bool = False
    ) -> tuple[Workspace, Path]:
        """Materialize what has to be there; returns the workspace and its path."""
        made = await self.ask(key, source, branch, overlay=overlay)
        assert isinstance(made, Workspace), made
        return made, self.layout.trees / made.workspace_id

    def leftovers(self) -> list[str]:
        """Return what is staged or in quarantine."""
        found = [*self.layout.staging.iterdir(), *self.layout.incoming.iterdir()]
        return [str(path) for path in found]


@asynccontextmanager
async def open_room(
    host_root: Path,
    *,
    clock: Clock | None = None,
    directory: SnapshotDirectory | None = None,
    intake: Intake | None = None,
    workspaces: int = 1000,
    builds: int = 8,
    caps: PackCaps | None = None,
    disk: Disk | None = None,
) -> AsyncIterator[ProvisionerRoom]:
    """Open the room on a host root, reconciled as after a restart."""
    program = shutil.which("git")
    assert program is not None
    intake = intake or Intake(2**31, 30, 60)
    reasons: list[MissReason] = []
    async with opened_core(
        host_root=host_root,
        git_program=program,
        secret=b"secret",
        bounds=Bounds(
            workspaces=workspaces,
            builds=builds,
            tenant_workspaces=workspaces,
            uploads=4,
            pack_bytes=intake.pack_bytes,
            idle_seconds=intake.idle_seconds,
            git_seconds=intake.git_seconds,
            reserve_bytes=0,
            caps=caps or PackCaps(),
        ),
        clock=clock or SystemClock(),
        directory=directory or SnapshotList(),
        on_reason=reasons.append,
        disk=disk,
    ) as core:
        yield ProvisionerRoom(core, reasons)


@asynccontextmanager
async def open_layered_room(
    host_root: Path, *, disk: Disk | None = None
) -> AsyncIterator[ProvisionerRoom]:
    """Open the room on a host root; skips the test where overlays cannot be mounted."""
    async with open_room(host_root, disk=disk) as room:
        if room.trees.can_overlay:
            yield room
            return
    pytest.skip("overlays cannot be mounted here")
