"""Workspaces as the provisioner's records hold them, for tests of the records alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from workspace_provisioner.workspaces import State, Workspace

NOW = datetime(2026, 11, 21, tzinfo=UTC)


def provisioned(letter: str = "a", **changed: object) -> Workspace:
    """Return a workspace of tenant `ada` that was made at NOW, for 30 minutes."""
    made = Workspace(
        workspace_id="wsp_" + letter * 26,
        tenant="ada",
        state=State.PROVISIONED,
        project="project",
        object_format="sha1",
        commit="c" * 40,
        branch="main",
        changes_tree="",
        has_submodules=False,
        created_at=NOW,
        expires_at=NOW + timedelta(minutes=30),
    )
    return replace(made, **changed)  # type: ignore[arg-type]
