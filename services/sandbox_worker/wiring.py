"""Builds the worker's objects: opened top-down, closed in reverse, also when the start fails."""

from __future__ import annotations

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager

import grpc

from chassis.announcement import Announcer
from chassis.clock import SystemClock
from chassis.redis_client import open_redis
from chassis.rpc_server import RpcServer, serve_grpc
from chassis.telemetry import start_telemetry, stop_telemetry
from sandbox_worker import execution_api, grpc_api
from sandbox_worker.execution_api import ExecutionServicer
from sandbox_worker.executions import Executions
from sandbox_worker.grpc_api import SandboxServicer
from sandbox_worker.isolation.overlay_trial import can_mount_overlay
from sandbox_worker.isolation.process import ProcessIsolation
from sandbox_worker.janitor import Janitor
from sandbox_worker.journal_store import JournalStore
from sandbox_worker.port_door import PortDoor
from sandbox_worker.port_tokens import PortTokens
from sandbox_worker.record_store import HostState, RecordStore
from sandbox_worker.sandboxes import Sandboxes
from sandbox_worker.settings import Settings
from sandbox_worker.tracing import TracedRuns, TracedSandboxes
from sandbox_worker.trees import HostTrees

_FILE_THREADS = 8


class SandboxWorker:
    """The running room."""

    def __init__(
        self, *, server: RpcServer, sandboxes: Sandboxes, executions: Executions, address: str
    ) -> None:
        self._server = server
        self._sandboxes = sandboxes
        self._executions = executions
        self.address = address

    async def drain(self) -> None:
        """Take nothing new, and wait for what runs."""
        await self._server.drain()
        self._sandboxes.drain()
        await self._executions.drain()


@asynccontextmanager
async def build(settings: Settings) -> AsyncIterator[SandboxWorker]:
    """Build and start the worker."""
    async with AsyncExitStack() as stack:
        secret = settings.rpc_secret()
        provider = start_telemetry("sandbox-worker")
        stack.callback(stop_telemetry, provider)
        root = settings.host_root / "sandboxes"
        state = HostState(root=root)
        stack.callback(state.close)
        epoch, id_key = state.next_epoch(), state.id_key()
        files = stack.enter_context(
            ThreadPoolExecutor(max_workers=_FILE_THREADS, thread_name_prefix="files")
        )
        mounts_overlays = await can_mount_overlay(root)
        clock = SystemClock()
        process = ProcessIsolation(
            private_root=root / "private", path=settings.path, executor=files
        )
        await stack.enter_async_context(process)
        sandboxes = Sandboxes(
            host_id=settings.host_id,
            id_key=id_key,
            isolations={process.name: process},
            records=RecordStore(root=root / "records", executor=files),
            trees=HostTrees(host_root=settings.host_root, executor=files),
            clock=clock,
            most=settings.most_sandboxes,
            tombstone_seconds=settings.tombstone_seconds,
        )
        executions = Executions(
            sandboxes=sandboxes,
            journals=JournalStore(
                root=root / "journals", executor=files, most_bytes=settings.journal_bytes
            ),
            spans=TracedRuns(tracer_provider=provider),
            clock=clock,
            id_key=id_key,
            most_running=settings.most_executions,
            most_kept=settings.most_kept_executions,
            retention_seconds=settings.retention_seconds,
        )
        await sandboxes.recover()
        await executions.recover()
        tokens = PortTokens(sandboxes=sandboxes, clock=clock)
        door = PortDoor(tokens=tokens, sandboxes=sandboxes)
        door_address = await stack.enter_async_context(door.serve(settings.door_bind))
        sandbox_servicer = SandboxServicer(
            sandboxes=sandboxes,
            traced=TracedSandboxes(sandboxes=sandboxes, tracer_provider=provider),
            tokens=tokens,
            door_address=settings.door_advertise or door_address,
        )

        execution_servicer = ExecutionServicer(executions=executions)

        def register(server: grpc.aio.Server) -> None:
            sandbox_servicer.register(server)
            execution_servicer.register(server)

        server = await stack.enter_async_context(
            serve_grpc(
                bind=settings.bind,
                register=register,
                services=(grpc_api.SERVICE, execution_api.SERVICE),
                tracer_provider=provider,
                secret=secret,
                grace_seconds=1.0,
            )
        )
        # While the server still serves, so that watchers hear how their executions ended.
        stack.push_async_callback(executions.close)
        stack.push_async_callback(sandboxes.close)
        address = settings.advertise or server.address
        redis = await stack.enter_async_context(open_redis(settings.redis_url))
        await stack.enter_async_context(
            Announcer(
                redis=redis,
                key=f"fairlead:host:{settings.host_id}:sandbox",
                payload=lambda: {
                    "host_id": settings.host_id,
                    "address": address,
                    "epoch": str(epoch),
                    "isolation": ",".join(sandboxes.isolations),
                    "overlay": "1" if mounts_overlays else "0",
                    "sandboxes": str(sandboxes.count),
                    "capacity": str(settings.most_sandboxes),
                    "draining": "1" if sandboxes.draining else "0",
                },
            )
        )
        await stack.enter_async_context(Janitor(sandboxes=sandboxes, executions=executions))
        yield SandboxWorker(
            server=server, sandboxes=sandboxes, executions=executions, address=address
        )
