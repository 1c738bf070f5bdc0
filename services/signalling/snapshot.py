"""Snapshots, workspaces and sandboxes as signalling sees them: what to check out, what a host
lacks, what it made. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class MissReason(StrEnum):
    """Why a host cannot make a workspace from what it has."""

    UNKNOWN_PROJECT = "unknown_project"
    UNKNOWN_COMMIT = "unknown_commit"
    UNKNOWN_CHANGES = "unknown_changes"
    MISSING_OBJECTS = "missing_objects"


@dataclass(frozen=True, slots=True)
class Changes:
    """Uncommitted and untracked files: a tree, and its objects as a thin pack when they are few."""

    tree: str
    pack: bytes = b""


@dataclass(frozen=True, slots=True)
class Source:
    """What to check out; see `launch_request.check_source` for the rules."""

    project: str
    commit: str
    object_format: str = "sha1"
    branch: str = ""
    digest: str = ""
    changes: Changes | None = None


@dataclass(frozen=True, slots=True)
class Tip:
    """A ref and the commit that it names."""

    ref: str
    commit: str


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


@dataclass(frozen=True, slots=True)
class Workspace:
    """A checked-out tree on a host, as far as a launch cares."""

    workspace_id: str
    rung: str
    branch: str


@dataclass(frozen=True, slots=True)
class Sandbox:
    """An isolated place to execute in, as far as a launch cares."""

    sandbox_id: str
    isolation: str


@dataclass(frozen=True, slots=True)
class PortDoor:
    """Where one connection into a sandbox is made, and the one-time token for it."""

    address: str
    token: bytes
