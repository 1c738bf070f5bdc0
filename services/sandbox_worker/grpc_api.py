"""SandboxService on the wire: proto in, use case, proto out."""

from __future__ import annotations

import grpc

from fairlead.sandbox.v1 import sandbox_pb2, sandbox_pb2_grpc
from sandbox_worker.errors import ArgumentInvalid
from sandbox_worker.network.network_changes import NetworkChanges
from sandbox_worker.port_carrier import PortCarrier
from sandbox_worker.sandboxes import Sandboxes
from sandbox_worker.tracing import TracedSandboxes
from sandbox_worker.wire.sandbox_messages import (
    from_network,
    from_order,
    seconds,
    to_decision,
    to_network,
    to_sandbox,
)

SERVICE = sandbox_pb2.DESCRIPTOR.services_by_name["SandboxService"].full_name

Context = grpc.aio.ServicerContext[object, object]


class SandboxServicer(sandbox_pb2_grpc.SandboxServiceServicer):
    """Serves sandboxes to signalling."""

    def __init__(
        self,
        *,
        sandboxes: Sandboxes,
        traced: TracedSandboxes,
        ports: PortCarrier,
        changes: NetworkChanges,
    ) -> None:
        self._sandboxes = sandboxes
        self._traced = traced
        self._ports = ports
        self._changes = changes

    def register(self, server: grpc.aio.Server) -> None:
        """Add this service to a server."""
        sandbox_pb2_grpc.add_SandboxServiceServicer_to_server(self, server)

    async def CreateSandbox(
        self, request: sandbox_pb2.CreateSandboxRequest, context: Context
    ) -> sandbox_pb2.CreateSandboxResponse:
        sandbox = await self._traced.create(
            tenant=request.tenant,
            key=request.idempotency_key,
            order=from_order(request),
        )
        return sandbox_pb2.CreateSandboxResponse(sandbox=to_sandbox(sandbox))

    async def BindWorkspace(
        self, request: sandbox_pb2.BindWorkspaceRequest, context: Context
    ) -> sandbox_pb2.BindWorkspaceResponse:
        sandbox = await self._traced.bind(
            tenant=request.tenant,
            sandbox_id=request.sandbox_id,
            workspace_id=request.workspace_id,
        )
        return sandbox_pb2.BindWorkspaceResponse(sandbox=to_sandbox(sandbox))

    async def GetSandbox(
        self, request: sandbox_pb2.GetSandboxRequest, context: Context
    ) -> sandbox_pb2.GetSandboxResponse:
        sandbox = self._sandboxes.get(tenant=request.tenant, sandbox_id=request.sandbox_id)
        return sandbox_pb2.GetSandboxResponse(sandbox=to_sandbox(sandbox))

    async def ListSandboxes(
        self, request: sandbox_pb2.ListSandboxesRequest, context: Context
    ) -> sandbox_pb2.ListSandboxesResponse:
        page, following = self._sandboxes.page(
            tenant=request.tenant, size=request.page_size, after=request.page_token
        )
        return sandbox_pb2.ListSandboxesResponse(
            sandboxes=[to_sandbox(sandbox) for sandbox in page], next_page_token=following
        )

    async def RenewSandbox(
        self, request: sandbox_pb2.RenewSandboxRequest, context: Context
    ) -> sandbox_pb2.RenewSandboxResponse:
        sandbox = await self._sandboxes.renew(
            tenant=request.tenant,
            sandbox_id=request.sandbox_id,
            lease=seconds(request.lease),
        )
        return sandbox_pb2.RenewSandboxResponse(sandbox=to_sandbox(sandbox))

    async def OpenPort(
        self, request: sandbox_pb2.OpenPortRequest, context: Context
    ) -> sandbox_pb2.OpenPortResponse:
        await self._ports.open(
            tenant=request.tenant,
            sandbox_id=request.sandbox_id,
            port=request.port,
            address=request.address,
            ticket=request.ticket,
            execution_id=request.execution_id,
        )
        return sandbox_pb2.OpenPortResponse()

    async def SetNetworkPolicy(
        self, request: sandbox_pb2.SetNetworkPolicyRequest, context: Context
    ) -> sandbox_pb2.SetNetworkPolicyResponse:
        sandbox = await self._changes.set(
            tenant=request.tenant,
            sandbox_id=request.sandbox_id,
            policy=from_network(request.network),
        )
        return sandbox_pb2.SetNetworkPolicyResponse(sandbox=to_sandbox(sandbox))

    async def GetNetwork(
        self, request: sandbox_pb2.GetNetworkRequest, context: Context
    ) -> sandbox_pb2.GetNetworkResponse:
        sandbox, decisions = self._changes.get(tenant=request.tenant, sandbox_id=request.sandbox_id)
        return sandbox_pb2.GetNetworkResponse(
            network=to_network(sandbox.network),
            decisions=[to_decision(each) for each in decisions],
        )

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
