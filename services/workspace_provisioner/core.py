"""Puts the provisioner together from the standard library and git alone: no wire, no Redis, no
telemetry.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from chassis.clock import Clock
from workspace_provisioner.builder import Builder
from workspace_provisioner.disk.claim_files import ClaimFiles
from workspace_provisioner.disk.file_disk import FileDisk, boot_id
from workspace_provisioner.disk.host_locks import HostLocks
from workspace_provisioner.disk.host_root import joined_host_root
from workspace_provisioner.disk.layout import Layout
from workspace_provisioner.disk.ledger_files import LedgerFiles
from workspace_provisioner.disk.record_logs import RecordLogs
from workspace_provisioner.disk.work import FileWork
from workspace_provisioner.gate import Gate
from workspace_provisioner.git.command import Git
from workspace_provisioner.git.content import GitContent
from workspace_provisioner.git.object_readers import ObjectReaders
from workspace_provisioner.git.pack_caps import PackCaps
from workspace_provisioner.importer import Importer
from workspace_provisioner.janitor import Janitor
from workspace_provisioner.origin_access import OriginAccess, opened_origins
from workspace_provisioner.ports import Disk, SnapshotDirectory
from workspace_provisioner.preparations import Preparations
from workspace_provisioner.provisioner import Limits, Provisioner
from workspace_provisioner.store.parts import made_stores
from workspace_provisioner.store.quarantine import Intake
from workspace_provisioner.store.stores import GitStores
from workspace_provisioner.trees.git_trees import GitTrees
from workspace_provisioner.trees.overlay_probe import overlay_fault
from workspace_provisioner.trees.tree_parts import opened_trees
from workspace_provisioner.trees.unsaved import GitUnsaved
from workspace_provisioner.trees.warm_files import WarmFiles
from workspace_provisioner.trees.workspace_copies import WorkspaceCopies
from workspace_provisioner.upkeep import Upkeep
from workspace_provisioner.wall.git_wall import GitWall
from workspace_provisioner.workspaces import MissReason

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a host takes on, and for how long it waits; see the settings of the same names."""

    workspaces: int
    builds: int
    uploads: int
    pack_bytes: int
    idle_seconds: float
    git_seconds: float
    reserve_bytes: int
    tenant_workspaces: int = 100_000
    caps: PackCaps = field(default_factory=PackCaps)


@dataclass(frozen=True, slots=True)
class Core:
    """The running use cases of one host."""

    layout: Layout
    stores: GitStores
    trees: GitTrees
    ledger: LedgerFiles
    claims: ClaimFiles
    locks: HostLocks
    preparations: Preparations
    provisioner: Provisioner
    importer: Importer
    upkeep: Upkeep
    epoch: int


