"""The provisioners of hosts, over gRPC; every failure becomes ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta

import grpc

from chassis.errors import Unavailable
from chassis.rpc_channel import closing
from chassis.rpc_errors import neighbour_errors
from fairlead.workspace.v1 import workspace_pb2 as pb
from fairlead.workspace.v1 import workspace_pb2_grpc as rpc
from signalling.execution_messages import to_duration
from signalling.host import Host
from signalling.neighbour_channels import ChannelCache, Stubs
from signalling.snapshot import Miss, Source, Tip
from signalling.snapshot_messages import from_snapshot, to_source, to_tip
from signalling.workspace import ForkOrder, Imported, Workspace, WorkspaceOrder
from signalling.workspace_messages import from_outcome, from_workspace, to_fork, to_order

_PROVISIONER = "workspace_provisioner"
_CHUNK_BYTES = 256 * 1024
_UNARY_SECONDS = 120.0
_READ_SECONDS = 15.0


class UploadInterrupted(Unavailable):
    """The provisioner ended an upload, and its reason was lost on the way."""

    def __init__(self) -> None:
        super().__init__(
            "The host ended the upload.",
            reason="upload_interrupted",
            remedy="Upload again with the same token.",
        )


class GrpcWorkspaces:
    """The workspace-provisioners."""

    def __init__(self, *, channels: ChannelCache) -> None:
        self._stubs: Stubs[rpc.WorkspaceServiceAsyncStub] = Stubs(
            channels=channels, make=rpc.WorkspaceServiceStub
        )

    def _stub(self, host: Host) -> rpc.WorkspaceServiceAsyncStub:
        return self._stubs.to(host.workspace_address)

    async def materialize(
        self, host: Host, *, tenant: str, order: WorkspaceOrder
    ) -> Workspace | Miss:
        """Check a source out, or say what the host lacks."""
        with neighbour_errors(_PROVISIONER):
            answer = await self._stub(host).MaterializeWorkspace(
                to_order(order, tenant, overlay=host.overlay), timeout=_UNARY_SECONDS
            )
        return from_outcome(answer)

    async def import_snapshot(
        self,
        host: Host,
        *,
        tenant: str,
        source: Source,
        tips: Sequence[Tip],
        chunks: AsyncIterator[bytes],
        tips_only: bool,
        order: WorkspaceOrder | None,
    ) -> Imported:
        """Stream a thin pack; what `chunks` raises is raised here, and the call is cancelled."""
        failures: list[BaseException] = []
        opening = pb.OpenImport(
            tenant=tenant,
            source=to_source(source),
            tips=[to_tip(tip) for tip in tips],
            tips_only=tips_only,
            materialize=None
            if order is None
            else to_order(order, tenant, overlay=host.overlay, with_source=False),
        )

        # gRPC may go on reading its request iterator after the call has ended. What it reads is a
        # queue, so that nobody reads `chunks` any more when this returns.
        waiting: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=1)

        async def frames() -> AsyncIterator[pb.ImportSnapshotRequest]:
            yield pb.ImportSnapshotRequest(open=opening)
            while (piece := await waiting.get()) is not None:
                yield pb.ImportSnapshotRequest(chunk=piece)

        async def feed() -> None:
            try:
                async for chunk in chunks:
                    for start in range(0, len(chunk), _CHUNK_BYTES):
                        await waiting.put(chunk[start : start + _CHUNK_BYTES])
                await waiting.put(None)
            except Exception as raised:
                failures.append(raised)
                call.cancel()

        with neighbour_errors(_PROVISIONER):
            call = self._stub(host).ImportSnapshot(frames())
            feeding = asyncio.create_task(feed(), name="feed an import")
            try:
                async with closing(call):
                    try:
                        answer = await call
                    except (grpc.aio.AioRpcError, asyncio.CancelledError) as error:
                        if failures:
                            raise failures[0] from None
                        if _lost_its_reason(error):
                            raise UploadInterrupted from error
                        raise
            finally:
                feeding.cancel()
                await asyncio.wait({feeding})
                if waiting.full():
                    waiting.get_nowait()
                waiting.put_nowait(None)
        made = from_outcome(answer.materialized) if answer.HasField("materialized") else None
        return Imported(from_snapshot(answer.snapshot), made)

    async def get(
        self, host: Host, *, tenant: str, workspace_id: str, count_changes: bool = False
    ) -> Workspace:
        """Return a workspace."""
        with neighbour_errors(_PROVISIONER):
            answer = await self._stub(host).GetWorkspace(
                pb.GetWorkspaceRequest(
                    tenant=tenant, workspace_id=workspace_id, count_changes=count_changes
                ),
                timeout=_READ_SECONDS,
            )
        return from_workspace(answer.workspace)

    async def list(
        self, host: Host, *, tenant: str, size: int, after: str
    ) -> tuple[Sequence[Workspace], bool]:
        """Return workspaces after an id, and whether there are more."""
        with neighbour_errors(_PROVISIONER):
            answer = await self._stub(host).ListWorkspaces(
                pb.ListWorkspacesRequest(tenant=tenant, page_size=size, page_token=after),
                timeout=_READ_SECONDS,
            )
        return [from_workspace(each) for each in answer.workspaces], bool(answer.next_page_token)

    async def renew(
        self, host: Host, *, tenant: str, workspace_id: str, lease: timedelta
    ) -> Workspace:
        """Move the end of the lease."""
        with neighbour_errors(_PROVISIONER):
            answer = await self._stub(host).RenewWorkspace(
                pb.RenewWorkspaceRequest(
                    tenant=tenant, workspace_id=workspace_id, lease=to_duration(lease)
                ),
                timeout=_READ_SECONDS,
            )
        return from_workspace(answer.workspace)

    async def rename(self, host: Host, *, tenant: str, workspace_id: str, name: str) -> Workspace:
        """Give a workspace another name, or none."""
        with neighbour_errors(_PROVISIONER):
            answer = await self._stub(host).RenameWorkspace(
                pb.RenameWorkspaceRequest(tenant=tenant, workspace_id=workspace_id, name=name),
                timeout=_READ_SECONDS,
            )
        return from_workspace(answer.workspace)

    async def fork(
        self, host: Host, *, tenant: str, workspace_id: str, order: ForkOrder
    ) -> Workspace:
        """Make a copy."""
        with neighbour_errors(_PROVISIONER):
            answer = await self._stub(host).ForkWorkspace(
                to_fork(order, tenant, workspace_id, overlay=host.overlay),
                timeout=_UNARY_SECONDS,
            )
        return from_workspace(answer.workspace)

    async def release(
        self,
        host: Host,
        *,
        tenant: str,
        key: str = "",
        workspace_id: str = "",
        checked: bool = False,
    ) -> bool:
        """Give back what `key` made or is making, or a workspace by its id."""
        if workspace_id:
            request = pb.ReleaseWorkspaceRequest(
                tenant=tenant, workspace_id=workspace_id, checked=checked
            )
        else:
            request = pb.ReleaseWorkspaceRequest(
                tenant=tenant, idempotency_key=key, checked=checked
            )
        with neighbour_errors(_PROVISIONER):
            answer = await self._stub(host).ReleaseWorkspace(
                request, timeout=_UNARY_SECONDS if checked else _READ_SECONDS
            )
        return answer.released


def _lost_its_reason(error: BaseException) -> bool:
    """Say whether gRPC failed to write before it had read the status; see `snapshot_grpc_api`."""
    return (
        isinstance(error, grpc.aio.AioRpcError)
        and error.code() is grpc.StatusCode.INTERNAL
        and not error.trailing_metadata()
    )
