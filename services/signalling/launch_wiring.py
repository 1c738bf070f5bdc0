"""Builds the launch half of the front door; with `wiring.py` the only place that knows concrete
classes.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import grpc
from opentelemetry.trace import TracerProvider
from redis.asyncio import Redis

from chassis.clock import Clock
from chassis.rpc_channel import open_channel
from fairlead.execution.v1 import execution_pb2_grpc
from fairlead.file.v1 import file_pb2_grpc
from fairlead.launch.v1 import launch_pb2_grpc
from fairlead.object.v1 import object_pb2_grpc
from fairlead.sandbox.v1 import sandbox_pb2_grpc
from fairlead.snapshot.v1 import snapshot_pb2_grpc
from fairlead.workspace.v1 import workspace_pb2_grpc
from signalling.execution_grpc_api import EXECUTION_SERVICE, ExecutionApi
from signalling.executor import Executor
from signalling.file_grpc_api import FILE_SERVICE, FileApi
from signalling.file_neighbours import GrpcFiles
from signalling.filer import Filer
from signalling.launch_grpc_api import LAUNCH_SERVICE, LaunchApi
from signalling.launch_mirror import LaunchMirror
from signalling.launch_record import LaunchTimings
from signalling.launch_runs import LaunchRuns
from signalling.launch_tracing import RunSpans, TracedPlacement
from signalling.launch_watcher import LaunchWatcher
from signalling.launcher import Launcher
from signalling.launches import Launches
from signalling.neighbour_channels import ChannelCache
from signalling.neighbours import GrpcExecutions
from signalling.object_grpc_api import OBJECT_SERVICE, ObjectApi
from signalling.object_neighbours import GrpcObjects
from signalling.objects import Objects
from signalling.placement import Placer
from signalling.ports import Channels, Hosts, Mesh
from signalling.reach import Reach
from signalling.redis_hosts import RedisHosts, RedisSnapshotDirectory
from signalling.redis_launches import RedisEvents, RedisLaunches, RedisLocations
from signalling.redis_places import RedisPlaces
from signalling.sandbox_grpc_api import SANDBOX_SERVICE, SandboxApi
from signalling.sandbox_keeper import SandboxKeeper
from signalling.sandbox_neighbours import GrpcSandboxes
from signalling.snapshot_grpc_api import SNAPSHOT_SERVICE, SnapshotApi
from signalling.span_store_client import NoSpanStore, SpanStoreClient
from signalling.uploads import Uploads
from signalling.workspace_grpc_api import WORKSPACE_SERVICE, WorkspaceApi
from signalling.workspace_keeper import WorkspaceKeeper
from signalling.workspace_neighbours import GrpcWorkspaces

LAUNCH_SERVICES = (
    LAUNCH_SERVICE,
    EXECUTION_SERVICE,
    FILE_SERVICE,
    OBJECT_SERVICE,
    SNAPSHOT_SERVICE,
    WORKSPACE_SERVICE,
    SANDBOX_SERVICE,
)
_SETTLE_SECONDS = 3.0
_GATHER_SECONDS = 0.1
_CHECK_PERIOD_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchHalf:
    """What the front door serves of launches."""

    launcher: Launcher
    uploads: Uploads
    workspaces: WorkspaceKeeper
    sandboxes: SandboxKeeper
    executor: Executor
    filer: Filer
    objects: Objects
    launches: Launches
    reach: Reach
    hosts: Hosts

    def register(self, server: grpc.aio.Server) -> None:
        """Add the services of launches, and of what they hold, to a server."""
        launch_pb2_grpc.add_LaunchServiceServicer_to_server(
            LaunchApi(launcher=self.launcher), server
        )
        execution_pb2_grpc.add_ExecutionServiceServicer_to_server(
            ExecutionApi(executor=self.executor), server
        )
        file_pb2_grpc.add_FileServiceServicer_to_server(FileApi(files=self.filer), server)
        object_pb2_grpc.add_ObjectServiceServicer_to_server(ObjectApi(objects=self.objects), server)
        snapshot_pb2_grpc.add_SnapshotServiceServicer_to_server(
            SnapshotApi(uploads=self.uploads), server
        )
        workspace_pb2_grpc.add_WorkspaceServiceServicer_to_server(
            WorkspaceApi(keeper=self.workspaces), server
        )
        sandbox_pb2_grpc.add_SandboxServiceServicer_to_server(
            SandboxApi(keeper=self.sandboxes), server
        )

    async def drain(self) -> None:
        """Take no new launches and end the streams; what runs goes on until the process stops."""
        await self.launcher.drain()
        self.executor.drain()
        self.workspaces.drain()
        self.sandboxes.drain()


@asynccontextmanager
async def open_launches(
    *,
    redis: Redis,
    tracer_provider: TracerProvider,
    secret: str | None,
    replica: str,
    channels: Callable[[Launches], Channels],
    timings: LaunchTimings,
    span_store_url: str | None,
    span_store_token: str | None,
    clock: Clock,
) -> AsyncIterator[LaunchHalf]:
    """Build and run the launch half; `channels` is called once, with what it may know of launches.

    What this replica left behind when it was last stopped is recovered in the background.
    """
    async with AsyncExitStack() as stack:
        cache = await stack.enter_async_context(
            ChannelCache(
                open_channel=lambda address: open_channel(
                    address, tracer_provider=tracer_provider, secret=secret
                )
            )
        )
        hosts = await stack.enter_async_context(RedisHosts(redis=redis, clock=clock))
        store, events = RedisLaunches(redis=redis), RedisEvents(redis=redis)
        mirror = LaunchMirror(
            store=store,
            owner=replica,
            gather_seconds=_GATHER_SECONDS,
            check_period=_CHECK_PERIOD_SECONDS,
            retry_pause=timings.retry_pause,
        )
        writing = asyncio.create_task(mirror.run(), name="launch mirror")
        stack.push_async_callback(_finish, mirror, writing)
        workspaces = GrpcWorkspaces(channels=cache)
        sandboxes = GrpcSandboxes(channels=cache)
        executions = GrpcExecutions(channels=cache)
        launches = Launches(
            mirror=mirror, store=store, hosts=hosts, sandboxes=sandboxes, clock=clock
        )
        mesh = Mesh(
            hosts=hosts,
            workspaces=workspaces,
            sandboxes=sandboxes,
            executions=executions,
            channels=channels(launches),
        )
        uploads = Uploads(
            workspaces=workspaces,
            clock=clock,
            make_token=lambda: secrets.token_urlsafe(32),
            timeout_seconds=timings.upload_timeout,
        )
        runs = await stack.enter_async_context(
            LaunchRuns(
                mirror=mirror,
                store=store,
                log=events,
                mesh=mesh,
                uploads=uploads,
                timings=timings,
                clock=clock,
                replica=replica,
            )
        )
        placement = TracedPlacement(
            placement=Placer(hosts=hosts, directory=RedisSnapshotDirectory(redis=redis)),
            tracer_provider=tracer_provider,
        )
        keeper = WorkspaceKeeper(
            workspaces=workspaces,
            directory=RedisPlaces(redis=redis, noun="workspace"),
            placement=placement,
            hosts=hosts,
            uploads=uploads,
            launches=launches,
            own=runs.own,
            id_key=(secret or "").encode(),
        )
        sandbox_keeper = SandboxKeeper(
            sandboxes=sandboxes,
            workspaces=keeper,
            directory=RedisPlaces(redis=redis, noun="sandbox"),
            placement=placement,
            hosts=hosts,
            channels=mesh.channels,
            own=runs.own,
            id_key=(secret or "").encode(),
        )
        launcher = Launcher(
            launches=launches,
            runs=runs,
            mirror=mirror,
            store=store,
            watcher=LaunchWatcher(
                launches=launches, log=events, executions=executions, timings=timings, clock=clock
            ),
            placement=placement,
            workspaces=keeper,
            hosts=hosts,
            spans=RunSpans(tracer_provider=tracer_provider),
            span_store=stack.enter_context(
                SpanStoreClient(url=span_store_url, token=span_store_token)
            )
            if span_store_url
            else NoSpanStore(),
            timings=timings,
            clock=clock,
            replica=replica,
            id_key=(secret or "").encode(),
        )
        executor = Executor(
            launches=launches,
            locations=RedisLocations(redis=redis),
            hosts=hosts,
            executions=executions,
            sandboxes=sandbox_keeper,
            timings=timings,
        )
        runs.own(runs.recover())
        yield LaunchHalf(
            launcher=launcher,
            uploads=uploads,
            workspaces=keeper,
            sandboxes=sandbox_keeper,
            executor=executor,
            filer=Filer(places=executor, files=GrpcFiles(channels=cache)),
            objects=Objects(places=executor, hosts=GrpcObjects(channels=cache)),
            launches=launches,
            reach=Reach(launches=launches, sandboxes=sandbox_keeper),
            hosts=hosts,
        )


async def _finish(mirror: LaunchMirror, writing: asyncio.Task[None]) -> None:
    """Give the mirror a moment to write what has just changed, then stop it."""
    try:
        async with asyncio.timeout(_SETTLE_SECONDS):
            await mirror.settle()
    except TimeoutError:
        pass
    writing.cancel()
    await asyncio.wait((writing,))
