"""Workspaces between domain and proto, both ways."""

from __future__ import annotations

from fairlead.workspace.v1 import workspace_pb2 as pb
from signalling.execution_messages import from_duration, from_timestamp, to_duration, to_timestamp
from signalling.launch_request import DEFAULT_LEASE
from signalling.snapshot import Miss, Source
from signalling.snapshot_messages import (
    from_freshness,
    from_miss,
    to_freshness,
    to_miss_reason,
    to_source,
)
from signalling.workspace import ForkOrder, OpenMiss, Workspace, WorkspaceOrder, WorkspaceState

_STATES = {
    WorkspaceState.REQUESTED: pb.WORKSPACE_STATE_REQUESTED,
    WorkspaceState.PROVISIONED: pb.WORKSPACE_STATE_PROVISIONED,
    WorkspaceState.RELEASED: pb.WORKSPACE_STATE_RELEASED,
}
_STATE_OF = {number: state for state, number in _STATES.items()}
_RUNG_OF = {
    pb.RUNG_CHECKOUT: "checkout",
    pb.RUNG_OVERLAY: "overlay",
    pb.RUNG_OVERLAY_DELTA: "overlay_delta",
    pb.RUNG_POOL: "pool",
    pb.RUNG_POOL_ADVANCED: "pool_advanced",
    pb.RUNG_FORK: "fork",
}
_RUNGS = {rung: number for number, rung in _RUNG_OF.items()}


def from_workspace(message: pb.Workspace) -> Workspace:
    """Read a workspace; a rung that is not known is left empty."""
    return Workspace(
        workspace_id=message.workspace_id,
        state=_STATE_OF.get(message.state, WorkspaceState.PROVISIONED),
        project=message.project,
        commit=message.commit,
        branch=message.branch,
        host_id=message.host_id,
        rung=_RUNG_OF.get(message.rung, ""),
        created_at=from_timestamp(message.created_at),
        expires_at=from_timestamp(message.expires_at),
        name=message.name,
        has_submodules=message.has_submodules,
        lfs_pointers=message.lfs_pointers,
        tags_left_out=message.tags_left_out,
        changed_files=message.changed_files if message.HasField("changed_files") else None,
        freshness=from_freshness(message.freshness) if message.HasField("freshness") else None,
    )


def to_workspace(workspace: Workspace, tenant: str) -> pb.Workspace:
    """Return a workspace as a message."""
    fresh = workspace.freshness
    return pb.Workspace(
        workspace_id=workspace.workspace_id,
        tenant=tenant,
        state=_STATES[workspace.state],
        project=workspace.project,
        commit=workspace.commit,
        branch=workspace.branch,
        host_id=workspace.host_id,
        rung=_RUNGS.get(workspace.rung, pb.RUNG_UNSPECIFIED),
        has_submodules=workspace.has_submodules,
        created_at=to_timestamp(workspace.created_at),
        expires_at=to_timestamp(workspace.expires_at),
        changed_files=workspace.changed_files,
        name=workspace.name,
        freshness=None if fresh is None else to_freshness(fresh),
        lfs_pointers=workspace.lfs_pointers,
        tags_left_out=workspace.tags_left_out,
    )


def to_order(
    order: WorkspaceOrder, tenant: str, *, overlay: bool, with_source: bool = True
) -> pb.MaterializeWorkspaceRequest:
    """Return what a host is to check out as a message."""
    return pb.MaterializeWorkspaceRequest(
        tenant=tenant,
        idempotency_key=order.key,
        source=to_source(order.source) if with_source else None,
        branch=order.branch,
        lease=to_duration(order.lease),
        name=order.name,
        claim_branch=order.claim_branch,
        overlay=overlay,
    )


def from_order(message: pb.MaterializeWorkspaceRequest, source: Source) -> WorkspaceOrder:
    """Read what a caller asks for; its rules are checked by the use case."""
    return WorkspaceOrder(
        key=message.idempotency_key,
        source=source,
        branch=message.branch,
        lease=from_duration("lease", message.lease) if message.HasField("lease") else DEFAULT_LEASE,
        name=message.name,
        claim_branch=message.claim_branch,
    )


def to_fork(
    order: ForkOrder, tenant: str, workspace_id: str, *, overlay: bool
) -> pb.ForkWorkspaceRequest:
    """Return a wish for a copy as a message."""
    return pb.ForkWorkspaceRequest(
        tenant=tenant,
        workspace_id=workspace_id,
        idempotency_key=order.key,
        name=order.name,
        branch=order.branch,
        lease=to_duration(order.lease),
        overlay=overlay,
    )


def from_fork(message: pb.ForkWorkspaceRequest) -> ForkOrder:
    """Read a wish for a copy."""
    return ForkOrder(
        key=message.idempotency_key,
        lease=from_duration("lease", message.lease) if message.HasField("lease") else DEFAULT_LEASE,
        name=message.name,
        branch=message.branch,
    )


def from_outcome(message: pb.MaterializeWorkspaceResponse) -> Workspace | Miss:
    """Read what a host answered."""
    if message.WhichOneof("outcome") == "miss":
        return from_miss(message.miss)
    return from_workspace(message.workspace)


def to_outcome(made: Workspace | OpenMiss, tenant: str) -> pb.MaterializeWorkspaceResponse:
    """Return what a caller is answered."""
    if isinstance(made, Workspace):
        return pb.MaterializeWorkspaceResponse(workspace=to_workspace(made, tenant))
    return pb.MaterializeWorkspaceResponse(
        miss=pb.Miss(
            reason=to_miss_reason(made.miss.reason),
            wanted=made.miss.wanted,
            tips=made.miss.tips,
            upload_token=made.upload_token,
            expires_at=to_timestamp(made.expires_at),
        )
    )
