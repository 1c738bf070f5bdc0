"""Builds the room; the only file that knows the concrete classes."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager

from chassis.announcement import Announcer
from chassis.clock import SystemClock
from chassis.redis_client import open_redis
from chassis.rpc_server import RpcServer, serve_grpc
from chassis.telemetry import start_telemetry, stop_telemetry
from fairlead.workspace.v1.workspace_pb2_grpc import add_WorkspaceServiceServicer_to_server
from workspace_provisioner.builder import Builder
from workspace_provisioner.errors import GitNotFound
from workspace_provisioner.file_layout import Layout, write_whole
from workspace_provisioner.file_work import FileWork
from workspace_provisioner.git_command import Git
from workspace_provisioner.git_quarantine import Intake
from workspace_provisioner.git_stores import GitStores
from workspace_provisioner.git_trees import GitTrees
from workspace_provisioner.grpc_api import SERVICE, WorkspaceApi
from workspace_provisioner.host_root import taken_host_root
from workspace_provisioner.importer import Importer
from workspace_provisioner.janitor import Janitor
from workspace_provisioner.ledger_files import LedgerFiles
from workspace_provisioner.provisioner import Limits, Provisioner
from workspace_provisioner.settings import Settings
from workspace_provisioner.snapshot_directory import RedisSnapshotDirectory
from workspace_provisioner.tracing import TracedSnapshots, TracedWorkspaces


class Room:
    """The running workspace-provisioner."""

    def __init__(self, *, server: RpcServer, provisioner: Provisioner) -> None:
        self._server = server
        self._provisioner = provisioner
        self.address = server.address

    async def drain(self) -> None:
        """Take no new calls and let the open checkouts end."""
        await self._server.drain()
        await self._provisioner.drain()


@asynccontextmanager
async def build(settings: Settings) -> AsyncIterator[Room]:
    """Open everything top-down and close it in reverse."""
    async with AsyncExitStack() as stack:
        program = shutil.which("git")
        if program is None:
            raise GitNotFound
        rpc_secret = settings.rpc_secret()
        layout = Layout(settings.host_root)
        epoch = stack.enter_context(taken_host_root(layout))
        provider = start_telemetry("workspace-provisioner")
        stack.callback(stop_telemetry, provider)
        tracer = provider.get_tracer("workspace_provisioner")
        executor = stack.enter_context(
            ThreadPoolExecutor(max_workers=4, thread_name_prefix="file-tree")
        )
        files = FileWork(executor=executor)
        secret = _key(layout, settings)
        clock = SystemClock()
        git = Git(program=program, seconds=settings.git_seconds)
        redis = await stack.enter_async_context(open_redis(settings.redis_url))

        intake = Intake(settings.max_pack_bytes, settings.idle_seconds, settings.git_seconds)
        stores = GitStores(layout=layout, git=git, files=files, intake=intake)
        trees = GitTrees(layout=layout, git=git, files=files)
        ledger = LedgerFiles(directory=layout.records, files=files)
        await ledger.load()
        importer = Importer(
            stores=stores,
            trees=trees,
            directory=RedisSnapshotDirectory(redis=redis, host_id=settings.host_id),
            clock=clock,
            secret=secret,
            uploads=settings.uploads,
            reserve_bytes=settings.reserve_bytes,
        )
        janitor = Janitor(trees=trees, importer=importer)
        builder = Builder(
            stores=stores,
            trees=trees,
            ledger=ledger,
            clock=clock,
            reserve_bytes=settings.reserve_bytes,
            on_discard=janitor.hurry,
        )
        provisioner = Provisioner(
            builder=builder,
            trees=trees,
            ledger=ledger,
            clock=clock,
            secret=secret,
            limits=Limits(workspaces=settings.capacity, builds=settings.builds),
            on_discard=janitor.hurry,
        )
        await provisioner.reconcile()
        await stack.enter_async_context(janitor.running(provisioner))
        stack.push_async_callback(provisioner.close)

        host_id = settings.host_id
        api = WorkspaceApi(
            workspaces=TracedWorkspaces(workspaces=provisioner, tracer=tracer, host_id=host_id),
            snapshots=TracedSnapshots(snapshots=importer, tracer=tracer, host_id=host_id),
            host_id=host_id,
        )
        server = await stack.enter_async_context(
            serve_grpc(
                bind=settings.bind,
                register=lambda server: add_WorkspaceServiceServicer_to_server(api, server),
                services=[SERVICE],
                tracer_provider=provider,
                secret=rpc_secret,
            )
        )
        await stack.enter_async_context(
            Announcer(
                redis=redis,
                key=f"fairlead:host:{host_id}:workspace",
                payload=lambda: {
                    "host_id": host_id,
                    "address": settings.advertise or server.address,
                    "epoch": str(epoch),
                    "capacity": str(settings.capacity),
                    "workspaces": str(provisioner.held()),
                },
            )
        )
        yield Room(server=server, provisioner=provisioner)


def _key(layout: Layout, settings: Settings) -> bytes:
    """Return the key of derived ids: the stack's secret, or one that is made once and kept on
    this host.
    """
    secret = settings.secret()
    if secret is not None:
        return secret.encode()
    path = layout.root / ".key"
    if not path.exists():
        write_whole(path, secrets.token_hex(32).encode(), durably=True)
    return path.read_bytes()
