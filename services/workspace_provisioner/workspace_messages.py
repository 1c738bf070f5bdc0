"""Proto messages of workspaces and snapshots, both ways."""

from __future__ import annotations

from datetime import datetime, timedelta

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from fairlead.snapshot.v1 import snapshot_pb2
from fairlead.workspace.v1 import workspace_pb2
from workspace_provisioner.origins import checked_upstream, with_origins
from workspace_provisioner.sources import (
    Changes,
    Commits,
    Source,
    Tip,
    checked_lease,
    checked_source,
)
from workspace_provisioner.workspaces import (
    Freshness,
    Miss,
    MissReason,
    Rung,
    Snapshot,
    State,
    Workspace,
)

_STATES = {
    State.REQUESTED: workspace_pb2.WORKSPACE_STATE_REQUESTED,
    State.PROVISIONED: workspace_pb2.WORKSPACE_STATE_PROVISIONED,
    State.RELEASED: workspace_pb2.WORKSPACE_STATE_RELEASED,
}
_REASONS = {
    MissReason.NO_BASE: snapshot_pb2.MISS_REASON_NO_BASE,
    MissReason.UNKNOWN_COMMIT: snapshot_pb2.MISS_REASON_UNKNOWN_COMMIT,
    MissReason.UNKNOWN_CHANGES: snapshot_pb2.MISS_REASON_UNKNOWN_CHANGES,
    MissReason.REF_DRIFT: snapshot_pb2.MISS_REASON_REF_DRIFT,
    MissReason.SNAPSHOT_NOT_DURABLE: snapshot_pb2.MISS_REASON_SNAPSHOT_NOT_DURABLE,
    MissReason.MISSING_OBJECTS: snapshot_pb2.MISS_REASON_MISSING_OBJECTS,
}
_NOTICED = {
    snapshot_pb2.MISS_REASON_CLIENT_REFS_UNREADABLE: MissReason.CLIENT_REFS_UNREADABLE,
    snapshot_pb2.MISS_REASON_CLIENT_OBJECTS_MISSING: MissReason.CLIENT_OBJECTS_MISSING,
    snapshot_pb2.MISS_REASON_DIRTY_TOO_LARGE: MissReason.DIRTY_TOO_LARGE,
}
_RUNGS = {
    Rung.CHECKOUT: workspace_pb2.RUNG_CHECKOUT,
    Rung.OVERLAY: workspace_pb2.RUNG_OVERLAY,
    Rung.OVERLAY_DELTA: workspace_pb2.RUNG_OVERLAY_DELTA,
    Rung.POOL: workspace_pb2.RUNG_POOL,
    Rung.POOL_ADVANCED: workspace_pb2.RUNG_POOL_ADVANCED,
    Rung.FORK: workspace_pb2.RUNG_FORK,
}


def materialized(
    outcome: Workspace | Miss, host_id: str
) -> workspace_pb2.MaterializeWorkspaceResponse:
    """Return what a materialize led to."""
    if isinstance(outcome, Miss):
        miss = workspace_pb2.Miss(
            reason=_REASONS[outcome.reason], wanted=outcome.wanted, tips=outcome.tips
        )
        return workspace_pb2.MaterializeWorkspaceResponse(miss=miss)
    return workspace_pb2.MaterializeWorkspaceResponse(workspace=workspace_message(outcome, host_id))


def workspace_message(workspace: Workspace, host_id: str) -> workspace_pb2.Workspace:
    """Return a workspace of this host."""
    return workspace_pb2.Workspace(
        workspace_id=workspace.workspace_id,
        tenant=workspace.tenant,
        state=_STATES[workspace.state],
        project=workspace.project,
        commit=workspace.commit,
        branch=workspace.branch,
        host_id=host_id,
        rung=_RUNGS[workspace.rung],
        has_submodules=workspace.has_submodules,
        created_at=_timestamp(workspace.created_at),
        expires_at=_timestamp(workspace.expires_at),
        name=workspace.name,
        freshness=_freshness(workspace.freshness),
        lfs_pointers=workspace.lfs_pointers,
        tags_left_out=workspace.tags_left_out,
    )


def snapshot_message(snapshot: Snapshot, host_id: str) -> snapshot_pb2.Snapshot:
    """Return a snapshot of this host."""
    return snapshot_pb2.Snapshot(
        snapshot_id=snapshot.snapshot_id,
        project=snapshot.key.project,
        host_id=host_id,
        digest=snapshot.digest,
        tips=[snapshot_pb2.Tip(ref=tip.ref, commit=tip.commit) for tip in snapshot.tips],
        created_at=_timestamp(snapshot.created_at),
        received_bytes=snapshot.received_bytes,
    )


def read_source(tenant: str, source: snapshot_pb2.Source) -> Source:
    """Check a source; raises FieldInvalid, BranchInvalid and LimitBroken."""
    changes = commits = upstream = None
    if source.HasField("changes"):
        changes = Changes(tree=source.changes.tree, pack=source.changes.pack)
    if source.HasField("commits"):
        commits = Commits(against=tuple(source.commits.against), pack=source.commits.pack)
    if source.HasField("upstream"):
        found = source.upstream
        max_age = _span(found.max_age) if found.HasField("max_age") else None
        upstream = checked_upstream(found.url, found.branch, max_age)
    checked = checked_source(
        tenant=tenant,
        project=source.project,
        object_format=source.object_format,
        commit=source.commit,
        branch=source.branch,
        digest=source.digest,
        changes=changes,
        commits=commits,
        noticed=[_NOTICED[each] for each in source.noticed if each in _NOTICED],
        tags=[Tip(each.ref, each.commit) for each in source.tags],
    )
    return with_origins(
        checked, upstream=upstream, submodules=source.submodules, origin=source.origin
    )


def read_lease(duration: Duration | None) -> timedelta:
    """Return a lease; raises FieldInvalid."""
    if duration is None or (duration.seconds == 0 and duration.nanos == 0):
        return checked_lease(None)
    return checked_lease(_span(duration))


def _span(duration: Duration) -> timedelta:
    # Compared before it becomes a timedelta, which does not hold every Duration.
    seconds = min(max(duration.seconds, -1), 10**9)
    return timedelta(seconds=seconds, microseconds=duration.nanos // 1000)


def _freshness(found: Freshness | None) -> snapshot_pb2.Freshness | None:
    if found is None:
        return None
    return snapshot_pb2.Freshness(
        branch=found.branch,
        as_of=_timestamp(found.as_of) if found.as_of else None,
        fallback=found.fallback,
        reason=found.reason,
    )


def _timestamp(moment: datetime) -> Timestamp:
    stamp = Timestamp()
    stamp.FromDatetime(moment)
    return stamp
