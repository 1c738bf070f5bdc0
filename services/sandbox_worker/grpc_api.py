"""SandboxService on the wire: proto in, use case, proto out."""

from __future__ import annotations

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from fairlead.sandbox.v1 import sandbox_pb2, sandbox_pb2_grpc
from sandbox_worker.errors import ArgumentInvalid
from sandbox_worker.port_tokens import PortTokens
from sandbox_worker.sandbox import Limits, Sandbox, SandboxState
from sandbox_worker.sandboxes import Sandboxes
from sandbox_worker.tracing import TracedSandboxes

SERVICE = sandbox_pb2.DESCRIPTOR.services_by_name["SandboxService"].full_name

_STATES = {
    SandboxState.REQUESTED: sandbox_pb2.SANDBOX_STATE_REQUESTED,
    SandboxState.PROVISIONED: sandbox_pb2.SANDBOX_STATE_PROVISIONED,
    SandboxState.RELEASED: sandbox_pb2.SANDBOX_STATE_RELEASED,
}
Context = grpc.aio.ServicerContext[object, object]


class SandboxServicer(sandbox_pb2_grpc.SandboxServiceServicer):
    """Serves sandboxes to signalling."""

    def __init__(
        self,
        *,
        sandboxes: Sandboxes,
        traced: TracedSandboxes,
        tokens: PortTokens,
        door_address: str,
    ) -> None:
        self._sandboxes = sandboxes
        self._traced = traced
        self._tokens = tokens
        self._door_address = door_address

    def register(self, server: grpc.aio.Server) -> None:
        """Add this service to a server."""
        sandbox_pb2_grpc.add_SandboxServiceServicer_to_server(self, server)

    async def CreateSandbox(
        self, request: sandbox_pb2.CreateSandboxRequest, context: Context
    ) -> sandbox_pb2.CreateSandboxResponse:
        sandbox = await self._traced.create(
            tenant=request.tenant,
            key=request.idempotency_key,
            isolation=request.isolation,
            limits=_limits(request.limits),
            lease=_seconds(request.lease),
        )
        return sandbox_pb2.CreateSandboxResponse(sandbox=_message(sandbox))

    async def BindWorkspace(
        self, request: sandbox_pb2.BindWorkspaceRequest, context: Context
    ) -> sandbox_pb2.BindWorkspaceResponse:
        sandbox = await self._traced.bind(
            tenant=request.tenant,
            sandbox_id=request.sandbox_id,
            workspace_id=request.workspace_id,
        )
        return sandbox_pb2.BindWorkspaceResponse(sandbox=_message(sandbox))

    async def GetSandbox(
        self, request: sandbox_pb2.GetSandboxRequest, context: Context
    ) -> sandbox_pb2.GetSandboxResponse:
        sandbox = self._sandboxes.get(tenant=request.tenant, sandbox_id=request.sandbox_id)
        return sandbox_pb2.GetSandboxResponse(sandbox=_message(sandbox))

    async def ListSandboxes(
        self, request: sandbox_pb2.ListSandboxesRequest, context: Context
    ) -> sandbox_pb2.ListSandboxesResponse:
        page, following = self._sandboxes.page(
            tenant=request.tenant, size=request.page_size, after=request.page_token
        )
        return sandbox_pb2.ListSandboxesResponse(
            sandboxes=[_message(sandbox) for sandbox in page], next_page_token=following
        )

    async def RenewSandbox(
        self, request: sandbox_pb2.RenewSandboxRequest, context: Context
    ) -> sandbox_pb2.RenewSandboxResponse:
        sandbox = self._sandboxes.renew(
            tenant=request.tenant,
            sandbox_id=request.sandbox_id,
            lease=_seconds(request.lease),
        )
        return sandbox_pb2.RenewSandboxResponse(sandbox=_message(sandbox))

    async def OpenPort(
        self, request: sandbox_pb2.OpenPortRequest, context: Context
    ) -> sandbox_pb2.OpenPortResponse:
        token = self._tokens.open_port(
            tenant=request.tenant, sandbox_id=request.sandbox_id, port=request.port
        )
        return sandbox_pb2.OpenPortResponse(address=self._door_address, token=token)

    async def ReleaseSandbox(
        self, request: sandbox_pb2.ReleaseSandboxRequest, context: Context
    ) -> sandbox_pb2.ReleaseSandboxResponse:
        match request.WhichOneof("sandbox"):
            case "sandbox_id" if request.sandbox_id:
                released = await self._traced.release(
                    tenant=request.tenant, sandbox_id=request.sandbox_id
                )
            case "idempotency_key":
                released = await self._traced.release(
                    tenant=request.tenant, key=request.idempotency_key
                )
            case _:
                raise ArgumentInvalid("sandbox", "is required")
        return sandbox_pb2.ReleaseSandboxResponse(released=released)


def _seconds(duration: Duration) -> float:
    return duration.seconds + duration.nanos / 1e9


def _limits(limits: sandbox_pb2.Limits) -> Limits:
    return Limits(
        memory_bytes=limits.memory_bytes,
        processes=limits.processes,
        open_files=limits.open_files,
        file_bytes=limits.file_bytes,
    )


def _message(sandbox: Sandbox) -> sandbox_pb2.Sandbox:
    created_at, expires_at = Timestamp(), Timestamp()
    created_at.FromDatetime(sandbox.created_at)
    expires_at.FromDatetime(sandbox.expires_at)
    return sandbox_pb2.Sandbox(
        sandbox_id=sandbox.sandbox_id,
        tenant=sandbox.tenant,
        state=_STATES[sandbox.state],
        isolation=sandbox.isolation,
        limits=sandbox_pb2.Limits(
            memory_bytes=sandbox.limits.memory_bytes,
            processes=sandbox.limits.processes,
            open_files=sandbox.limits.open_files,
            file_bytes=sandbox.limits.file_bytes,
        ),
        host_id=sandbox.host_id,
        workspace_id=sandbox.workspace_id,
        created_at=created_at,
        expires_at=expires_at,
    )
