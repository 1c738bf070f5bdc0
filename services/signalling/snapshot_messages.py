"""Sources and snapshots between domain and proto, both ways."""

from __future__ import annotations

from fairlead.snapshot.v1 import snapshot_pb2 as pb
from fairlead.workspace.v1 import workspace_pb2
from signalling.execution_messages import from_timestamp, to_timestamp
from signalling.snapshot import Changes, Miss, MissReason, Snapshot, Source, Tip

_MISS_REASONS = {
    MissReason.UNKNOWN_PROJECT: pb.MISS_REASON_UNKNOWN_PROJECT,
    MissReason.UNKNOWN_COMMIT: pb.MISS_REASON_UNKNOWN_COMMIT,
    MissReason.UNKNOWN_CHANGES: pb.MISS_REASON_UNKNOWN_CHANGES,
    MissReason.MISSING_OBJECTS: pb.MISS_REASON_MISSING_OBJECTS,
}
_REASON_OF = {number: reason for reason, number in _MISS_REASONS.items()}


def to_miss_reason(reason: MissReason) -> pb.MissReason.ValueType:
    """Return why a host missed as a message's value."""
    return _MISS_REASONS[reason]


def from_miss(message: workspace_pb2.Miss) -> Miss:
    """Read a miss; a reason that is not known counts as missing objects."""
    return Miss(
        reason=_REASON_OF.get(message.reason, MissReason.MISSING_OBJECTS),
        wanted=tuple(message.wanted),
        tips=tuple(message.tips),
    )


def to_source(source: Source) -> pb.Source:
    """Return a source as a message."""
    changes = source.changes
    return pb.Source(
        project=source.project,
        object_format=source.object_format,
        commit=source.commit,
        branch=source.branch,
        digest=source.digest,
        changes=None if changes is None else pb.Changes(tree=changes.tree, pack=changes.pack),
    )


def from_source(message: pb.Source) -> Source:
    """Read a source; its rules are checked by the use case."""
    return Source(
        project=message.project,
        object_format=message.object_format or "sha1",
        commit=message.commit,
        branch=message.branch,
        digest=message.digest,
        changes=Changes(message.changes.tree, message.changes.pack)
        if message.HasField("changes")
        else None,
    )


def to_tip(tip: Tip) -> pb.Tip:
    """Return a tip as a message."""
    return pb.Tip(ref=tip.ref, commit=tip.commit)


def from_tip(message: pb.Tip) -> Tip:
    """Read a tip."""
    return Tip(message.ref, message.commit)


def to_snapshot(snapshot: Snapshot) -> pb.Snapshot:
    """Return a snapshot as a message."""
    return pb.Snapshot(
        snapshot_id=snapshot.snapshot_id,
        project=snapshot.project,
        host_id=snapshot.host_id,
        digest=snapshot.digest,
        tips=[to_tip(tip) for tip in snapshot.tips],
        created_at=to_timestamp(snapshot.created_at),
        received_bytes=snapshot.received_bytes,
    )


def from_snapshot(message: pb.Snapshot) -> Snapshot:
    """Read a snapshot."""
    return Snapshot(
        snapshot_id=message.snapshot_id,
        project=message.project,
        host_id=message.host_id,
        digest=message.digest,
        tips=tuple(from_tip(tip) for tip in message.tips),
        created_at=from_timestamp(message.created_at),
        received_bytes=message.received_bytes,
    )
