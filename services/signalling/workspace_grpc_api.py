"""WorkspaceService for clients: proto in, keeper, proto out; tenant and overlay in the requests are
ignored.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import grpc

from chassis.errors import FairleadError
from fairlead.workspace.v1 import workspace_pb2 as pb
from fairlead.workspace.v1 import workspace_pb2_grpc as rpc
from signalling.caller import current_tenant
from signalling.execution_messages import from_duration
from signalling.snapshot import Miss
from signalling.snapshot_grpc_api import UploadOutOfOrder, let_finish
from signalling.snapshot_messages import from_source, from_tip, to_miss_reason, to_snapshot
from signalling.workspace import Imported, WorkspaceOrder
from signalling.workspace_keeper import WorkspaceKeeper
from signalling.workspace_messages import from_fork, from_order, to_outcome, to_workspace

WORKSPACE_SERVICE = pb.DESCRIPTOR.services_by_name["WorkspaceService"].full_name


class WorkspaceApi(rpc.WorkspaceServiceServicer):
    """Serves WorkspaceService."""

    def __init__(self, *, keeper: WorkspaceKeeper) -> None:
        self._keeper = keeper

    async def MaterializeWorkspace(
        self,
        request: pb.MaterializeWorkspaceRequest,
        context: grpc.aio.ServicerContext[
            pb.MaterializeWorkspaceRequest, pb.MaterializeWorkspaceResponse
        ],
    ) -> pb.MaterializeWorkspaceResponse:
        tenant = current_tenant()
        made = await self._keeper.materialize(
            tenant, from_order(request, from_source(request.source))
        )
        return to_outcome(made, tenant)

    async def ImportSnapshot(
        self,
        request_iterator: AsyncIterator[pb.ImportSnapshotRequest],
        context: grpc.aio.ServicerContext[pb.ImportSnapshotRequest, pb.ImportSnapshotResponse],
    ) -> pb.ImportSnapshotResponse:
        tenant = current_tenant()
        try:
            imported = await self._import(tenant, request_iterator)
        except FairleadError:
            await let_finish(request_iterator)
            raise
        answer = pb.ImportSnapshotResponse(snapshot=to_snapshot(imported.snapshot))
        match imported.made:
            case None:
                pass
            case Miss() as miss:
                answer.materialized.miss.CopyFrom(
                    pb.Miss(reason=to_miss_reason(miss.reason), wanted=miss.wanted, tips=miss.tips)
                )
            case workspace:
                answer.materialized.workspace.CopyFrom(to_workspace(workspace, tenant))
        return answer

    async def _import(
        self, tenant: str, frames: AsyncIterator[pb.ImportSnapshotRequest]
    ) -> Imported:
        first = await anext(aiter(frames), None)
        if first is None or first.WhichOneof("frame") != "open":
            raise UploadOutOfOrder
        opening = first.open
        source = from_source(opening.source)
        order: WorkspaceOrder | None = None
        if opening.HasField("materialize"):
            order = from_order(opening.materialize, replace(source, commits=None))
        return await self._keeper.import_snapshot(
            tenant,
            source,
            tuple(from_tip(tip) for tip in opening.tips),
            _chunks(frames),
            tips_only=opening.tips_only,
            order=order,
        )

    async def GetWorkspace(
        self,
        request: pb.GetWorkspaceRequest,
        context: grpc.aio.ServicerContext[pb.GetWorkspaceRequest, pb.GetWorkspaceResponse],
    ) -> pb.GetWorkspaceResponse:
        tenant = current_tenant()
        found = await self._keeper.get(
            tenant, request.workspace_id, count_changes=request.count_changes
        )
        return pb.GetWorkspaceResponse(workspace=to_workspace(found, tenant))

    async def ListWorkspaces(
        self,
        request: pb.ListWorkspacesRequest,
        context: grpc.aio.ServicerContext[pb.ListWorkspacesRequest, pb.ListWorkspacesResponse],
    ) -> pb.ListWorkspacesResponse:
        tenant = current_tenant()
        found, following, unanswered = await self._keeper.list(
            tenant, request.page_size, request.page_token
        )
        return pb.ListWorkspacesResponse(
            workspaces=[to_workspace(each, tenant) for each in found],
            next_page_token=following,
            unanswered_hosts=unanswered,
        )

    async def RenewWorkspace(
        self,
        request: pb.RenewWorkspaceRequest,
        context: grpc.aio.ServicerContext[pb.RenewWorkspaceRequest, pb.RenewWorkspaceResponse],
    ) -> pb.RenewWorkspaceResponse:
        tenant = current_tenant()
        lease = from_duration("lease", request.lease) if request.HasField("lease") else None
        renewed = await self._keeper.renew(tenant, request.workspace_id, lease)
        return pb.RenewWorkspaceResponse(workspace=to_workspace(renewed, tenant))

    async def ReleaseWorkspace(
        self,
        request: pb.ReleaseWorkspaceRequest,
        context: grpc.aio.ServicerContext[pb.ReleaseWorkspaceRequest, pb.ReleaseWorkspaceResponse],
    ) -> pb.ReleaseWorkspaceResponse:
        tenant = current_tenant()
        if request.WhichOneof("workspace") == "idempotency_key":
            released = await self._keeper.release_key(tenant, request.idempotency_key)
        else:
            released = await self._keeper.release(
                tenant, request.workspace_id, force=not request.checked
            )
        return pb.ReleaseWorkspaceResponse(released=released)

    async def ForkWorkspace(
        self,
        request: pb.ForkWorkspaceRequest,
        context: grpc.aio.ServicerContext[pb.ForkWorkspaceRequest, pb.ForkWorkspaceResponse],
    ) -> pb.ForkWorkspaceResponse:
        tenant = current_tenant()
        forked = await self._keeper.fork(tenant, request.workspace_id, from_fork(request))
        return pb.ForkWorkspaceResponse(workspace=to_workspace(forked, tenant))

    async def RenameWorkspace(
        self,
        request: pb.RenameWorkspaceRequest,
        context: grpc.aio.ServicerContext[pb.RenameWorkspaceRequest, pb.RenameWorkspaceResponse],
    ) -> pb.RenameWorkspaceResponse:
        tenant = current_tenant()
        renamed = await self._keeper.rename(tenant, request.workspace_id, request.name)
        return pb.RenameWorkspaceResponse(workspace=to_workspace(renamed, tenant))


async def _chunks(frames: AsyncIterator[pb.ImportSnapshotRequest]) -> AsyncIterator[bytes]:
    async for frame in frames:
        if frame.WhichOneof("frame") != "chunk":
            raise UploadOutOfOrder
        yield frame.chunk
