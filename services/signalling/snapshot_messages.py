"""Sources and snapshots between domain and proto, both ways."""

from __future__ import annotations

from fairlead.snapshot.v1 import snapshot_pb2 as pb
from fairlead.workspace.v1 import workspace_pb2
from signalling.execution_messages import (
    from_duration,
    from_timestamp,
    to_duration,
    to_timestamp,
)
from signalling.snapshot import (
    Changes,
    Commits,
    Freshness,
    Miss,
    MissReason,
    Snapshot,
    Source,
    Tip,
    Upstream,
)
from signalling.source_rules import InvalidRequest

_MISS_REASONS = {
    MissReason.NO_BASE: pb.MISS_REASON_NO_BASE,
    MissReason.UNKNOWN_COMMIT: pb.MISS_REASON_UNKNOWN_COMMIT,
    MissReason.UNKNOWN_CHANGES: pb.MISS_REASON_UNKNOWN_CHANGES,
    MissReason.REF_DRIFT: pb.MISS_REASON_REF_DRIFT,
    MissReason.SNAPSHOT_NOT_DURABLE: pb.MISS_REASON_SNAPSHOT_NOT_DURABLE,
    MissReason.MISSING_OBJECTS: pb.MISS_REASON_MISSING_OBJECTS,
    MissReason.CLIENT_REFS_UNREADABLE: pb.MISS_REASON_CLIENT_REFS_UNREADABLE,
    MissReason.CLIENT_OBJECTS_MISSING: pb.MISS_REASON_CLIENT_OBJECTS_MISSING,
    MissReason.DIRTY_TOO_LARGE: pb.MISS_REASON_DIRTY_TOO_LARGE,
}
_REASON_OF = {
    pb.MISS_REASON_UNKNOWN_PROJECT: MissReason.NO_BASE,
    **{number: reason for reason, number in _MISS_REASONS.items()},
}


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
    changes, commits = source.changes, source.commits
    return pb.Source(
        project=source.project,
        object_format=source.object_format,
        commit=source.commit,
        branch=source.branch,
        digest=source.digest,
        changes=None if changes is None else pb.Changes(tree=changes.tree, pack=changes.pack),
        commits=None if commits is None else pb.Commits(against=commits.against, pack=commits.pack),
        upstream=None if source.upstream is None else _to_upstream(source.upstream),
        noticed=[_MISS_REASONS[reason] for reason in source.noticed],
        submodules=source.submodules,
        origin=source.origin,
        tags=[to_tip(tag) for tag in source.tags],
    )


def _to_upstream(upstream: Upstream) -> pb.Upstream:
    age = upstream.max_age
    return pb.Upstream(
        url=upstream.url,
        branch=upstream.branch,
        max_age=None if age is None else to_duration(age),
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
        commits=Commits(tuple(message.commits.against), message.commits.pack)
        if message.HasField("commits")
        else None,
        upstream=_from_upstream(message.upstream) if message.HasField("upstream") else None,
        noticed=tuple(_noticed(number) for number in message.noticed),
        submodules=message.submodules,
        origin=message.origin,
        tags=tuple(from_tip(tag) for tag in message.tags),
    )


def _from_upstream(message: pb.Upstream) -> Upstream:
    return Upstream(
        url=message.url,
        branch=message.branch,
        max_age=from_duration("source.upstream.max_age", message.max_age)
        if message.HasField("max_age")
        else None,
    )


def _noticed(number: pb.MissReason.ValueType) -> MissReason:
    found = _REASON_OF.get(number)
    if found is None:
        raise InvalidRequest(
            "source.noticed", "There is no such miss reason.", reason="noticed_invalid"
        )
    return found


def to_freshness(freshness: Freshness) -> pb.Freshness:
    """Return how an upstream's tip was found as a message."""
    return pb.Freshness(
        branch=freshness.branch,
        as_of=None if freshness.as_of is None else to_timestamp(freshness.as_of),
        fallback=freshness.fallback,
        reason=freshness.reason,
    )


def from_freshness(message: pb.Freshness) -> Freshness:
    """Read how an upstream's tip was found."""
    return Freshness(
        branch=message.branch,
        as_of=from_timestamp(message.as_of) if message.HasField("as_of") else None,
        fallback=message.fallback,
        reason=message.reason,
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
