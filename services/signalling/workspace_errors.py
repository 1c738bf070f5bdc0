"""What can go wrong with a workspace here, as a caller sees it; what a host refuses keeps its own
reason.
"""

from __future__ import annotations

from chassis.errors import FailedPrecondition, InvalidArgument, NotFound, Unavailable
from signalling.snapshot import MissReason
from signalling.workspace import OpenMiss

_LACKS = {
    MissReason.NO_BASE: "The host has nothing of this project yet.",
    MissReason.UNKNOWN_COMMIT: "The host does not have this commit yet.",
    MissReason.UNKNOWN_CHANGES: "The host does not have the uncommitted changes yet.",
    MissReason.REF_DRIFT: "What the host pins of this project is not what it recorded.",
    MissReason.SNAPSHOT_NOT_DURABLE: "The host has not finished checking this snapshot.",
    MissReason.MISSING_OBJECTS: "The host lost objects of this project.",
}


class WorkspaceNotFound(NotFound):
    """The workspace is unknown, or another tenant's."""

    def __init__(self, workspace_id: str) -> None:
        super().__init__(
            "There is no such workspace.",
            reason="workspace_not_found",
            remedy="`fairlead workspace ls` lists those that there are.",
            fields={"workspace_id": workspace_id[:64]},
        )


class WorkspaceInUse(FailedPrecondition):
    """A launch that has not ended works in the workspace."""

    def __init__(self, workspace_id: str, launch_id: str) -> None:
        super().__init__(
            "A launch works in this workspace.",
            reason="workspace_in_use",
            remedy=f"End it first (`fairlead kill {launch_id}`), or use --force.",
            fields={"workspace_id": workspace_id[:64], "launch_id": launch_id},
        )


class WorkspaceMissed(FailedPrecondition):
    """The host lacks objects; the token takes the upload that answers it."""

    def __init__(self, missed: OpenMiss) -> None:
        reason = missed.miss.reason
        super().__init__(
            _LACKS.get(reason, "The host lacks objects."),
            reason=reason.value,
            remedy="Send what is lacking to POST /v1/snapshots?upload=TOKEN.",
        )
        self.missed = missed


class HostAway(Unavailable):
    """The host that holds the workspace or the sandbox is not registered now."""

    def __init__(self) -> None:
        super().__init__(
            "The host that holds it is not there now.",
            reason="host_away",
            remedy="Try again in a moment; `fairlead doctor` says what is missing.",
        )


class PageTokenInvalid(InvalidArgument):
    """The text is not a page token of workspaces, sandboxes or sessions."""

    def __init__(self) -> None:
        super().__init__(
            "The page token is not one that this list gave.",
            reason="page_token_invalid",
            remedy="Use the token of the page before, or none to start over.",
            fields={"field": "page_token"},
        )
