"""Workspaces as signalling sees them: what to make, what was made, what came of an import. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from signalling.snapshot import Freshness, Miss, Snapshot, Source


class WorkspaceState(StrEnum):
    """Whether a workspace can be used."""

    REQUESTED = "requested"
    PROVISIONED = "provisioned"
    RELEASED = "released"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """A checked-out tree at a resolved commit, with a lease; `rung` says how it was made."""

    workspace_id: str
    state: WorkspaceState
    project: str
    commit: str
    branch: str
    host_id: str
    rung: str
    created_at: datetime
    expires_at: datetime
    name: str = ""
    has_submodules: bool = False
    lfs_pointers: int = 0
    tags_left_out: bool = False
    changed_files: int | None = None
    freshness: Freshness | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceOrder:
    """What a host is to check out; `key` makes asking repeatable.

    With `claim_branch` no other live workspace of the project may claim `branch`; a `name` is
    always claimed.
    """

    key: str
    source: Source
    branch: str
    lease: timedelta
    name: str = ""
    claim_branch: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkOrder:
    """What a copy of a workspace is to be called; it keeps the branch when none is given."""

    key: str
    lease: timedelta
    name: str = ""
    branch: str = ""


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import led to; `made` is absent unless something was to be materialised."""

    snapshot: Snapshot
    made: Workspace | Miss | None = None


@dataclass(frozen=True, slots=True)
class OpenMiss:
    """A miss with the token of the upload that answers it."""

    miss: Miss
    upload_token: str
    expires_at: datetime
