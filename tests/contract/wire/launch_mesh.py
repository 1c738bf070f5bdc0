"""The launch half of signalling over real gRPC and a real Redis, in front of a fake host."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import grpc
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from redis.asyncio import Redis

from chassis.clock import SystemClock
from chassis.rpc_channel import open_channel
from chassis.rpc_errors import neighbour_errors
from chassis.rpc_server import serve_grpc
from chassis.rpc_wrapping import Request, Response
from fairlead.execution.v1 import execution_pb2_grpc
from fairlead.launch.v1 import launch_pb2, launch_pb2_grpc
from fairlead.sandbox.v1 import sandbox_pb2_grpc
from fairlead.snapshot.v1 import snapshot_pb2_grpc
from fairlead.workspace.v1 import workspace_pb2_grpc
from signalling.caller import Caller, set_caller
from signalling.launch_record import LaunchTimings
from signalling.launch_wiring import LAUNCH_SERVICES, LaunchHalf, open_launches
from tests.fakes.faults import Faults
from tests.fakes.host_server import (
    SANDBOX_SERVICE,
    WORKSPACE_SERVICE,
    SandboxServer,
    WorkspaceServer,
)
from tests.fakes.launch_room import COMMIT
from tests.fakes.mesh import HOST, FakeChannels
from tests.fakes.worker import FakeWorker
from tests.fakes.workspaces import FakeWorkspaces

SECRET = "stack secret"


class TenantFromMetadata(grpc.aio.ServerInterceptor):
    """Stands in for the check of API keys."""

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Request, Response] | None]
        ],
        call: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Request, Response] | None:
        fields = dict(call.invocation_metadata or ())
        set_caller(Caller(str(fields.get("tenant", "default"))))
        return await continuation(call)


@dataclass
class Mesh:
    """A fake host on the wire and the launch half of signalling in front of it."""

    launches: launch_pb2_grpc.LaunchServiceAsyncStub
    executions: execution_pb2_grpc.ExecutionServiceAsyncStub
    snapshots: snapshot_pb2_grpc.SnapshotServiceAsyncStub
    public: workspace_pb2_grpc.WorkspaceServiceAsyncStub
    sandboxes: sandbox_pb2_grpc.SandboxServiceAsyncStub
    half: LaunchHalf
    workspaces: FakeWorkspaces
    worker: FakeWorker
    channels: FakeChannels
    faults: Faults
    provisioner: WorkspaceServer
    spans: InMemorySpanExporter

    async def launch(
        self, request: launch_pb2.LaunchRequest | None = None, tenant: str = "default"
    ) -> list[launch_pb2.LaunchEvent]:
        """Launch and return every event."""
        with neighbour_errors("signalling"):
            call = self.launches.Launch(request or wanted("true"), metadata=(("tenant", tenant),))
            return [answer.event async for answer in call]

    async def until(
        self, kind: str, request: launch_pb2.LaunchRequest
    ) -> tuple[str, launch_pb2.LaunchEvent]:
        """Launch, leave the stream at the first event of a kind; return the launch's id and the
        event.
        """
        call = self.launches.Launch(request)
        launch_id = ""
        async for answer in call:
            launch_id = launch_id or answer.event.snapshot.launch_id
            if answer.event.WhichOneof("event") == kind:
                call.cancel()
                return launch_id, answer.event
        raise AssertionError(kind)

    async def get(self, launch_id: str) -> launch_pb2.Launch:
        """Return a launch."""
        answer = await self.launches.GetLaunch(launch_pb2.GetLaunchRequest(launch_id=launch_id))
        return answer.launch


def wanted(*arguments: str, **fields: object) -> launch_pb2.LaunchRequest:
    """Return a request for the commit that the fake host has."""
    request = launch_pb2.LaunchRequest(**fields)  # type: ignore[arg-type]
    request.source.project = "p"
    request.source.commit = COMMIT
    request.source.branch = "main"
    if arguments:
        request.command.arguments.extend(arguments)
    return request


@asynccontextmanager
async def running_mesh(redis: Redis, directory: str) -> AsyncIterator[Mesh]:
    spans = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans))
    clock, faults = SystemClock(), Faults()
    workspaces = FakeWorkspaces(faults=faults, known={COMMIT})
    worker, channels = FakeWorker(faults=faults, clock=clock), FakeChannels(faults=faults)
    provisioner = WorkspaceServer(workspaces=workspaces)
    async with AsyncExitStack() as stack:
        for name, server, services in (
            ("workspace", provisioner, [WORKSPACE_SERVICE]),
            ("sandbox", SandboxServer(worker=worker), [SANDBOX_SERVICE]),
        ):
            bind = f"unix:{directory}/{name}"
            await stack.enter_async_context(
                serve_grpc(
                    bind=bind,
                    register=server.register,
                    services=services,
                    tracer_provider=provider,
                    secret=SECRET,
                    grace_seconds=0,
                )
            )
            await redis.hset(
                f"fairlead:host:{HOST.host_id}:{name}",
                mapping={"host_id": HOST.host_id, "address": bind, "isolation": "process"},
            )
        half = await stack.enter_async_context(
            open_launches(
                redis=redis,
                tracer_provider=provider,
                secret=SECRET,
                replica="one",
                channels=lambda launches: channels,
                timings=LaunchTimings(),
                span_store_url=None,
                span_store_token=None,
                clock=clock,
            )
        )
        await stack.enter_async_context(
            serve_grpc(
                bind=f"unix:{directory}/front",
                register=half.register,
                services=LAUNCH_SERVICES,
                tracer_provider=provider,
                interceptors=[TenantFromMetadata()],
                grace_seconds=0,
            )
        )
        channel = await stack.enter_async_context(
            open_channel(f"unix:{directory}/front", tracer_provider=provider)
        )
        yield Mesh(
            launches=launch_pb2_grpc.LaunchServiceStub(channel),
            executions=execution_pb2_grpc.ExecutionServiceStub(channel),
            snapshots=snapshot_pb2_grpc.SnapshotServiceStub(channel),
            public=workspace_pb2_grpc.WorkspaceServiceStub(channel),
            sandboxes=sandbox_pb2_grpc.SandboxServiceStub(channel),
            half=half,
            workspaces=workspaces,
            worker=worker,
            channels=channels,
            faults=faults,
            provisioner=provisioner,
            spans=spans,
        )
