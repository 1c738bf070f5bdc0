"""The errors of sandboxes and of the host; each is one sentence, one reason and a remedy."""

from __future__ import annotations

from collections.abc import Sequence

from chassis.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unavailable,
)


class ArgumentInvalid(InvalidArgument):
    """A field that the call needs is empty or out of its bounds."""

    def __init__(self, field: str, rule: str) -> None:
        super().__init__(
            f"The field {field} {rule}.",
            reason="argument_invalid",
            remedy="Correct the field and call again.",
            fields={"field": field},
        )


class SandboxNotFound(NotFound):
    """No such sandbox is held here for this tenant."""

    def __init__(self, sandbox_id: str) -> None:
        super().__init__(
            "There is no such sandbox on this host.",
            reason="sandbox_not_found",
            remedy="List the sandboxes; it may have been released or its lease may have ended.",
            fields={"sandbox_id": short(sandbox_id)},
        )


class SandboxReleased(FailedPrecondition):
    """The idempotency key belongs to a sandbox that was given back."""

    def __init__(self, sandbox_id: str) -> None:
        super().__init__(
            "The sandbox was released.",
            reason="sandbox_released",
            remedy="Create another one with another idempotency key.",
            fields={"sandbox_id": sandbox_id},
        )


class SandboxBound(FailedPrecondition):
    """The sandbox has another workspace already."""

    def __init__(self, sandbox_id: str) -> None:
        super().__init__(
            "The sandbox is bound to another workspace.",
            reason="sandbox_bound",
            remedy="Create another sandbox for the other workspace.",
            fields={"sandbox_id": sandbox_id},
        )


class SandboxLost(Unavailable):
    """The sandbox's processes were killed from outside."""

    def __init__(self, sandbox_id: str) -> None:
        super().__init__(
            "The sandbox was lost.",
            reason="sandbox_lost",
            remedy="Create another one.",
            fields={"sandbox_id": sandbox_id},
        )


class WorkspaceNotFound(NotFound):
    """No such workspace is on this host."""

    def __init__(self, workspace_id: str) -> None:
        super().__init__(
            "There is no such workspace on this host.",
            reason="workspace_not_found",
            remedy="Materialize it on the host that holds the sandbox.",
            fields={"workspace_id": short(workspace_id)},
        )


class WorkspaceNotMounted(FailedPrecondition):
    """The layers of a workspace cannot be mounted in the sandbox."""

    def __init__(self, cause: str) -> None:
        super().__init__(
            f"The workspace cannot be mounted in the sandbox: {cause}.",
            reason="workspace_not_mounted",
            remedy="Materialize it without an overlay, or let the worker mount (see its README).",
        )


class IsolationUnknown(InvalidArgument):
    """No isolation has this name."""

    def __init__(self, isolation: str, known: Sequence[str]) -> None:
        super().__init__(
            f"There is no isolation {short(isolation)!r}.",
            reason="isolation_unknown",
            remedy=f"Ask for one of {', '.join(known)}, or for none to get the host's best.",
            fields={"isolation": short(isolation)},
        )


class IsolationUnavailable(FailedPrecondition):
    """This host does not offer the isolation."""

    def __init__(self, isolation: str, available: Sequence[str]) -> None:
        super().__init__(
            f"This host does not offer the isolation {isolation}; it offers "
            f"{', '.join(available)}.",
            reason="isolation_unavailable",
            remedy="Ask for one that it offers, or add a host that offers this one.",
            fields={"isolation": isolation, "available": ",".join(available)},
        )


class IsolationFailed(Unavailable):
    """The host could not make a sandbox just now."""

    def __init__(self, cause: str) -> None:
        super().__init__(
            f"The host could not make the sandbox: {cause}.",
            reason="isolation_failed",
            remedy="Try again; if it stays so, look at the host's memory and process limits.",
        )


class HostFull(ResourceExhausted):
    """The host holds as many sandboxes as it may."""

    def __init__(self, most: int) -> None:
        super().__init__(
            f"The host holds {most} sandboxes, which is its limit.",
            reason="host_full",
            remedy="Release some, try another host, or raise FAIRLEAD_SANDBOX_MOST_SANDBOXES.",
            fields={"limit": str(most)},
        )


class WorkerDraining(Unavailable):
    """The worker is about to stop and takes nothing more."""

    def __init__(self) -> None:
        super().__init__(
            "The worker is stopping.",
            reason="worker_draining",
            remedy="Try again in a few seconds, or on another host.",
        )


class TokensExhausted(ResourceExhausted):
    """Too many port tokens are out."""

    def __init__(self, most: int) -> None:
        super().__init__(
            f"{most} port tokens are out, which is the host's limit.",
            reason="tokens_exhausted",
            remedy="Use tokens at once; each one ends after 30 s.",
            fields={"limit": str(most)},
        )


class StorageUnavailable(Unavailable):
    """The host's disk does not take a record."""

    def __init__(self) -> None:
        super().__init__(
            "The host's storage does not take a record.",
            reason="storage_unavailable",
            remedy="Free space on the host's volume, then try again.",
        )


class SecretRequired(FailedPrecondition):
    """The room would serve over TCP, and nothing protects it."""

    def __init__(self) -> None:
        super().__init__(
            "FAIRLEAD_SANDBOX_BIND is a TCP address, and there is no stack secret.",
            reason="secret_required",
            remedy="Set FAIRLEAD_SECRET_FILE, or serve on a unix socket.",
        )


class HostBusy(FailedPrecondition):
    """Another worker serves this host's root."""

    def __init__(self) -> None:
        super().__init__(
            "Another sandbox worker serves this host's root.",
            reason="host_busy",
            remedy="Stop the other one, or set another FAIRLEAD_HOST_ROOT.",
        )


def short(text: str) -> str:
    """Cut a caller's text for a message."""
    return text if len(text) <= 200 else text[:199] + "…"
