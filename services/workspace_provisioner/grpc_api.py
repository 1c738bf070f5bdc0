"""WorkspaceService: proto in, use case, proto out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime, timedelta

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from chassis.errors import InvalidArgument
from chassis.ids import is_id
from fairlead.snapshot.v1 import snapshot_pb2
from fairlead.workspace.v1 import workspace_pb2, workspace_pb2_grpc
from workspace_provisioner.branches import checked_branch
from workspace_provisioner.errors import FieldInvalid
from workspace_provisioner.ports import SnapshotOperations, WorkspaceOperations
from workspace_provisioner.sources import (
    Changes,
    Source,
    Tip,
    checked_lease,
    checked_source,
    checked_tenant,
    checked_tips,
)
from workspace_provisioner.workspaces import Miss, MissReason, Snapshot, State, Workspace

SERVICE = workspace_pb2.DESCRIPTOR.services_by_name["WorkspaceService"].full_name

_PAGE = 100
_LARGEST_PAGE = 1000
_CHUNK_BYTES = 1024 * 1024
_STATES = {
    State.REQUESTED: workspace_pb2.WORKSPACE_STATE_REQUESTED,
    State.PROVISIONED: workspace_pb2.WORKSPACE_STATE_PROVISIONED,
    State.RELEASED: workspace_pb2.WORKSPACE_STATE_RELEASED,
}
_REASONS = {
    MissReason.UNKNOWN_PROJECT: snapshot_pb2.MISS_REASON_UNKNOWN_PROJECT,
    MissReason.UNKNOWN_COMMIT: snapshot_pb2.MISS_REASON_UNKNOWN_COMMIT,
    MissReason.UNKNOWN_CHANGES: snapshot_pb2.MISS_REASON_UNKNOWN_CHANGES,
    MissReason.MISSING_OBJECTS: snapshot_pb2.MISS_REASON_MISSING_OBJECTS,
}


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
        outcome = await self._workspaces.materialize(
            idempotency_key=request.idempotency_key,
            source=_source(request.tenant, request.source),
            branch=checked_branch(request.branch) if request.branch else "",
            lease=_lease(request.lease if request.HasField("lease") else None),
        )
        if isinstance(outcome, Miss):
            miss = workspace_pb2.Miss(
                reason=_REASONS[outcome.reason], wanted=outcome.wanted, tips=outcome.tips
            )
            return workspace_pb2.MaterializeWorkspaceResponse(miss=miss)
        return workspace_pb2.MaterializeWorkspaceResponse(workspace=self._workspace(outcome))

    async def ImportSnapshot(
        self,
        requests: AsyncIterator[workspace_pb2.ImportSnapshotRequest],
        context: object,
    ) -> workspace_pb2.ImportSnapshotResponse:
        frames = aiter(requests)
        first = await anext(frames, None)
        if first is None or first.WhichOneof("frame") != "open":
            raise UploadMalformed("The first frame of an upload has to be `open`.")
        source = _source(first.open.tenant, first.open.source)
        tips = checked_tips(
            (Tip(tip.ref, tip.commit) for tip in first.open.tips), source.key.object_format
        )
        snapshot = await self._snapshots.receive(source, tips, _chunks(frames))
        return workspace_pb2.ImportSnapshotResponse(snapshot=self._snapshot(snapshot))

    async def GetWorkspace(
        self, request: workspace_pb2.GetWorkspaceRequest, context: object
    ) -> workspace_pb2.GetWorkspaceResponse:
        found = await self._workspaces.get(request.tenant, request.workspace_id)
        answer = self._workspace(found)
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
            workspaces=[self._workspace(each) for each in page], next_page_token=token
        )

    async def RenewWorkspace(
        self, request: workspace_pb2.RenewWorkspaceRequest, context: object
    ) -> workspace_pb2.RenewWorkspaceResponse:
        lease = _lease(request.lease if request.HasField("lease") else None)
        renewed = await self._workspaces.renew(request.tenant, request.workspace_id, lease)
        return workspace_pb2.RenewWorkspaceResponse(workspace=self._workspace(renewed))

    async def ReleaseWorkspace(
        self, request: workspace_pb2.ReleaseWorkspaceRequest, context: object
    ) -> workspace_pb2.ReleaseWorkspaceResponse:
        checked_tenant(request.tenant)
        match request.WhichOneof("workspace"):
            case "workspace_id" if is_id("wsp", request.workspace_id):
                released = await self._workspaces.release(
                    request.tenant, workspace_id=request.workspace_id
                )
            case "workspace_id":
                released = False
            case _:
                released = await self._workspaces.release(
                    request.tenant, idempotency_key=request.idempotency_key
                )
        return workspace_pb2.ReleaseWorkspaceResponse(released=released)

    def _workspace(self, workspace: Workspace) -> workspace_pb2.Workspace:
        return workspace_pb2.Workspace(
            workspace_id=workspace.workspace_id,
            tenant=workspace.tenant,
            state=_STATES[workspace.state],
            project=workspace.project,
            commit=workspace.commit,
            branch=workspace.branch,
            host_id=self._host_id,
            rung=workspace_pb2.RUNG_CHECKOUT,
            has_submodules=workspace.has_submodules,
            created_at=_timestamp(workspace.created_at),
            expires_at=_timestamp(workspace.expires_at),
        )

    def _snapshot(self, snapshot: Snapshot) -> snapshot_pb2.Snapshot:
        return snapshot_pb2.Snapshot(
            snapshot_id=snapshot.snapshot_id,
            project=snapshot.key.project,
            host_id=self._host_id,
            digest=snapshot.digest,
            tips=[snapshot_pb2.Tip(ref=tip.ref, commit=tip.commit) for tip in snapshot.tips],
            created_at=_timestamp(snapshot.created_at),
            received_bytes=snapshot.received_bytes,
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


def _source(tenant: str, source: snapshot_pb2.Source) -> Source:
    changes = None
    if source.HasField("changes"):
        changes = Changes(tree=source.changes.tree, pack=source.changes.pack)
    return checked_source(
        tenant=tenant,
        project=source.project,
        object_format=source.object_format,
        commit=source.commit,
        branch=source.branch,
        digest=source.digest,
        changes=changes,
    )


def _lease(duration: Duration | None) -> timedelta:
    if duration is None or (duration.seconds == 0 and duration.nanos == 0):
        return checked_lease(None)
    # Compared before it becomes a timedelta, which does not hold every Duration.
    seconds = min(max(duration.seconds, -1), 10**9)
    return checked_lease(timedelta(seconds=seconds, microseconds=duration.nanos // 1000))


def _timestamp(moment: datetime) -> Timestamp:
    stamp = Timestamp()
    stamp.FromDatetime(moment)
    return stamp
