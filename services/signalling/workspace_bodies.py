"""What the workspace routes take and answer: the same fields as the protos, in JSON."""

from __future__ import annotations

from datetime import datetime, timedelta

from pydantic import Field

from signalling.launch_request import DEFAULT_LEASE
from signalling.rest_types import Answer, Body, LeaseSeconds
from signalling.source_bodies import FreshnessAnswer, SourceBody
from signalling.workspace import ForkOrder, WorkspaceOrder, WorkspaceState

_NAME = "1 to 64 of a-z, 0-9, `.`, `_`, `-`, first a letter or digit; unique in the project."


def _length(lease: float | None) -> timedelta:
    return DEFAULT_LEASE if lease is None else timedelta(seconds=lease)


class MaterializeBody(Body):
    """What to check out, and what it is to be called."""

    source: SourceBody
    name: str = Field(default="", description=f"Name to claim: {_NAME} None when empty.")
    branch: str = Field(default="", description="Branch of the workspace; the source's if empty.")
    claim_branch: bool = Field(
        default=False, description="Refuse when another workspace of the project has claimed it."
    )
    lease: LeaseSeconds | None = Field(default=None, description="Seconds; 1800 when null.")
    idempotency_key: str | None = Field(default=None, description="As the header of that name.")

    def value(self, key: str) -> WorkspaceOrder:
        """Return the domain's value."""
        return WorkspaceOrder(
            key=key,
            source=self.source.value(),
            branch=self.branch,
            lease=_length(self.lease),
            name=self.name,
            claim_branch=self.claim_branch,
        )


class ForkBody(Body):
    """What the copy is to be called."""

    name: str = Field(default="", description=f"Name of the copy: {_NAME} None when empty.")
    branch: str = Field(
        default="", description="Branch of the copy, made and claimed; the same one when empty."
    )
    lease: LeaseSeconds | None = Field(default=None, description="Seconds; 1800 when null.")

    def value(self, key: str) -> ForkOrder:
        """Return the domain's value."""
        return ForkOrder(key=key, name=self.name, branch=self.branch, lease=_length(self.lease))


class RenameBody(Body):
    """What it is called from now on."""

    name: str = Field(description=f"{_NAME} None when empty.")


class WorkspaceAnswer(Answer):
    """A checked-out tree at a resolved commit, with a lease."""

    workspace_id: str
    state: WorkspaceState
    name: str
    project: str
    commit: str
    branch: str
    host_id: str
    rung: str = Field(description="How it was made, such as `overlay`, `pool` or `checkout`.")
    has_submodules: bool
    lfs_pointers: int = Field(description="Files that are LFS pointers; at most 1000 are counted.")
    tags_left_out: bool = Field(
        description="Whether tags of the source were left out, whose objects the host lacks."
    )
    changed_files: int | None = Field(description="Null unless the count was asked for.")
    freshness: FreshnessAnswer | None
    created_at: datetime
    expires_at: datetime


class WorkspacePage(Answer):
    """A page of workspaces, by id."""

    workspaces: list[WorkspaceAnswer]
    next_page_token: str = Field(description="Empty on the last page.")
    unanswered_hosts: list[str] = Field(
        default=[], description="Hosts that did not answer: what they hold is not in the page."
    )


class ReleasedAnswer(Answer):
    """What came of a release."""

    released: bool = Field(description="False when it was given back before.")
