"""Builds the room; the only file that knows the concrete classes."""

from __future__ import annotations

import math
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from chassis.announcement import Announcer
from chassis.clock import SystemClock
from chassis.redis_client import open_redis
from chassis.rpc_server import RpcServer, serve_grpc
from chassis.telemetry import start_metrics, start_telemetry, stop_metrics, stop_telemetry
from fairlead.workspace.v1.workspace_pb2_grpc import add_WorkspaceServiceServicer_to_server
from workspace_provisioner.core import Bounds, opened_core
from workspace_provisioner.errors import GitNotFound
from workspace_provisioner.git.pack_caps import PackCaps
from workspace_provisioner.grpc_api import SERVICE, WorkspaceApi
from workspace_provisioner.origin_access import OriginAccess
from workspace_provisioner.provisioner import Provisioner
from workspace_provisioner.settings import Settings
from workspace_provisioner.snapshot_directory import RedisSnapshotDirectory
from workspace_provisioner.tracing import MissCounter, TracedSnapshots, TracedWorkspaces


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
        secret = settings.secret()
        provider = start_telemetry("workspace-provisioner")
        stack.callback(stop_telemetry, provider)
        tracer = provider.get_tracer("workspace_provisioner")
        meters = start_metrics("workspace-provisioner")
        stack.callback(stop_metrics, meters)
        misses = MissCounter(meter=meters.get_meter("workspace_provisioner"))
        redis = await stack.enter_async_context(
            open_redis(settings.redis_url, settings.redis_password())
        )
        core = await stack.enter_async_context(
            opened_core(
                host_root=settings.host_root,
                git_program=program,
                secret=secret.encode() if secret is not None else None,
                bounds=_bounds(settings),
                clock=SystemClock(),
                directory=RedisSnapshotDirectory(redis=redis, host_id=settings.host_id),
                on_reason=misses.count,
                access=OriginAccess(
                    wait_seconds=settings.origin_seconds,
                    allowed=settings.origin_allow,
                    credentials=settings.credentials,
                ),
            )
        )
        provisioner = core.provisioner

        host_id = settings.host_id
        api = WorkspaceApi(
            workspaces=TracedWorkspaces(
                workspaces=provisioner, misses=misses, tracer=tracer, host_id=host_id
            ),
            snapshots=TracedSnapshots(
                snapshots=core.importer, misses=misses, tracer=tracer, host_id=host_id
            ),
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
                    "epoch": str(core.epoch),
                    "capacity": str(settings.capacity),
                    "workspaces": str(provisioner.held()),
                },
            )
        )
        yield Room(server=server, provisioner=provisioner)


def _bounds(settings: Settings) -> Bounds:
    return Bounds(
        workspaces=settings.capacity,
        builds=settings.builds,
        uploads=settings.uploads,
        pack_bytes=settings.max_pack_bytes,
        idle_seconds=settings.idle_seconds,
        git_seconds=settings.git_seconds,
        reserve_bytes=settings.reserve_bytes,
        tenant_workspaces=math.ceil(settings.capacity * settings.tenant_share),
        caps=PackCaps(
            inflated_bytes=settings.max_inflated_bytes,
            object_bytes=settings.max_object_bytes,
            paths=settings.max_paths,
        ),
    )
