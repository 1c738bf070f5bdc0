"""The form of a workspace's record on disk."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import TypedDict

from workspace_provisioner.workspaces import Freshness, Rung, State, Workspace


class FreshnessRecord(TypedDict):
    """How an upstream's tip was found."""

    branch: str
    as_of: str | None
    fallback: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Moment:
    """When files were made: the boot of the machine, and the seconds of its monotonic clock."""

    boot: str
    seconds: float


class WorkspaceRecord(TypedDict):
    """A workspace's record; `boot` and `seconds` say when its files were made."""

    workspace_id: str
    tenant: str
    state: str
    project: str
    object_format: str
    commit: str
    branch: str
    changes_tree: str
    has_submodules: bool
    created_at: str
    expires_at: str
    released_at: str | None
    request: str
    name: str
    claims_branch: bool
    rung: str
    freshness: FreshnessRecord | None
    lfs_pointers: int
    boot: str
    seconds: float


def written(workspace: Workspace, made: Moment) -> bytes:
    """Return a workspace's record as the bytes of its file."""
    released_at, freshness = workspace.released_at, workspace.freshness
    record = WorkspaceRecord(
        workspace_id=workspace.workspace_id,
        tenant=workspace.tenant,
        state=workspace.state,
        project=workspace.project,
        object_format=workspace.object_format,
        commit=workspace.commit,
        branch=workspace.branch,
        changes_tree=workspace.changes_tree,
        has_submodules=workspace.has_submodules,
        created_at=workspace.created_at.isoformat(),
        expires_at=workspace.expires_at.isoformat(),
        released_at=released_at.isoformat() if released_at else None,
        request=workspace.request,
        name=workspace.name,
        claims_branch=workspace.claims_branch,
        rung=workspace.rung,
        freshness=_freshness_record(freshness) if freshness else None,
        lfs_pointers=workspace.lfs_pointers,
        boot=made.boot,
        seconds=made.seconds,
    )
    return json.dumps(record).encode()


def read_record(content: bytes) -> tuple[Workspace, Moment]:
    """Return a record's workspace, and when its files were made; raises ValueError for another
    form.
    """
    try:
        record: WorkspaceRecord = json.loads(content)
        return _workspace(record), Moment(record["boot"], float(record["seconds"]))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("not a record") from error


def _workspace(record: WorkspaceRecord) -> Workspace:
    released_at, freshness = record["released_at"], record["freshness"]
    return Workspace(
        workspace_id=record["workspace_id"],
        tenant=record["tenant"],
        state=State(record["state"]),
        project=record["project"],
        object_format=record["object_format"],
        commit=record["commit"],
        branch=record["branch"],
        changes_tree=record["changes_tree"],
        has_submodules=record["has_submodules"],
        created_at=datetime.fromisoformat(record["created_at"]),
        expires_at=datetime.fromisoformat(record["expires_at"]),
        released_at=datetime.fromisoformat(released_at) if released_at else None,
        request=record["request"],
        name=record["name"],
        claims_branch=record["claims_branch"],
        rung=Rung(record["rung"]),
        freshness=_freshness(freshness) if freshness else None,
        lfs_pointers=record["lfs_pointers"],
    )


def _freshness_record(found: Freshness) -> FreshnessRecord:
    return FreshnessRecord(
        branch=found.branch,
        as_of=found.as_of.isoformat() if found.as_of else None,
        fallback=found.fallback,
        reason=found.reason,
    )


def _freshness(record: FreshnessRecord) -> Freshness:
    as_of = record["as_of"]
    return Freshness(
        branch=record["branch"],
        as_of=datetime.fromisoformat(as_of) if as_of else None,
        fallback=record["fallback"],
        reason=record["reason"],
    )
