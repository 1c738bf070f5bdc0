"""The rule for names of workspaces, and what of a workspace is claimed for it alone."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from chassis.limits import check_name
from fairlead_limits.table import WORKSPACE_NAME
from workspace_provisioner.sources import ProjectKey
from workspace_provisioner.workspace_errors import BranchInUse, WorkspaceExists
from workspace_provisioner.workspaces import Workspace


class ClaimKind(StrEnum):
    """What is claimed."""

    NAME = "names"
    BRANCH = "branches"


@dataclass(frozen=True, slots=True)
class Claim:
    """A name or branch that one live workspace of a project has for itself."""

    key: ProjectKey
    kind: ClaimKind
    text: str

    def refused(self) -> WorkspaceExists | BranchInUse:
        """Return what its loser is told; nothing in it is of other tenants."""
        if self.kind is ClaimKind.NAME:
            return WorkspaceExists(self.text)
        return BranchInUse(self.text)


def claims_of(workspace: Workspace) -> tuple[Claim, ...]:
    """Return what a workspace claims: its name, then its branch."""
    if not workspace.project:
        return ()
    found = []
    if workspace.name:
        found.append(Claim(workspace.key, ClaimKind.NAME, workspace.name))
    if workspace.claims_branch and workspace.branch:
        found.append(Claim(workspace.key, ClaimKind.BRANCH, workspace.branch))
    return tuple(found)


def checked_name(name: str) -> str:
    """Return the name when it can be a workspace's, or is empty; raises LimitBroken."""
    if name:
        check_name(WORKSPACE_NAME, name)
    return name
