"""SandboxService for clients: proto in, keeper, proto out; the tenant in requests is ignored."""

from __future__ import annotations

import grpc

from fairlead.sandbox.v1 import sandbox_pb2 as pb
from fairlead.sandbox.v1 import sandbox_pb2_grpc as rpc
from signalling.caller import current_tenant
from signalling.execution_messages import from_duration
from signalling.sandbox_errors import PortsByChannel
from signalling.sandbox_keeper import SandboxKeeper
from signalling.sandbox_messages import from_network, from_order, to_sandbox, to_view
from signalling.source_rules import InvalidRequest

SANDBOX_SERVICE = pb.DESCRIPTOR.services_by_name["SandboxService"].full_name


class SandboxApi(rpc.SandboxServiceServicer):
    """Serves SandboxService."""

    def __init__(self, *, keeper: SandboxKeeper) -> None:
        self._keeper = keeper

    async def CreateSandbox(
        self,
        request: pb.CreateSandboxRequest,
        context: grpc.aio.ServicerContext[pb.CreateSandboxRequest, pb.CreateSandboxResponse],
    ) -> pb.CreateSandboxResponse:
        tenant = current_tenant()
        made = await self._keeper.create(tenant, from_order(request))
        return pb.CreateSandboxResponse(sandbox=to_sandbox(made, tenant))

    async def BindWorkspace(
        self,
        request: pb.BindWorkspaceRequest,
        context: grpc.aio.ServicerContext[pb.BindWorkspaceRequest, pb.BindWorkspaceResponse],
    ) -> pb.BindWorkspaceResponse:
        tenant = current_tenant()
        bound = await self._keeper.bind(tenant, request.sandbox_id, request.workspace_id)
        return pb.BindWorkspaceResponse(sandbox=to_sandbox(bound, tenant))

    async def GetSandbox(
        self,
        request: pb.GetSandboxRequest,
        context: grpc.aio.ServicerContext[pb.GetSandboxRequest, pb.GetSandboxResponse],
    ) -> pb.GetSandboxResponse:
        tenant = current_tenant()
        found = await self._keeper.get(tenant, request.sandbox_id)
        return pb.GetSandboxResponse(sandbox=to_sandbox(found, tenant))

    async def ListSandboxes(
        self,
        request: pb.ListSandboxesRequest,
        context: grpc.aio.ServicerContext[pb.ListSandboxesRequest, pb.ListSandboxesResponse],
    ) -> pb.ListSandboxesResponse:
        tenant = current_tenant()
        found, following, unanswered = await self._keeper.list(
            tenant, request.page_size, request.page_token
        )
        return pb.ListSandboxesResponse(
            sandboxes=[to_sandbox(each, tenant) for each in found],
            next_page_token=following,
            unanswered_hosts=unanswered,
        )

    async def RenewSandbox(
        self,
        request: pb.RenewSandboxRequest,
        context: grpc.aio.ServicerContext[pb.RenewSandboxRequest, pb.RenewSandboxResponse],
    ) -> pb.RenewSandboxResponse:
        tenant = current_tenant()
        lease = from_duration("lease", request.lease) if request.HasField("lease") else None
        renewed = await self._keeper.renew(tenant, request.sandbox_id, lease)
        return pb.RenewSandboxResponse(sandbox=to_sandbox(renewed, tenant))

    async def OpenPort(
        self,
        request: pb.OpenPortRequest,
        context: grpc.aio.ServicerContext[pb.OpenPortRequest, pb.OpenPortResponse],
    ) -> pb.OpenPortResponse:
        raise PortsByChannel

    async def SetNetworkPolicy(
        self,
        request: pb.SetNetworkPolicyRequest,
        context: grpc.aio.ServicerContext[pb.SetNetworkPolicyRequest, pb.SetNetworkPolicyResponse],
    ) -> pb.SetNetworkPolicyResponse:
        tenant = current_tenant()
        changed = await self._keeper.set_network(
            tenant, request.sandbox_id, from_network(request.network)
        )
        return pb.SetNetworkPolicyResponse(sandbox=to_sandbox(changed, tenant))

    async def GetNetwork(
        self,
        request: pb.GetNetworkRequest,
        context: grpc.aio.ServicerContext[pb.GetNetworkRequest, pb.GetNetworkResponse],
    ) -> pb.GetNetworkResponse:
        return to_view(await self._keeper.network(current_tenant(), request.sandbox_id))

    async def ReleaseSandbox(
        self,
        request: pb.ReleaseSandboxRequest,
        context: grpc.aio.ServicerContext[pb.ReleaseSandboxRequest, pb.ReleaseSandboxResponse],
    ) -> pb.ReleaseSandboxResponse:
        tenant = current_tenant()
        match request.WhichOneof("sandbox"):
            case "sandbox_id":
                released = await self._keeper.release(tenant, request.sandbox_id)
            case "idempotency_key":
                released = await self._keeper.release_key(tenant, request.idempotency_key)
            case _:
                raise InvalidRequest(
                    "sandbox",
                    "The release names neither a sandbox nor a key.",
                    reason="sandbox_required",
                )
        return pb.ReleaseSandboxResponse(released=released)
