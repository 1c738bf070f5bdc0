"""Why a workspace is refused, or kept: names, branches, shares, and work that would be lost."""

from __future__ import annotations

from chassis.errors import (
    AlreadyExists,
    FailedPrecondition,
    ResourceExhausted,
    Unavailable,
)


class WorkspaceExists(AlreadyExists):
    """Another workspace of the project has the name."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"There is a workspace with the name '{name}' already.",
            reason="workspace_exists",
            remedy="Choose another name, or release that workspace.",
            fields={"name": name},
        )


class BranchInUse(AlreadyExists):
    """Another workspace of the project claims the branch, or it holds other commits."""

    def __init__(self, branch: str) -> None:
        super().__init__(
            f"The branch '{branch}' is in use; it stays as it is.",
            reason="branch_in_use",
            remedy="Choose another branch, or release the workspace that has it.",
            fields={"branch": branch},
        )


class QuotaExceeded(ResourceExhausted):
    """The tenant holds its share of the host."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"The tenant holds {limit} workspaces on this host, its whole share.",
            reason="quota",
            remedy="Release workspaces that are not needed any more, or try another host.",
            fields={"limit": str(limit)},
        )


class WorkspaceBusy(Unavailable):
    """Another process of the host works on the workspace and does not let go."""

    def __init__(self, workspace_id: str) -> None:
        super().__init__(
            "Another process of the host is at work on the workspace.",
            reason="workspace_busy",
            remedy="Try again in a moment.",
            fields={"workspace_id": workspace_id},
        )


class ForkFailed(FailedPrecondition):
    """The workspace cannot be copied as it was asked for."""

    def __init__(self, detail: str) -> None:
        super().__init__(
            f"The workspace cannot be forked: {detail}.",
            reason="fork_failed",
            remedy="Look at the workspace with `git status`, or fork it without a branch.",
        )


class WorkspaceDirty(FailedPrecondition):
    """Files differ from the HEAD of the workspace, or of its submodule at a path, and a checked
    release must not lose them.
    """

    def __init__(self, workspace_id: str, *, submodule: str = "") -> None:
        where = f" in its submodule '{submodule}'" if submodule else ""
        super().__init__(
            f"The workspace has changes{where} that are not committed.",
            reason="workspace_dirty",
            remedy="Commit and push them, or release it by force.",
            fields=_fields(workspace_id, submodule),
        )


class WorkspaceUnpushed(FailedPrecondition):
    """Commits are in the workspace, or its submodule at a path, alone, or it cannot be told whether
    they are.
    """

    def __init__(self, workspace_id: str, detail: str, *, submodule: str = "") -> None:
        where = f", in its submodule '{submodule}'" if submodule else ""
        super().__init__(
            f"The workspace may be the only place of some work{where}: {detail}.",
            reason="workspace_unpushed",
            remedy="Push its branches, or release it by force.",
            fields=_fields(workspace_id, submodule),
        )


def _fields(workspace_id: str, submodule: str) -> dict[str, str]:
    fields = {"workspace_id": workspace_id}
    return {**fields, "submodule": submodule} if submodule else fields
