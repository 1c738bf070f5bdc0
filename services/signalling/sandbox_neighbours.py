"""The workers of hosts over gRPC, as far as sandboxes go; every failure becomes ours."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from chassis.rpc_errors import neighbour_errors
from fairlead.sandbox.v1 import sandbox_pb2, sandbox_pb2_grpc
from signalling.execution_messages import to_duration
from signalling.gateway import Meeting
from signalling.host import Host
from signalling.neighbour_channels import ChannelCache, Stubs
from signalling.sandbox import NetworkPolicy, NetworkView, Sandbox, SandboxOrder
from signalling.sandbox_messages import from_sandbox, from_view, to_network, to_order

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

    async def create(self, host: Host, *, tenant: str, order: SandboxOrder) -> Sandbox:
        """Make a sandbox."""
        with neighbour_errors(_WORKER):
            answer = await self._stub(host).CreateSandbox(
                to_order(order, tenant), timeout=_UNARY_SECONDS
            )
        return from_sandbox(answer.sandbox)

    async def bind(self, host: Host, *, tenant: str, sandbox_id: str, workspace_id: str) -> Sandbox:
        """Make a workspace the sandbox's working directory."""
        with neighbour_errors(_WORKER):
            answer = await self._stub(host).BindWorkspace(
                sandbox_pb2.BindWorkspaceRequest(
                    tenant=tenant, sandbox_id=sandbox_id, workspace_id=workspace_id
                ),
                timeout=_UNARY_SECONDS,
            )
        return from_sandbox(answer.sandbox)

    async def get(self, host: Host, *, tenant: str, sandbox_id: str) -> Sandbox:
        """Return a sandbox."""
        with neighbour_errors(_WORKER):
            answer = await self._stub(host).GetSandbox(
                sandbox_pb2.GetSandboxRequest(tenant=tenant, sandbox_id=sandbox_id),
                timeout=_READ_SECONDS,
            )
        return from_sandbox(answer.sandbox)

    async def list(
        self, host: Host, *, tenant: str, size: int, after: str
    ) -> tuple[Sequence[Sandbox], bool]:
        """Return sandboxes after an id, and whether there are more."""
        with neighbour_errors(_WORKER):
            answer = await self._stub(host).ListSandboxes(
                sandbox_pb2.ListSandboxesRequest(tenant=tenant, page_size=size, page_token=after),
                timeout=_READ_SECONDS,
            )
        return [from_sandbox(each) for each in answer.sandboxes], bool(answer.next_page_token)

    async def renew(self, host: Host, *, tenant: str, sandbox_id: str, lease: timedelta) -> Sandbox:
        """Move the end of the lease."""
        with neighbour_errors(_WORKER):
            answer = await self._stub(host).RenewSandbox(
                sandbox_pb2.RenewSandboxRequest(
                    tenant=tenant, sandbox_id=sandbox_id, lease=to_duration(lease)
                ),
                timeout=_READ_SECONDS,
            )
        return from_sandbox(answer.sandbox)

    async def set_network(
        self, host: Host, *, tenant: str, sandbox_id: str, network: NetworkPolicy
    ) -> Sandbox:
        """Let another network policy hold."""
        with neighbour_errors(_WORKER):
            answer = await self._stub(host).SetNetworkPolicy(
                sandbox_pb2.SetNetworkPolicyRequest(
                    tenant=tenant, sandbox_id=sandbox_id, network=to_network(network)
                ),
                timeout=_READ_SECONDS,
            )
        return from_sandbox(answer.sandbox)

    async def network(self, host: Host, *, tenant: str, sandbox_id: str) -> NetworkView:
        """Return the policy in force and the last decisions."""
        with neighbour_errors(_WORKER):
            answer = await self._stub(host).GetNetwork(
                sandbox_pb2.GetNetworkRequest(tenant=tenant, sandbox_id=sandbox_id),
                timeout=_READ_SECONDS,
            )
        return from_view(answer)

    async def open_port(
        self, host: Host, *, tenant: str, sandbox_id: str, port: int, meeting: Meeting
    ) -> None:
        """Have a port or terminal in the sandbox connected, and that brought to a gateway."""
        with neighbour_errors(_WORKER):
            await self._stub(host).OpenPort(
                sandbox_pb2.OpenPortRequest(
                    tenant=tenant,
                    sandbox_id=sandbox_id,
                    port=port,
                    address=meeting.address,
                    ticket=meeting.ticket,
                    execution_id=meeting.execution_id,
                ),
                timeout=_READ_SECONDS,
            )

    async def release(
        self, host: Host, *, tenant: str, key: str = "", sandbox_id: str = ""
    ) -> bool:
        """Give back what `key` made or is making, or a sandbox by its id."""
        if sandbox_id:
            request = sandbox_pb2.ReleaseSandboxRequest(tenant=tenant, sandbox_id=sandbox_id)
        else:
            request = sandbox_pb2.ReleaseSandboxRequest(tenant=tenant, idempotency_key=key)
        with neighbour_errors(_WORKER):
            answer = await self._stub(host).ReleaseSandbox(request, timeout=_READ_SECONDS)
        return answer.released
