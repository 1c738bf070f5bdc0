"""WorkspaceService: proto in, use case, proto out."""

from __future__ import annotations

from collections.abc import AsyncIterator

from chassis.errors import InvalidArgument
from chassis.ids import is_id
from chassis.limits import check_branch
from fairlead.workspace.v1 import workspace_pb2, workspace_pb2_grpc
from workspace_provisioner.errors import FieldInvalid
from workspace_provisioner.operations import SnapshotOperations, WorkspaceOperations
from workspace_provisioner.sources import Source, Tip, checked_tenant, checked_tips
from workspace_provisioner.workspace_messages import (
    materialized,
    read_lease,
    read_source,
    snapshot_message,
    workspace_message,
)

SERVICE = workspace_pb2.DESCRIPTOR.services_by_name["WorkspaceService"].full_name

_PAGE = 100
_LARGEST_PAGE = 1000
_CHUNK_BYTES = 1024 * 1024


class UploadMalformed(InvalidArgument):
    """The frames of an import do not come in their order."""

    def __init__(self, sentence: str) -> None:
        super().__init__(
            sentence,
            reason="upload_malformed",
            remedy="Send `open` first, then chunks of at most 1 MiB.",
        )


class WorkspaceApi(workspace_pb2_grpc.WorkspaceServiceServicer):
    """The service on the wire."""

    def __init__(
        self, *, workspaces: WorkspaceOperations, snapshots: SnapshotOperations, host_id: str
    ) -> None:
        self._workspaces = workspaces
        self._snapshots = snapshots
        self._host_id = host_id

    async def MaterializeWorkspace(
        self, request: workspace_pb2.MaterializeWorkspaceRequest, context: object
    ) -> workspace_pb2.MaterializeWorkspaceResponse:
        return await self._materialized(request, read_source(request.tenant, request.source))

    async def _materialized(
        self, request: workspace_pb2.MaterializeWorkspaceRequest, source: Source
    ) -> workspace_pb2.MaterializeWorkspaceResponse:
        outcome = await self._workspaces.materialize(
            idempotency_key=request.idempotency_key,
            source=source,
            branch=check_branch(request.branch) if request.branch else "",
            lease=read_lease(request.lease if request.HasField("lease") else None),
            name=request.name,
            claims_branch=request.claim_branch,
            overlay=request.overlay,
        )
        return materialized(outcome, self._host_id)

    async def ImportSnapshot(
        self,
        requests: AsyncIterator[workspace_pb2.ImportSnapshotRequest],
        context: object,
    ) -> workspace_pb2.ImportSnapshotResponse:
        frames = aiter(requests)
        first = await anext(frames, None)
        if first is None or first.WhichOneof("frame") != "open":
            raise UploadMalformed("The first frame of an upload has to be `open`.")
        opened = first.open
        source = read_source(opened.tenant, opened.source)
        tips = checked_tips(
            (Tip(tip.ref, tip.commit) for tip in opened.tips), source.key.object_format
        )
        snapshot = await self._snapshots.receive(
            source, tips, _chunks(frames), tips_only=opened.tips_only
        )
        answer = workspace_pb2.ImportSnapshotResponse(
            snapshot=snapshot_message(snapshot, self._host_id)
        )
        if opened.HasField("materialize"):
            made = await self._materialized(opened.materialize, source)
            answer.materialized.CopyFrom(made)
        return answer

    async def GetWorkspace(
        self, request: workspace_pb2.GetWorkspaceRequest, context: object
    ) -> workspace_pb2.GetWorkspaceResponse:
        found = await self._workspaces.get(request.tenant, request.workspace_id)
        answer = workspace_message(found, self._host_id)
        if request.count_changes:
            count = await self._workspaces.count_changes(found)
            if count is not None:
                answer.changed_files = count
        return workspace_pb2.GetWorkspaceResponse(workspace=answer)

    async def ListWorkspaces(
        self, request: workspace_pb2.ListWorkspacesRequest, context: object
    ) -> workspace_pb2.ListWorkspacesResponse:
        if not 0 <= request.page_size <= _LARGEST_PAGE:
            raise FieldInvalid(
                "page_size", f"must be 1 to {_LARGEST_PAGE}", remedy="Ask for fewer at once."
            )
        if request.page_token and not is_id("wsp", request.page_token):
            raise FieldInvalid(
                "page_token", "is not one that a page came with", remedy="Start without a token."
            )
        page, token = await self._workspaces.list(
            request.tenant, size=request.page_size or _PAGE, after=request.page_token
        )
        return workspace_pb2.ListWorkspacesResponse(
            workspaces=[workspace_message(each, self._host_id) for each in page],
            next_page_token=token,
        )

    async def RenewWorkspace(
        self, request: workspace_pb2.RenewWorkspaceRequest, context: object
    ) -> workspace_pb2.RenewWorkspaceResponse:
        lease = read_lease(request.lease if request.HasField("lease") else None)
        renewed = await self._workspaces.renew(request.tenant, request.workspace_id, lease)
        return workspace_pb2.RenewWorkspaceResponse(
            workspace=workspace_message(renewed, self._host_id)
        )

    async def ReleaseWorkspace(
        self, request: workspace_pb2.ReleaseWorkspaceRequest, context: object
    ) -> workspace_pb2.ReleaseWorkspaceResponse:
        checked_tenant(request.tenant)
        match request.WhichOneof("workspace"):
            case "workspace_id" if is_id("wsp", request.workspace_id):
                released = await self._workspaces.release(
                    request.tenant, workspace_id=request.workspace_id, checked=request.checked
                )
            case "workspace_id":
                released = False
            case _:
                released = await self._workspaces.release(
                    request.tenant, idempotency_key=request.idempotency_key, checked=request.checked
                )
        return workspace_pb2.ReleaseWorkspaceResponse(released=released)

    async def ForkWorkspace(
        self, request: workspace_pb2.ForkWorkspaceRequest, context: object
    ) -> workspace_pb2.ForkWorkspaceResponse:
        made = await self._workspaces.fork(
            checked_tenant(request.tenant),
            request.workspace_id,
            idempotency_key=request.idempotency_key,
            name=request.name,
            branch=check_branch(request.branch) if request.branch else "",
            lease=read_lease(request.lease if request.HasField("lease") else None),
            overlay=request.overlay,
        )
        return workspace_pb2.ForkWorkspaceResponse(workspace=workspace_message(made, self._host_id))

    async def RenameWorkspace(
        self, request: workspace_pb2.RenameWorkspaceRequest, context: object
    ) -> workspace_pb2.RenameWorkspaceResponse:
        renamed = await self._workspaces.rename(
            checked_tenant(request.tenant), request.workspace_id, request.name
        )
        return workspace_pb2.RenameWorkspaceResponse(
            workspace=workspace_message(renamed, self._host_id)
        )


async def _chunks(
    frames: AsyncIterator[workspace_pb2.ImportSnapshotRequest],
) -> AsyncIterator[bytes]:
    async for frame in frames:
        if frame.WhichOneof("frame") != "chunk" or len(frame.chunk) > _CHUNK_BYTES:
            raise UploadMalformed(
                "Every frame of an upload after `open` has to be a chunk of at most 1 MiB."
            )
        yield frame.chunk
