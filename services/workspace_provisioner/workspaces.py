"""Workspaces, misses and snapshots as this host remembers them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from workspace_provisioner.sources import ObjectFormat, ProjectKey, Source, Tip


class State(StrEnum):
    """Whether a workspace can be used."""

    REQUESTED = "requested"
    PROVISIONED = "provisioned"
    RELEASED = "released"


class Rung(StrEnum):
    """How a workspace was made: the cheapest way that the machine allowed."""

    CHECKOUT = "checkout"
    OVERLAY = "overlay"
    OVERLAY_DELTA = "overlay_delta"
    POOL = "pool"
    POOL_ADVANCED = "pool_advanced"
    FORK = "fork"


class MissReason(StrEnum):
    """Why a launch was not the warm one: what the host answers as a miss, what it refuses, and what
    the client or a rung of the ladder noticed. All are counted.
    """

    NO_BASE = "no_base"
    UNKNOWN_COMMIT = "unknown_commit"
    UNKNOWN_CHANGES = "unknown_changes"
    REF_DRIFT = "ref_drift"
    SNAPSHOT_NOT_DURABLE = "snapshot_not_durable"
    MISSING_OBJECTS = "missing_objects"
    WORKSPACE_EXISTS = "workspace_exists"
    NAME_INVALID = "name_invalid"
    BRANCH_IN_USE = "branch_in_use"
    BASE_LOCKED = "base_locked"
    FS_UNSUPPORTED = "fs_unsupported"
    QUOTA = "quota"
    CLIENT_REFS_UNREADABLE = "client_refs_unreadable"
    CLIENT_OBJECTS_MISSING = "client_objects_missing"
    DIRTY_TOO_LARGE = "dirty_too_large"


@dataclass(frozen=True, slots=True)
class Miss:
    """What the host lacks, and the newest tips that it has, so that an upload can be thin."""

    reason: MissReason
    wanted: tuple[str, ...]
    tips: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Freshness:
    """How an upstream's tip was found; with `fallback` it was not, and `reason` says why."""

    branch: str
    as_of: datetime | None
    fallback: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PlacedSubmodule:
    """A submodule that this host initialised: its path in the workspace, the names of those on the
    way and its own, the project whose objects it borrows, and its commit.
    """

    path: str
    names: tuple[str, ...]
    project: str
    commit: str


@dataclass(frozen=True, slots=True)
class Workspace:
    """A workspace's record. `released` with an empty project is a key that was released before it
    made anything. A copy borrows what its source did, and since then.
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
    request: str = ""
    name: str = ""
    claims_branch: bool = False
    rung: Rung = Rung.CHECKOUT
    freshness: Freshness | None = None
    lfs_pointers: int = 0
    tags_left_out: bool = False
    submodules: tuple[PlacedSubmodule, ...] = ()
    source_borrows_since: datetime | None = None

    @property
    def borrows_since(self) -> datetime:
        """When what it borrows was promised."""
        return self.source_borrows_since or self.created_at

    @property
    def key(self) -> ProjectKey:
        """Whose objects of which project it borrows."""
        return ProjectKey(self.tenant, self.project, ObjectFormat(self.object_format))


@dataclass(frozen=True, slots=True)
class Order:
    """A checked request for a workspace; `claims_branch` wants `branch` for itself alone, and
    `overlay` says that who uses the workspace can mount one.
    """

    workspace_id: str
    source: Source
    branch: str
    lease: timedelta
    name: str = ""
    claims_branch: bool = False
    overlay: bool = False

    @property
    def request(self) -> str:
        """What is asked for, as a digest: a repeated key has to ask for the same."""
        source, changes, upstream = self.source, self.source.changes, self.source.upstream
        return request_digest(
            "materialize",
            source.key.project,
            source.key.object_format,
            source.commit,
            self.branch,
            changes.tree if changes else "",
            self.name,
            str(self.claims_branch),
            upstream.url if upstream else "",
            upstream.branch if upstream else "",
            str(source.submodules),
        )


@dataclass(frozen=True, slots=True)
class ForkOrder:
    """A checked request for a copy of a workspace; the copy stays on the branch of its source when
    `branch` is empty.
    """

    workspace_id: str
    tenant: str
    source_id: str
    branch: str
    lease: timedelta
    name: str = ""

    @property
    def request(self) -> str:
        """What is asked for, as a digest."""
        return request_digest("fork", self.source_id, self.branch, self.name)


def request_digest(*parts: str) -> str:
    """Return what tells one request from another in a record."""
    text = "\0".join(f"{len(part)}:{part}" for part in parts)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


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
        request=order.request,
        name=order.name,
        claims_branch=order.claims_branch,
    )


def requested_fork(order: ForkOrder, source: Workspace, now: datetime) -> Workspace:
    """Return the copy that an order asks for, before it is made."""
    return replace(
        source,
        workspace_id=order.workspace_id,
        state=State.REQUESTED,
        branch=order.branch or source.branch,
        created_at=now,
        expires_at=now + order.lease,
        released_at=None,
        request=order.request,
        name=order.name,
        claims_branch=bool(order.branch),
        source_borrows_since=source.borrows_since,
        tags_left_out=False,
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
    """A durable, connected set of commits of one project.

    Of the commits in `shallow` only the trees are there, and no ancestor. `tags` are the annotated
    tags among the tips, each with the commit that it leads to.
    """

    snapshot_id: str
    key: ProjectKey
    digest: str
    commit: str
    changes_tree: str
    tips: tuple[Tip, ...]
    created_at: datetime
    received_bytes: int
    shallow: tuple[str, ...] = ()
    tags: tuple[tuple[str, str], ...] = ()

    @property
    def commits(self) -> tuple[str, ...]:
        """The wanted commit, then the tips, each once; of a tag, its commit."""
        tags = dict(self.tags)
        commits = (tags.get(tip.commit, tip.commit) for tip in self.tips)
        return tuple(dict.fromkeys((self.commit, *commits)))


def miss_without_commit(source: Source, reason: MissReason, tips: tuple[str, ...]) -> Miss:
    """Say that the commit is lacking, and the tree of changes too when it did not come along."""
    trees = (source.changes.tree,) if source.changes and not source.changes.pack else ()
    return Miss(reason, (source.commit, *trees), tips)
