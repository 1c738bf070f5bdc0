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
from fairlead.launch.v1 import launch_pb2_grpc
from fairlead.snapshot.v1 import snapshot_pb2_grpc
from fairlead.workspace.v1 import workspace_pb2_grpc
from signalling.execution_grpc_api import EXECUTION_SERVICE, ExecutionApi
from signalling.executor import Executor
from signalling.launch_grpc_api import LAUNCH_SERVICE, LaunchApi
from signalling.launch_mirror import LaunchMirror
from signalling.launch_record import LaunchTimings
from signalling.launch_runs import LaunchRuns
from signalling.launch_tracing import RunSpans, TracedPlacement
from signalling.launch_watcher import LaunchWatcher
from signalling.launcher import Launcher
from signalling.launches import Launches
from signalling.neighbour_channels import ChannelCache
from signalling.neighbours import GrpcExecutions, GrpcSandboxes
from signalling.placement import Placer
from signalling.ports import Channels, Hosts, Mesh
from signalling.redis_hosts import RedisHosts, RedisSnapshotDirectory
from signalling.redis_launches import RedisEvents, RedisLaunches, RedisLocations
from signalling.redis_workspaces import RedisWorkspaces
from signalling.snapshot_grpc_api import SNAPSHOT_SERVICE, SnapshotApi
from signalling.span_store_client import NoSpanStore, SpanStoreClient
from signalling.uploads import Uploads
from signalling.workspace_grpc_api import WORKSPACE_SERVICE, WorkspaceApi
from signalling.workspace_keeper import WorkspaceKeeper
from signalling.workspace_neighbours import GrpcWorkspaces

LAUNCH_SERVICES = (LAUNCH_SERVICE, EXECUTION_SERVICE, SNAPSHOT_SERVICE, WORKSPACE_SERVICE)
_SETTLE_SECONDS = 3.0
_GATHER_SECONDS = 0.1
_CHECK_PERIOD_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchHalf:
    """What the front door serves of launches."""

    launcher: Launcher
    uploads: Uploads
    workspaces: WorkspaceKeeper
    executor: Executor
    launches: Launches
    hosts: Hosts

    def register(self, server: grpc.aio.Server) -> None:
        """Add LaunchService, ExecutionService, SnapshotService and WorkspaceService to a server."""
        launch_pb2_grpc.add_LaunchServiceServicer_to_server(
            LaunchApi(launcher=self.launcher), server
        )
        execution_pb2_grpc.add_ExecutionServiceServicer_to_server(
            ExecutionApi(executor=self.executor), server
        )
        snapshot_pb2_grpc.add_SnapshotServiceServicer_to_server(
            SnapshotApi(uploads=self.uploads), server
        )
        workspace_pb2_grpc.add_WorkspaceServiceServicer_to_server(
            WorkspaceApi(keeper=self.workspaces), server
        )

    async def drain(self) -> None:
        """Take no new launches and end the streams; what runs goes on until the process stops."""
        await self.launcher.drain()
        self.executor.drain()
        self.workspaces.drain()


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
        launcher = Launcher(
            launches=launches,
            runs=runs,
            mirror=mirror,
            store=store,
            watcher=LaunchWatcher(
                launches=launches, log=events, executions=executions, timings=timings, clock=clock
            ),
            placement=placement,
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
        runs.own(runs.recover())
        yield LaunchHalf(
            launcher=launcher,
            uploads=uploads,
            workspaces=WorkspaceKeeper(
                workspaces=workspaces,
                directory=RedisWorkspaces(redis=redis),
                placement=placement,
                hosts=hosts,
                uploads=uploads,
                launches=launches,
                own=runs.own,
                id_key=(secret or "").encode(),
            ),
            executor=Executor(
                launches=launches,
                locations=RedisLocations(redis=redis),
                hosts=hosts,
                executions=executions,
                timings=timings,
            ),
            launches=launches,
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
