"""Snapshots as JSON."""

from __future__ import annotations

from datetime import datetime
from typing import NotRequired, TypedDict

from workspace_provisioner.sources import ObjectFormat, ProjectKey, Tip
from workspace_provisioner.workspaces import Snapshot


class SnapshotRecord(TypedDict):
    """A snapshot's record on disk."""

    snapshot_id: str
    tenant: str
    project: str
    object_format: str
    digest: str
    commit: str
    changes_tree: str
    tips: list[list[str]]
    created_at: str
    received_bytes: int
    shallow: NotRequired[list[str]]
    tags: NotRequired[list[list[str]]]


def as_record(snapshot: Snapshot) -> SnapshotRecord:
    """Return a snapshot as its record."""
    return SnapshotRecord(
        snapshot_id=snapshot.snapshot_id,
        tenant=snapshot.key.tenant,
        project=snapshot.key.project,
        object_format=snapshot.key.object_format,
        digest=snapshot.digest,
        commit=snapshot.commit,
        changes_tree=snapshot.changes_tree,
        tips=[[tip.ref, tip.commit] for tip in snapshot.tips],
        created_at=snapshot.created_at.isoformat(),
        received_bytes=snapshot.received_bytes,
        shallow=list(snapshot.shallow),
        tags=[list(each) for each in snapshot.tags],
    )


def from_record(record: SnapshotRecord) -> Snapshot:
    """Return the snapshot of a record; raises KeyError, TypeError or ValueError."""
    key = ProjectKey(record["tenant"], record["project"], ObjectFormat(record["object_format"]))
    return Snapshot(
        snapshot_id=record["snapshot_id"],
        key=key,
        digest=record["digest"],
        commit=record["commit"],
        changes_tree=record["changes_tree"],
        tips=tuple(Tip(ref, commit) for ref, commit in record["tips"]),
        created_at=datetime.fromisoformat(record["created_at"]),
        received_bytes=record["received_bytes"],
        shallow=tuple(record.get("shallow", ())),
        tags=tuple((tag, commit) for tag, commit in record.get("tags", ())),
    )