@asynccontextmanager
async def opened_core(
    *,
    host_root: Path,
    git_program: str,
    secret: bytes | None,
    bounds: Bounds,
    clock: Clock,
    directory: SnapshotDirectory,
    on_reason: Callable[[MissReason], None],
    access: OriginAccess | None = None,
    disk: Disk | None = None,
) -> AsyncIterator[Core]:
    """Open everything top-down and close it in reverse; raises HostRootInUse.

    `secret` is the key of derived ids; without one the host makes its own and keeps it. `on_reason`
    is told of each reason for which a launch was not the warm one.
    """
    async with AsyncExitStack() as stack:
        layout = Layout(host_root)
        root = stack.enter_context(joined_host_root(layout))
        disk = disk or FileDisk()
        secret = secret or _kept_secret(layout, disk)
        executor = stack.enter_context(
            ThreadPoolExecutor(max_workers=4, thread_name_prefix="file-tree")
        )
        files = FileWork(executor=executor)
        # What may take long has threads of its own: a warm take waits for none of it.
        slow, copying, unpacking = (
            FileWork(
                executor=stack.enter_context(
                    ThreadPoolExecutor(max_workers=2, thread_name_prefix=f"file-tree-{name}")
                )
            )
            for name in ("slow", "copies", "packs")
        )
        slots = asyncio.Semaphore(bounds.builds)
        wall = await stack.enter_async_context(
            GitWall(program=git_program, directory=layout.staging)
        )
        git = Git(wall=wall, seconds=bounds.git_seconds)
        content = GitContent(
            git=git, caps=bounds.caps, seconds=bounds.git_seconds, unpacking=unpacking
        )
        readers = ObjectReaders(git=git)
        intake = Intake(bounds.pack_bytes, bounds.idle_seconds, bounds.git_seconds)
        stores, care = made_stores(
            layout=layout,
            git=git,
            files=files,
            content=content,
            readers=readers,
            disk=disk,
            clock=clock,
            owners=root.owners,
            intake=intake,
            on_epoch=lambda key: trees.refresh(key),
        )
        fault = await overlay_fault(git, layout.staging / root.owners.own_name())
        if fault:
            log.warning("overlays cannot be mounted", extra={"cause": fault})
        trees, preparations = opened_trees(
            layout=layout,
            git=git,
            files=files,
            slow=slow,
            content=content,
            readers=readers,
            disk=disk,
            stores=stores,
            owners=root.owners,
            clock=clock,
            overlay=not fault,
        )
        stack.push_async_callback(trees.close)
        locks = HostLocks(path=layout.root / ".locks")
        stack.callback(locks.close)
        boot = boot_id()
        logs = RecordLogs(directory=layout.record_logs, disk=disk, owners=root.owners, boot=boot)
        stack.callback(logs.close)
        ledger = LedgerFiles(directory=layout.records, logs=logs, disk=disk, files=files, boot=boot)
        await ledger.load()
        claims = ClaimFiles(layout=layout, disk=disk, files=files, ledger=ledger, locks=locks)
        warm = WarmFiles(files=files, ledger=ledger, claims=claims, trees=trees)
        importer = Importer(
            stores=stores,
            trees=trees,
            directory=directory,
            clock=clock,
            secret=secret,
            uploads=bounds.uploads,
            reserve_bytes=bounds.reserve_bytes,
            on_snapshot=lambda snapshot: preparations.want(snapshot.key, snapshot.commit),
        )
        origins = await stack.enter_async_context(
            opened_origins(
                access or OriginAccess(),
                layout=layout,
                git=git,
                files=files,
                stores=stores,
                intake=importer,
                clock=clock,
                pack_bytes=bounds.pack_bytes,
                slots=slots,
            )
        )
        upkeep = Upkeep(care=care, ledger=ledger, trees=trees)
        janitor = Janitor(trees=trees, importer=importer, upkeep=upkeep)
        builder = Builder(
            gate=Gate(stores=stores, importer=importer),
            trees=trees,
            ledger=ledger,
            warm=warm,
            submodules=origins.submodules,
            clock=clock,
            reserve_bytes=bounds.reserve_bytes,
            slots=slots,
            on_discard=janitor.hurry,
            on_reason=on_reason,
        )
        provisioner = Provisioner(
            builder=builder,
            trees=trees,
            ledger=ledger,
            claims=claims,
            copies=WorkspaceCopies(
                layout=layout, files=copying, owners=root.owners, reserve_bytes=bounds.reserve_bytes
            ),
            warm=warm,
            unsaved=GitUnsaved(
                layout=layout, git=git, files=files, owners=root.owners, trees=trees
            ),
            upstreams=origins.upstreams,
            locks=locks,
            clock=clock,
            secret=secret,
            limits=Limits(
                workspaces=bounds.workspaces,
                builds=bounds.builds,
                tenant_workspaces=bounds.tenant_workspaces,
            ),
            slots=slots,
            on_discard=janitor.hurry,
        )
        await provisioner.reconcile()
        await stack.enter_async_context(janitor.running(provisioner))
        await stack.enter_async_context(preparations.running(lambda: provisioner.is_building))
        stack.push_async_callback(provisioner.close)
        yield Core(
            layout=layout,
            stores=stores,
            trees=trees,
            ledger=ledger,
            claims=claims,
            locks=locks,
            preparations=preparations,
            provisioner=provisioner,
            importer=importer,
            upkeep=upkeep,
            epoch=root.epoch,
        )


def _kept_secret(layout: Layout, disk: Disk) -> bytes:
    """Return this host's own key, which is made once, whoever comes first."""
    path = layout.root / ".key"
    if disk.make_exclusive(path, secrets.token_hex(32).encode()):
        disk.sync_all(layout.root)
    return path.read_bytes()
