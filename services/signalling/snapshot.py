"""Snapshots as signalling sees them: what to check out, what a host lacks, what it has. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum


class MissReason(StrEnum):
    """Why a host cannot make a workspace from what it has; what begins with `client`, and
    `dirty_too_large`, only a client notices.
    """

    NO_BASE = "no_base"
    UNKNOWN_COMMIT = "unknown_commit"
    UNKNOWN_CHANGES = "unknown_changes"
    REF_DRIFT = "ref_drift"
    SNAPSHOT_NOT_DURABLE = "snapshot_not_durable"
    MISSING_OBJECTS = "missing_objects"
    CLIENT_REFS_UNREADABLE = "client_refs_unreadable"
    CLIENT_OBJECTS_MISSING = "client_objects_missing"
    DIRTY_TOO_LARGE = "dirty_too_large"


NOTICED_BY_CLIENTS = frozenset(
    {
        MissReason.CLIENT_REFS_UNREADABLE,
        MissReason.CLIENT_OBJECTS_MISSING,
        MissReason.DIRTY_TOO_LARGE,
    }
)


@dataclass(frozen=True, slots=True)
class Changes:
    """Uncommitted and untracked files: a tree, and its objects as a thin pack when they are few."""

    tree: str
    pack: bytes = b""


@dataclass(frozen=True, slots=True)
class Commits:
    """New commits that travel with the request: a thin pack against tips that the host had."""

    against: tuple[str, ...]
    pack: bytes


@dataclass(frozen=True, slots=True)
class Tip:
    """A ref and the commit that it names."""

    ref: str
    commit: str


@dataclass(frozen=True, slots=True)
class Upstream:
    """Where a project comes from; the tip of `branch` there is wanted in place of the commit."""

    url: str
    branch: str
    max_age: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Freshness:
    """How an upstream's tip was found; `reason` says why the client's commit was taken instead."""

    branch: str
    as_of: datetime | None
    fallback: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Source:
    """What to check out; see `source_rules.check_source` for the rules."""

    project: str
    commit: str
    object_format: str = "sha1"
    branch: str = ""
    digest: str = ""
    changes: Changes | None = None
    commits: Commits | None = None
    upstream: Upstream | None = None
    noticed: tuple[MissReason, ...] = ()
    submodules: bool = False
    origin: str = ""
    tags: tuple[Tip, ...] = ()


@dataclass(frozen=True, slots=True)
class Miss:
    """What a host lacks and the newest tips that it has."""

    reason: MissReason
    wanted: tuple[str, ...]
    tips: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A durable, connected set of commits of one project on one host, for one tenant."""

    snapshot_id: str
    project: str
    host_id: str
    digest: str
    tips: tuple[Tip, ...]
    created_at: datetime
    received_bytes: int
