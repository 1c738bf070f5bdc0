"""The form of a workspace's record on disk."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import NotRequired, TypedDict

from workspace_provisioner.workspaces import (
    Freshness,
    PlacedSubmodule,
    Rung,
    State,
    Workspace,
)


class OtherForm(ValueError):
    """JSON, and so whole, but no record as this version writes it."""


class FreshnessRecord(TypedDict):
    """How an upstream's tip was found."""

    branch: str
    as_of: str | None
    fallback: bool
    reason: str


class SubmoduleRecord(TypedDict):
    """A submodule that was initialised."""

    path: str
    names: list[str]
    project: str
    commit: str


@dataclass(frozen=True, slots=True)
class Moment:
    """When files were made: the boot of the machine, and the seconds of its monotonic clock."""

    boot: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Record:
    """A workspace as it was written down. `made` says when its files were made, and of two records
    of one workspace the later one has the greater `revision`.
    """

    workspace: Workspace
    made: Moment
    revision: int


class WorkspaceRecord(TypedDict):
    """A record as JSON; `boot` and `seconds` say when the files were made."""

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
    submodules: NotRequired[list[SubmoduleRecord]]
    source_borrows_since: NotRequired[str]
    tags_left_out: NotRequired[bool]
    boot: str
    seconds: float
    revision: NotRequired[int]


def written(found: Record) -> bytes:
    """Return a record as the bytes of its file."""
    workspace, made = found.workspace, found.made
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
        revision=found.revision,
    )
    if workspace.submodules:
        record["submodules"] = [_submodule_record(each) for each in workspace.submodules]
    if workspace.source_borrows_since:
        record["source_borrows_since"] = workspace.source_borrows_since.isoformat()
    if workspace.tags_left_out:
        record["tags_left_out"] = True
    return json.dumps(record).encode()


def read_record(content: bytes) -> Record:
    """Return what was written; raises OtherForm, and ValueError for what was cut short."""
    record: WorkspaceRecord = json.loads(content)
    try:
        made = Moment(record["boot"], float(record["seconds"]))
        return Record(_workspace(record), made, int(record.get("revision", 0)))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise OtherForm("not a record") from error


def _workspace(record: WorkspaceRecord) -> Workspace:
    released_at, freshness = record["released_at"], record["freshness"]
    since = record.get("source_borrows_since")
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
        tags_left_out=record.get("tags_left_out", False),
        submodules=tuple(
            PlacedSubmodule(each["path"], tuple(each["names"]), each["project"], each["commit"])
            for each in record.get("submodules", ())
        ),
        source_borrows_since=datetime.fromisoformat(since) if since else None,
    )


def _submodule_record(placed: PlacedSubmodule) -> SubmoduleRecord:
    return SubmoduleRecord(
        path=placed.path, names=list(placed.names), project=placed.project, commit=placed.commit
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
