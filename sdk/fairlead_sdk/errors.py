"""The errors that a caller of the SDK meets: one class per kind, and a few by reason.

A problem document's `reason` picks the class first, its HTTP status otherwise (RFC 9457).
"""

from __future__ import annotations

from collections.abc import Mapping


class FairleadError(Exception):
    """A sentence for a person (`message`), a machine-readable `reason` and a `remedy` that may be
    empty.

    `trace_id` names the trace of the failed request and is empty for errors found on this side;
    `fields` are further facts, as text.
    """

    def __init__(
        self,
        message: str,
        *,
        reason: str,
        remedy: str = "",
        trace_id: str = "",
        fields: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.remedy = remedy
        self.trace_id = trace_id
        self.fields: dict[str, str] = dict(fields or {})


class InvalidArgument(FairleadError):
    """The request can never succeed as it stands."""


class NotFound(FairleadError):
    """The named thing does not exist, or is not yours."""


class AlreadyExists(FairleadError):
    """Something else already has that name or key."""


class FailedPrecondition(FairleadError):
    """The thing exists, but its state does not allow this."""


class PermissionDenied(FairleadError):
    """The key is known and may not do this."""


class Unauthenticated(FairleadError):
    """The key is missing or not known."""


class ResourceExhausted(FairleadError):
    """A limit, a quota or a size bound was met."""


class Unavailable(FairleadError):
    """A part of the mesh is away; the same call may succeed later."""


class DeadlineExceeded(FairleadError):
    """The time that was allowed has passed."""


class OutOfRange(FairleadError):
    """A cursor points before what is still kept."""


class Internal(FairleadError):
    """A fault of Fairlead's own."""


class MeshUnavailable(Unavailable):
    """No mesh was found, or the one that was found does not answer."""


class StreamLost(Unavailable):
    """A stream broke and could not be taken up again within the retries."""


class RepositoryError(InvalidArgument):
    """The repository on this machine cannot be launched as it stands."""


class LaunchFailed(FairleadError):
    """A launch ended in `failed`; `step` names the step, or is empty when it was none of them."""

    def __init__(
        self,
        message: str,
        *,
        reason: str,
        remedy: str = "",
        step: str = "",
        launch_id: str = "",
        trace_id: str = "",
    ) -> None:
        super().__init__(
            message,
            reason=reason,
            remedy=remedy,
            trace_id=trace_id,
            fields={"step": step, "launch_id": launch_id},
        )
        self.step = step
        self.launch_id = launch_id


class LaunchCancelled(FairleadError):
    """A launch ended in `cancelled`, by somebody's wish or with its lease."""


class LaunchNotFound(NotFound):
    """No launch of yours has that id (any more)."""


class LaunchNotHeld(FailedPrecondition):
    """The launch holds no workspace and no sandbox (any more)."""


class WorkspaceNotFound(NotFound):
    """No workspace of yours has that id (any more)."""


class WorkspaceExists(AlreadyExists):
    """Another workspace of the project has that name."""


class BranchInUse(AlreadyExists):
    """Another workspace of the project has claimed that branch."""


class NameInvalid(InvalidArgument):
    """The name is not one that a workspace can have."""


class WorkspaceDirty(FailedPrecondition):
    """The workspace has uncommitted changes, which would be lost."""


class WorkspaceUnpushed(FailedPrecondition):
    """The workspace has commits that are nowhere else, which would be lost."""


class WorkspaceReleased(FailedPrecondition):
    """The workspace of that idempotency key was given back."""


class QuotaExceeded(ResourceExhausted):
    """You hold as many workspaces as you may."""


class StoreLocked(Unavailable):
    """The host is repairing or cleaning what it has of the project; the same call may succeed
    later.
    """


class SandboxNotFound(NotFound):
    """No sandbox of yours has that id (any more)."""


class SandboxInUse(FailedPrecondition):
    """The sandbox belongs to a launch, whose lease and end are its own."""


class SandboxReleased(FailedPrecondition):
    """The sandbox of that idempotency key was given back."""


class IsolationUnavailable(FailedPrecondition):
    """No host, or not the one that was asked for, has that isolation."""


class IsolationTooWeak(PermissionDenied):
    """A weaker isolation was asked for than the profile allows."""


class HostReserved(PermissionDenied):
    """Without walls a host runs the programs of one tenant only, and that is another one."""


class NetworkExceeded(PermissionDenied):
    """More of the network was asked for than the profile allows."""


class NetworkUnavailable(FailedPrecondition):
    """A sandbox of that isolation cannot have that network there."""


class ProfileUnknown(InvalidArgument):
    """No host, or not the one that was asked for, has that profile."""


class LimitExceeded(InvalidArgument):
    """More was asked for than the profile allows."""


class HostLacksObjects(FailedPrecondition):
    """The host needs objects before it can make the workspace; `reason` says why.

    `wanted` are object ids, `tips` the newest commits that it has, `upload_token` is good for the
    upload that answers.
    """

    wanted: tuple[str, ...] = ()
    tips: tuple[str, ...] = ()

    @property
    def upload_token(self) -> str:
        """The token of the upload; empty when none was given."""
        return self.fields.get("upload_token", "")


class CursorGone(OutOfRange):
    """Events or output after that cursor are no longer kept."""


class IdempotencyConflict(AlreadyExists):
    """The idempotency key was used before with another request."""


class CommandFailed(FairleadError):
    """A command ended with another exit code than 0, and `check` was asked for."""


class TerminalOwned(FailedPrecondition):
    """Another client has the terminal, now or from now on."""


class NotATerminal(FailedPrecondition):
    """The execution runs on pipes."""


class FileMissing(NotFound):
    """The sandbox has no such file."""


class FileThere(AlreadyExists):
    """The file is there already."""


class FileChanged(FailedPrecondition):
    """The file has changed since its etag was read."""


class NoDirectory(FailedPrecondition):
    """The path, or a part of it, is no directory."""


class NoRegularFile(FailedPrecondition):
    """The path is a directory, a pipe, a socket or a device."""


class DirectoryNotEmpty(FailedPrecondition):
    """The directory is not empty."""


class PathRefused(InvalidArgument):
    """The path leaves the workspace, or is none that a file can have."""


class FileForbidden(PermissionDenied):
    """The sandbox's user may not do this with the file."""


class NoSpace(ResourceExhausted):
    """No space is left for the sandbox's files."""


class FileTooLarge(ResourceExhausted):
    """The file is larger than it may be."""


_BY_REASON: dict[str, type[FairleadError]] = {
    "base_locked": StoreLocked,
    "branch_in_use": BranchInUse,
    "cursor_gone": CursorGone,
    "directory_not_empty": DirectoryNotEmpty,
    "file_changed": FileChanged,
    "file_exists": FileThere,
    "file_not_found": FileMissing,
    "file_too_large": FileTooLarge,
    "host_reserved": HostReserved,
    "idempotency_conflict": IdempotencyConflict,
    "is_a_directory": NoRegularFile,
    "isolation_too_weak": IsolationTooWeak,
    "isolation_unavailable": IsolationUnavailable,
    "launch_not_found": LaunchNotFound,
    "launch_not_held": LaunchNotHeld,
    "limit_exceeded": LimitExceeded,
    "missing_objects": HostLacksObjects,
    "name_invalid": NameInvalid,
    "network_exceeded": NetworkExceeded,
    "network_unavailable": NetworkUnavailable,
    "no_base": HostLacksObjects,
    "no_space": NoSpace,
    "not_a_directory": NoDirectory,
    "not_a_file": NoRegularFile,
    "not_a_terminal": NotATerminal,
    "path_invalid": PathRefused,
    "path_outside": PathRefused,
    "permission_denied_inside": FileForbidden,
    "profile_unknown": ProfileUnknown,
    "quota": QuotaExceeded,
    "ref_drift": HostLacksObjects,
    "sandbox_in_use": SandboxInUse,
    "sandbox_not_found": SandboxNotFound,
    "sandbox_released": SandboxReleased,
    "snapshot_not_durable": HostLacksObjects,
    "terminal_owned": TerminalOwned,
    "unknown_changes": HostLacksObjects,
    "unknown_commit": HostLacksObjects,
    "workspace_dirty": WorkspaceDirty,
    "workspace_exists": WorkspaceExists,
    "workspace_not_found": WorkspaceNotFound,
    "workspace_released": WorkspaceReleased,
    "workspace_unpushed": WorkspaceUnpushed,
}

_BY_STATUS: dict[int, type[FairleadError]] = {
    400: InvalidArgument,
    401: Unauthenticated,
    403: PermissionDenied,
    404: NotFound,
    408: DeadlineExceeded,
    409: FailedPrecondition,
    410: OutOfRange,
    413: ResourceExhausted,
    415: InvalidArgument,
    416: OutOfRange,
    422: InvalidArgument,
    429: ResourceExhausted,
    502: Unavailable,
    503: Unavailable,
    504: DeadlineExceeded,
}

_OWN_FIELDS = {"type", "title", "status", "detail", "reason", "remedy", "trace_id", "instance"}


def class_of_reason(reason: str) -> type[FairleadError] | None:
    """Give the class that a reason has of its own."""
    return _BY_REASON.get(reason)


def error_from_problem(status: int, problem: Mapping[str, object]) -> FairleadError:
    """Make the error that a problem document describes; an empty mapping gives one from `status`
    alone.
    """

    def text(name: str) -> str:
        value = problem.get(name)
        return value if isinstance(value, str) else ""

    reason = text("reason")
    fallback = Internal if status >= 500 else InvalidArgument
    kind = _BY_REASON.get(reason) or _BY_STATUS.get(status, fallback)
    error = kind(
        text("detail") or text("title") or f"The front door answered with status {status}.",
        reason=reason or f"http_{status}",
        remedy=text("remedy"),
        trace_id=text("trace_id"),
        fields={
            name: value if isinstance(value, str) else str(value)
            for name, value in problem.items()
            if name not in _OWN_FIELDS and value is not None
        },
    )
    if isinstance(error, HostLacksObjects):
        error.wanted = _texts(problem.get("wanted"))
        error.tips = _texts(problem.get("tips"))
    return error


def _texts(value: object) -> tuple[str, ...]:
    return tuple(str(each) for each in value) if isinstance(value, list) else ()
