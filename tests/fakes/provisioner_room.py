"""A workspace-provisioner in this process, over a real directory and real git, without wire and
Redis.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from chassis.clock import Clock, SystemClock
from tests.fakes.git_client import GitClient
from workspace_provisioner.builder import Builder
from workspace_provisioner.file_layout import Layout
from workspace_provisioner.file_work import FileWork
from workspace_provisioner.git_command import Git
from workspace_provisioner.git_quarantine import Intake
from workspace_provisioner.git_stores import GitStores
from workspace_provisioner.git_trees import GitTrees
from workspace_provisioner.importer import Importer
from workspace_provisioner.ledger_files import LedgerFiles
from workspace_provisioner.ports import SnapshotDirectory
from workspace_provisioner.provisioner import Limits, Provisioner
from workspace_provisioner.sources import Source, Tip
from workspace_provisioner.workspaces import Miss, Snapshot, Workspace

LEASE = timedelta(minutes=30)


class SnapshotList:
    """A directory of snapshots in a list."""

    def __init__(self) -> None:
        self.published: list[Snapshot] = []

    async def publish(self, snapshot: Snapshot) -> None:
        self.published.append(snapshot)


async def chunked(pack: bytes, size: int = 64 * 1024) -> AsyncIterator[bytes]:
    """Yield a pack in chunks; nothing for an empty one."""
    for start in range(0, len(pack), size):
        yield pack[start : start + size]


@dataclass(slots=True)
class ProvisionerRoom:
    """The parts of the room."""

    layout: Layout
    stores: GitStores
    trees: GitTrees
    ledger: LedgerFiles
    importer: Importer
    provisioner: Provisioner

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

    async def ask(self, key: str, source: Source, branch: str = "") -> Workspace | Miss:
        """Materialize."""
        return await self.provisioner.materialize(
            idempotency_key=key, source=source, branch=branch, lease=LEASE
        )

    async def make(self, key: str, source: Source, branch: str = "") -> tuple[Workspace, Path]:
        """Materialize what has to be there; returns the workspace and its path."""
        made = await self.ask(key, source, branch)
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
) -> AsyncIterator[ProvisionerRoom]:
    """Open the room on a host root, reconciled as after a restart."""
    clock = clock or SystemClock()
    layout = Layout(host_root)
    layout.make()
    program = shutil.which("git")
    assert program is not None
    async with AsyncExitStack() as stack:
        executor = stack.enter_context(ThreadPoolExecutor(max_workers=4))
        files = FileWork(executor=executor)
        git = Git(program=program, seconds=60)
        stores = GitStores(
            layout=layout, git=git, files=files, intake=intake or Intake(2**31, 30, 60)
        )
        trees = GitTrees(layout=layout, git=git, files=files)
        ledger = LedgerFiles(directory=layout.records, files=files)
        await ledger.load()
        importer = Importer(
            stores=stores,
            trees=trees,
            directory=directory or SnapshotList(),
            clock=clock,
            secret=b"secret",
            uploads=4,
            reserve_bytes=0,
        )
        builder = Builder(
            stores=stores,
            trees=trees,
            ledger=ledger,
            clock=clock,
            reserve_bytes=0,
            on_discard=lambda: None,
        )
        provisioner = Provisioner(
            builder=builder,
            trees=trees,
            ledger=ledger,
            clock=clock,
            secret=b"secret",
            limits=Limits(workspaces=workspaces, builds=builds),
            on_discard=lambda: None,
        )
        await provisioner.reconcile()
        stack.push_async_callback(provisioner.close)
        yield ProvisionerRoom(layout, stores, trees, ledger, importer, provisioner)
