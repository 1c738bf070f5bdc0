"""The workers of hosts, over gRPC; every failure becomes ours."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

from chassis.rpc_channel import closing
from chassis.rpc_errors import neighbour_errors
from fairlead.execution.v1 import execution_pb2, execution_pb2_grpc
from fairlead.sandbox.v1 import sandbox_pb2, sandbox_pb2_grpc
from signalling.execution import Command, Execution, OutputFrame
from signalling.execution_messages import (
    from_execution,
    from_frame,
    from_timestamp,
    to_command,
    to_duration,
)
from signalling.host import Host
from signalling.neighbour_channels import ChannelCache, Stubs
from signalling.snapshot import PortDoor, Sandbox

_WORKER = "sandbox_worker"
_UNARY_SECONDS = 120.0
_READ_SECONDS = 15.0


class GrpcSandboxes:
    """The sandbox-workers, as far as sandboxes go."""

    def __init__(self, *, channels: ChannelCache) -> None:
        self._stubs: Stubs[sandbox_pb2_grpc.SandboxServiceAsyncStub] = Stubs(
            channels=channels, make=sandbox_pb2_grpc.SandboxServiceStub
        )

    def _stub(self, host: Host) -> sandbox_pb2_grpc.SandboxServiceAsyncStub:
        return self._stubs.to(host.sandbox_address)

    async def create(
        self, host: Host, *, tenant: str, key: str, isolation: str, lease: timedelta
    ) -> Sandbox:
        """Make a sandbox."""
        with neighbour_errors(_WORKER):
            answer = await self._stub(host).CreateSandbox(
                sandbox_pb2.CreateSandboxRequest(
                    tenant=tenant,
                    idempotency_key=key,
                    isolation=isolation,
                    lease=to_duration(lease),
                ),
                timeout=_UNARY_SECONDS,
            )
        return Sandbox(answer.sandbox.sandbox_id, answer.sandbox.isolation)

    async def bind(self, host: Host, *, tenant: str, sandbox_id: str, workspace_id: str) -> None:
        """Make a workspace the sandbox's working directory."""
        with neighbour_errors(_WORKER):
            await self._stub(host).BindWorkspace(
                sandbox_pb2.BindWorkspaceRequest(
                    tenant=tenant, sandbox_id=sandbox_id, workspace_id=workspace_id
                ),
                timeout=_UNARY_SECONDS,
            )

    async def renew(
        self, host: Host, *, tenant: str, sandbox_id: str, lease: timedelta
    ) -> datetime:
        """Move the end of the lease."""
        with neighbour_errors(_WORKER):
            answer = await self._stub(host).RenewSandbox(
                sandbox_pb2.RenewSandboxRequest(
                    tenant=tenant, sandbox_id=sandbox_id, lease=to_duration(lease)
                ),
                timeout=_READ_SECONDS,
            )
        return from_timestamp(answer.sandbox.expires_at)

    async def open_port(self, host: Host, *, tenant: str, sandbox_id: str, port: int) -> PortDoor:
        """Return where to connect to a port inside the sandbox, once."""
        with neighbour_errors(_WORKER):
            answer = await self._stub(host).OpenPort(
                sandbox_pb2.OpenPortRequest(tenant=tenant, sandbox_id=sandbox_id, port=port),
                timeout=_READ_SECONDS,
            )
        return PortDoor(answer.address, answer.token)

    async def release(self, host: Host, *, tenant: str, key: str) -> bool:
        """Give back what `key` made or is making."""
        with neighbour_errors(_WORKER):
            answer = await self._stub(host).ReleaseSandbox(
                sandbox_pb2.ReleaseSandboxRequest(tenant=tenant, idempotency_key=key),
                timeout=_READ_SECONDS,
            )
        return answer.released


class GrpcExecutions:
    """The sandbox-workers, as far as executions go."""

    def __init__(self, *, channels: ChannelCache) -> None:
        self._stubs: Stubs[execution_pb2_grpc.ExecutionServiceAsyncStub] = Stubs(
            channels=channels, make=execution_pb2_grpc.ExecutionServiceStub
        )

    def _stub(self, host: Host) -> execution_pb2_grpc.ExecutionServiceAsyncStub:
        return self._stubs.to(host.sandbox_address)

    async def start(
        self, host: Host, *, tenant: str, key: str, sandbox_id: str, command: Command
    ) -> Execution:
        """Start a command."""
        with neighbour_errors(_WORKER):
            answer = await self._stub(host).StartExecution(
                execution_pb2.StartExecutionRequest(
                    tenant=tenant,
                    idempotency_key=key,
                    sandbox_id=sandbox_id,
                    command=to_command(command),
                ),
                timeout=_UNARY_SECONDS,
            )
        return from_execution(answer.execution)

    async def get(self, host: Host, *, tenant: str, execution_id: str) -> Execution:
        """Return an execution."""
        with neighbour_errors(_WORKER):
            answer = await self._stub(host).GetExecution(
                execution_pb2.GetExecutionRequest(tenant=tenant, execution_id=execution_id),
                timeout=_READ_SECONDS,
            )
        return from_execution(answer.execution)

    @asynccontextmanager
    async def watch(
        self, host: Host, *, tenant: str, execution_id: str, after: int
    ) -> AsyncIterator[AsyncIterator[OutputFrame]]:
        """Open the output after a sequence number."""
        call = self._stub(host).WatchOutput(
            execution_pb2.WatchOutputRequest(
                tenant=tenant, execution_id=execution_id, after_sequence=after
            )
        )

        async def frames() -> AsyncGenerator[OutputFrame, None]:
            with neighbour_errors(_WORKER):
                async for message in call:
                    frame = from_frame(message)
                    if frame is not None:
                        yield frame

        async with closing(call):
            stream = frames()
            try:
                yield stream
            finally:
                await stream.aclose()

    async def write_stdin(
        self,
        host: Host,
        *,
        tenant: str,
        execution_id: str,
        offset: int,
        content: bytes,
        close: bool,
    ) -> int:
        """Write to standard input at an offset; a program that does not read keeps the call
        waiting.
        """
        with neighbour_errors(_WORKER):
            answer = await self._stub(host).WriteStdin(
                execution_pb2.WriteStdinRequest(
                    tenant=tenant,
                    execution_id=execution_id,
                    offset=offset,
                    content=content,
                    close=close,
                )
            )
        return answer.offset

    async def signal(self, host: Host, *, tenant: str, execution_id: str, signal: int) -> Execution:
        """Send a signal to the execution's process group."""
        with neighbour_errors(_WORKER):
            answer = await self._stub(host).SignalExecution(
                execution_pb2.SignalExecutionRequest(
                    tenant=tenant, execution_id=execution_id, signal=signal
                ),
                timeout=_READ_SECONDS,
            )
        return from_execution(answer.execution)
