"""Workspaces as the front door describes them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from fairlead_sdk import json_form as form
from fairlead_sdk.json_form import JsonObject


@dataclass(frozen=True, slots=True)
class Freshness:
    """How an upstream's tip was found.

    `as_of` is when the upstream last told it; with `fallback` the local commit was taken instead,
    for `reason`.
    """

    branch: str
    as_of: datetime | None
    fallback: bool
    reason: str

    @classmethod
    def read(cls, document: JsonObject | None) -> Freshness | None:
        """Read the JSON form; `None` when no upstream was asked for."""
        if document is None:
            return None
        return cls(
            branch=form.text(document, "branch"),
            as_of=form.time(document, "as_of"),
            fallback=form.flag(document, "fallback"),
            reason=form.text(document, "reason"),
        )


@dataclass(frozen=True, slots=True)
class WorkspaceRecord:
    """A checked-out git tree on a host, with a lease.

    `state` is `requested`, `provisioned` or `released`; `rung` says how it was made;
    `changed_files` is absent unless the count was asked for.
    """

    workspace_id: str
    state: str
    name: str
    project: str
    commit: str
    branch: str
    host_id: str
    rung: str
    has_submodules: bool
    lfs_pointers: int
    changed_files: int | None
    freshness: Freshness | None
    created_at: datetime
    expires_at: datetime
    document: JsonObject

    @classmethod
    def read(cls, document: JsonObject) -> WorkspaceRecord:
        """Read the JSON form."""
        return cls(
            workspace_id=form.text(document, "workspace_id"),
            state=form.text(document, "state"),
            name=form.text(document, "name"),
            project=form.text(document, "project"),
            commit=form.text(document, "commit"),
            branch=form.text(document, "branch"),
            host_id=form.text(document, "host_id"),
            rung=form.text(document, "rung"),
            has_submodules=form.flag(document, "has_submodules"),
            lfs_pointers=form.number(document, "lfs_pointers"),
            changed_files=form.optional_number(document, "changed_files"),
            freshness=Freshness.read(form.child(document, "freshness")),
            created_at=form.time_or_epoch(document, "created_at"),
            expires_at=form.time_or_epoch(document, "expires_at"),
            document=document,
        )
