"""What can go wrong with a launch, as a caller sees it."""

from __future__ import annotations

from chassis.errors import (
    AlreadyExists,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    OutOfRange,
    PermissionDenied,
    Unavailable,
)


class LaunchNotFound(NotFound):
    """The launch is unknown, or another tenant's."""

    def __init__(self, launch_id: str) -> None:
        super().__init__(
            "There is no such launch.",
            reason="launch_not_found",
            remedy="`fairlead ps` lists the launches that are known.",
            fields={"launch_id": launch_id[:64]},
        )


class IdempotencyConflict(AlreadyExists):
    """The key belongs to a launch with another request."""

    def __init__(self, launch_id: str) -> None:
        super().__init__(
            "The idempotency key was used for a different launch.",
            reason="idempotency_conflict",
            remedy="Use a new key for a new request.",
            fields={"launch_id": launch_id},
        )


class LaunchNotHeld(FailedPrecondition):
    """The launch holds no workspace and sandbox (any more)."""

    def __init__(self, launch_id: str) -> None:
        super().__init__(
            "The launch holds no workspace and sandbox.",
            reason="launch_not_held",
            remedy="Launch again, with `keep` to hold what the command leaves.",
            fields={"launch_id": launch_id},
        )


class LaunchElsewhere(Unavailable):
    """Another replica of signalling runs the launch."""

    def __init__(self, launch_id: str) -> None:
        super().__init__(
            "Another replica of the front door runs this launch.",
            reason="launch_elsewhere",
            remedy="Where there are several replicas, route a launch to the one that started it.",
            fields={"launch_id": launch_id},
        )


class Draining(Unavailable):
    """This replica takes no new launches."""

    def __init__(self) -> None:
        super().__init__(
            "The front door is about to stop and takes no new launches.",
            reason="draining",
            remedy="Try again in a moment.",
        )


class NoHost(Unavailable):
    """No host can take the launch now."""

    def __init__(self, *, full: bool) -> None:
        super().__init__(
            "Every host is full." if full else "No host is registered.",
            reason="no_host",
            remedy="Wait for a launch to end, or add a host."
            if full
            else "Start a workspace-provisioner and a sandbox-worker on one host; "
            "`fairlead doctor` says what is missing.",
        )


class IsolationUnavailable(FailedPrecondition):
    """No host has the isolation that was asked for."""

    def __init__(self, isolation: str, offered: tuple[str, ...]) -> None:
        remedy = "Leave the isolation out for the host's best, or use one of: "
        remedy += ", ".join(offered) + "."
        if isolation == "process":
            remedy += (
                " SECURITY.md says how the operator offers sandboxes without walls, and why not."
            )
        super().__init__(
            "No host has that isolation.",
            reason="isolation_unavailable",
            remedy=remedy,
            fields={"isolation": isolation},
        )


class HostsReserved(PermissionDenied):
    """No host can raise walls, and those without serve other tenants."""

    def __init__(self) -> None:
        super().__init__(
            "No host can wall sandboxes, and without walls a host serves one tenant only: another"
            " one.",
            reason="host_reserved",
            remedy="Let a host raise walls (`fairlead doctor` says what is missing), or add one.",
        )


class CursorInvalid(InvalidArgument):
    """The text is not a cursor of this launch."""

    def __init__(self) -> None:
        super().__init__(
            "The cursor does not belong to this launch.",
            reason="cursor_invalid",
            remedy="Use the cursor of an event of this launch, or none to start over.",
        )


class CursorGone(OutOfRange):
    """What came after the cursor is no longer kept."""

    def __init__(self) -> None:
        super().__init__(
            "The events or the output after the cursor are no longer kept.",
            reason="cursor_gone",
            remedy="Watch without a cursor for what is still kept.",
        )


class UploadTokenInvalid(NotFound):
    """The upload token is unknown, used or expired."""

    def __init__(self) -> None:
        super().__init__(
            "The upload token is unknown, used or expired.",
            reason="upload_token_invalid",
            remedy="Launch again; a miss gives a new token.",
        )


class UploadUnderWay(FailedPrecondition):
    """Somebody uploads with this token right now."""

    def __init__(self) -> None:
        super().__init__(
            "An upload with this token is under way.",
            reason="upload_under_way",
            remedy="Wait for it; when it fails the token is good again.",
        )


class UploadTimeout(DeadlineExceeded):
    """Nobody uploaded what the host lacks."""

    def __init__(self) -> None:
        super().__init__(
            "The objects that the host lacks were not uploaded in time.",
            reason="upload_timeout",
            remedy="Launch again and upload when the miss is announced.",
        )


class SnapshotIncomplete(FailedPrecondition):
    """The host lacks objects even after an upload."""

    def __init__(self) -> None:
        super().__init__(
            "The host still lacks objects after the upload.",
            reason="snapshot_incomplete",
            remedy="Check the local repository with `git fsck`, then launch again.",
        )


class StepTimeout(DeadlineExceeded):
    """A step took longer than is allowed."""

    def __init__(self, step: str) -> None:
        super().__init__(
            f"The {step} step took too long.",
            reason="step_timeout",
            remedy="Try again; look at the launch's trace to see what was slow.",
        )


def _way_back(workspace_id: str) -> str:
    return f"Its workspace is kept: fairlead launch --workspace {workspace_id} -- COMMAND"


class HostLost(Unavailable):
    """The host went away while the launch ran on it; `workspace_id` is what is kept there."""

    def __init__(self, workspace_id: str = "") -> None:
        super().__init__(
            "The host went away while the command ran.",
            reason="host_lost",
            remedy=_way_back(workspace_id)
            if workspace_id
            else "Launch again; another host takes it.",
        )


class TraceStoreAbsent(FailedPrecondition):
    """The stack runs without a span store that signalling can read."""

    def __init__(self) -> None:
        super().__init__(
            "This stack has no span store to read traces from.",
            reason="trace_store_absent",
            remedy="Look the trace id up where OTEL_EXPORTER_OTLP_ENDPOINT sends spans.",
        )


class TraceStoreUnavailable(Unavailable):
    """The span store does not answer."""

    def __init__(self) -> None:
        super().__init__(
            "The span store does not answer.",
            reason="trace_store_unavailable",
            remedy="Try again; `fairlead doctor` says which part of the stack is down.",
        )


class SandboxNotFound(NotFound):
    """The sandbox is unknown, or another tenant's."""

    def __init__(self, sandbox_id: str) -> None:
        super().__init__(
            "There is no such sandbox.",
            reason="sandbox_not_found",
            remedy="`fairlead sandbox ls` lists them; it was released, or its lease has ended.",
            fields={"sandbox_id": sandbox_id[:64]},
        )


class SandboxLost(NotFound):
    """The sandbox of a launch ended with its worker; the launch holds its workspace still."""

    def __init__(self, sandbox_id: str, workspace_id: str) -> None:
        super().__init__(
            "The launch's sandbox is gone: its worker was restarted.",
            reason="sandbox_not_found",
            remedy=_way_back(workspace_id),
            fields={"sandbox_id": sandbox_id[:64], "workspace_id": workspace_id},
        )


class ExecutionNotFound(NotFound):
    """The execution is unknown, or another tenant's."""

    def __init__(self, execution_id: str) -> None:
        super().__init__(
            "There is no such execution.",
            reason="execution_not_found",
            remedy="Start it again; an execution is forgotten an hour after its end.",
            fields={"execution_id": execution_id[:64]},
        )
