"""Workspaces, misses and snapshots as this host remembers them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from workspace_provisioner.sources import ProjectKey, Source, Tip


class State(StrEnum):
    """Whether a workspace can be used."""

    REQUESTED = "requested"
    PROVISIONED = "provisioned"
    RELEASED = "released"


class MissReason(StrEnum):
    """Why a host cannot make a workspace from what it has."""

    UNKNOWN_PROJECT = "unknown_project"
    UNKNOWN_COMMIT = "unknown_commit"
    UNKNOWN_CHANGES = "unknown_changes"
    MISSING_OBJECTS = "missing_objects"


@dataclass(frozen=True, slots=True)
class Miss:
    """What the host lacks, and the newest tips that it has, so that an upload can be thin."""

    reason: MissReason
    wanted: tuple[str, ...]
    tips: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Workspace:
    """A workspace's record. `released` with an empty project is a key that was released before it
    made anything.
    """

    workspace_id: str
    tenant: str
    state: State
    project: str
    object_format: str
    commit: str
    branch: str
    changes_tree: str
    has_submodules: bool
    created_at: datetime
    expires_at: datetime
    released_at: datetime | None = None

    def is_of(self, order: Order) -> bool:
        """Say whether a repeated order asks for the same thing as the one that made this
        workspace.
        """
        changes = order.source.changes
        return (
            self.project == order.source.key.project
            and self.object_format == order.source.key.object_format
            and self.commit == order.source.commit
            and self.branch == order.branch
            and self.changes_tree == (changes.tree if changes else "")
        )


@dataclass(frozen=True, slots=True)
class Order:
    """A checked request for a workspace."""

    workspace_id: str
    source: Source
    branch: str
    lease: timedelta


def requested_workspace(order: Order, now: datetime) -> Workspace:
    """Return the workspace that an order asks for, before it is made."""
    key, changes = order.source.key, order.source.changes
    return Workspace(
        workspace_id=order.workspace_id,
        tenant=key.tenant,
        state=State.REQUESTED,
        project=key.project,
        object_format=key.object_format,
        commit=order.source.commit,
        branch=order.branch,
        changes_tree=changes.tree if changes else "",
        has_submodules=False,
        created_at=now,
        expires_at=now + order.lease,
    )


def never_made(tenant: str, workspace_id: str, now: datetime) -> Workspace:
    """Return the tombstone of a key that was released before anything was made for it."""
    return Workspace(
        workspace_id=workspace_id,
        tenant=tenant,
        state=State.RELEASED,
        project="",
        object_format="",
        commit="",
        branch="",
        changes_tree="",
        has_submodules=False,
        created_at=now,
        expires_at=now,
        released_at=now,
    )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A durable, connected set of commits of one project."""

    snapshot_id: str
    key: ProjectKey
    digest: str
    commit: str
    changes_tree: str
    tips: tuple[Tip, ...]
    created_at: datetime
    received_bytes: int

    @property
    def commits(self) -> tuple[str, ...]:
        """The wanted commit, then the tips, each once."""
        return tuple(dict.fromkeys((self.commit, *(tip.commit for tip in self.tips))))


def miss_without_commit(source: Source, reason: MissReason, tips: tuple[str, ...]) -> Miss:
    """Say that the commit is lacking, and the tree of changes too when it did not come along."""
    trees = (source.changes.tree,) if source.changes and not source.changes.pack else ()
    return Miss(reason, (source.commit, *trees), tips)
