"""The object stores of a host with their importer and gate, over a real directory and real git."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from chassis.clock import Clock, SystemClock
from tests.fakes.checkouts import MemoryTrees
from tests.fakes.git_client import GitClient
from workspace_provisioner.disk.file_disk import FileDisk
from workspace_provisioner.disk.host_root import joined_host_root
from workspace_provisioner.disk.layout import Layout
from workspace_provisioner.disk.work import FileWork
from workspace_provisioner.gate import Gate
from workspace_provisioner.git.command import Git
from workspace_provisioner.git.content import GitContent
from workspace_provisioner.git.object_readers import ObjectReaders
from workspace_provisioner.git.pack_caps import PackCaps
from workspace_provisioner.importer import Importer
from workspace_provisioner.ports import Disk, SnapshotDirectory
from workspace_provisioner.sources import ProjectKey, Source, Tip
from workspace_provisioner.store.git_upkeep import GitUpkeep
from workspace_provisioner.store.parts import made_stores
from workspace_provisioner.store.quarantine import Intake
from workspace_provisioner.store.stores import GitStores
from workspace_provisioner.wall.git_wall import GitWall
from workspace_provisioner.workspaces import Snapshot


class SnapshotList:
    """A directory of snapshots in a list."""

    def __init__(self) -> None:
        self.published: list[Snapshot] = []

    async def publish(self, snapshot: Snapshot) -> None:
        self.published.append(snapshot)

    async def is_current(self) -> bool:
        return bool(self.published)


async def chunked(pack: bytes, size: int = 64 * 1024) -> AsyncIterator[bytes]:
    """Yield a pack in chunks; nothing for an empty one."""
    for start in range(0, len(pack), size):
        yield pack[start : start + size]


@dataclass(slots=True)
class StoreRoom:
    """The parts, and the keys whose stamps were said to be void."""

    layout: Layout
    git: Git
    stores: GitStores
    importer: Importer
    gate: Gate
    care: GitUpkeep
    voided: list[ProjectKey] = field(default_factory=list)

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
        return await self.importer.receive(source, tips, chunked(client.pack(wanted, having)))

    def store(self, source: Source) -> Path:
        """Return where a source's objects are."""
        return self.layout.store(source.key)


@asynccontextmanager
async def open_store_room(
    host_root: Path,
    *,
    clock: Clock | None = None,
    directory: SnapshotDirectory | None = None,
    disk: Disk | None = None,
    patience_seconds: float = 30.0,
) -> AsyncIterator[StoreRoom]:
    """Open the stores of a host root."""
    clock = clock or SystemClock()
    program = shutil.which("git")
    assert program is not None
    async with AsyncExitStack() as stack:
        layout = Layout(host_root)
        root = stack.enter_context(joined_host_root(layout))
        executor = stack.enter_context(ThreadPoolExecutor(max_workers=4))
        files = FileWork(executor=executor)
        wall = await stack.enter_async_context(GitWall(program=program, directory=layout.staging))
        git = Git(wall=wall, seconds=60)
        voided: list[ProjectKey] = []

        async def on_epoch(key: ProjectKey) -> None:
            voided.append(key)

        readers = ObjectReaders(git=git)
        stack.push_async_callback(readers.close)
        stores, care = made_stores(
            layout=layout,
            git=git,
            files=files,
            content=GitContent(git=git, caps=PackCaps(), seconds=60, unpacking=files),
            readers=readers,
            disk=disk or FileDisk(),
            clock=clock,
            owners=root.owners,
            intake=Intake(2**31, 30, 60),
            on_epoch=on_epoch,
            patience_seconds=patience_seconds,
        )
        importer = Importer(
            stores=stores,
            trees=MemoryTrees(),
            directory=directory or SnapshotList(),
            clock=clock,
            secret=b"secret",
            uploads=4,
            reserve_bytes=0,
            on_snapshot=lambda snapshot: None,
        )
        gate = Gate(stores=stores, importer=importer)
        yield StoreRoom(layout, git, stores, importer, gate, care, voided)
