"""The errors that this room raises, each with its reason, a sentence and a remedy."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from chassis.errors import (
    AlreadyExists,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unavailable,
)

log = logging.getLogger(__name__)


class FieldInvalid(InvalidArgument):
    """A field of a request is not of its form; the reason is `<field>_invalid`."""

    def __init__(self, field: str, rule: str, *, remedy: str) -> None:
        super().__init__(
            f"The {field.replace('_', ' ')} {rule}.",
            reason=f"{field}_invalid",
            remedy=remedy,
            fields={"field": field},
        )


class PackInvalid(InvalidArgument):
    """Git refuses the pack."""

    def __init__(self, detail: str) -> None:
        super().__init__(
            f"Git refuses the pack: {detail.rstrip('.')}.",
            reason="pack_invalid",
            remedy="Check the repository with `git fsck`, then upload again.",
        )


class PackTooLarge(ResourceExhausted):
    """The pack, or what would be made of it, has more of something than this host accepts."""

    def __init__(
        self,
        *,
        limit: int,
        what: str = "bytes",
        setting: str = "FAIRLEAD_WORKSPACE_MAX_PACK_BYTES",
    ) -> None:
        raised = f", or raise {setting} on the host" if setting else ""
        super().__init__(
            f"The pack has more than {limit} {what}, the most that this host accepts.",
            reason="pack_too_large",
            remedy=f"Send less{raised}.",
            fields={"limit": str(limit), "exceeded": what},
        )


class SnapshotIncomplete(FailedPrecondition):
    """Objects that the upload was to make whole are lacking: `is_lost_here` when this host has lost
    them, else the client does not have them itself.
    """

    is_lost_here = False

    def __init__(self, detail: str) -> None:
        super().__init__(
            f"The upload does not make its commits whole: {detail}",
            reason="snapshot_incomplete",
            remedy="Upload again all that the tips reach; unshallow a shallow clone first.",
        )


class UploadIdle(FailedPrecondition):
    """The next bytes of an upload did not come in time."""

    def __init__(self, *, seconds: float) -> None:
        super().__init__(
            f"No bytes of the upload came for {seconds:g} seconds.",
            reason="upload_idle",
            remedy="Check the connection and upload again.",
        )


class UploadSlow(FailedPrecondition):
    """The bytes of an upload come, but too few of them."""

    def __init__(self, *, bytes_per_second: int) -> None:
        super().__init__(
            f"The upload is slower than {bytes_per_second} bytes a second.",
            reason="upload_slow",
            remedy="Check the connection and upload again.",
            fields={"bytes_per_second": str(bytes_per_second)},
        )


class WorkspaceNotFound(NotFound):
    """There is no such workspace, or it is another tenant's."""

    def __init__(self, workspace_id: str) -> None:
        super().__init__(
            "There is no such workspace on this host.",
            reason="workspace_not_found",
            remedy="Launch again: a workspace is given back when its lease ends.",
            fields={"workspace_id": workspace_id},
        )


class WorkspaceReleased(FailedPrecondition):
    """The key's workspace was given back, and stays so."""

    def __init__(self, workspace_id: str) -> None:
        super().__init__(
            "The workspace of this idempotency key was released.",
            reason="workspace_released",
            remedy="Use a new idempotency key.",
            fields={"workspace_id": workspace_id},
        )


class IdempotencyConflict(AlreadyExists):
    """The key was used for another source or branch."""

    def __init__(self, workspace_id: str) -> None:
        super().__init__(
            "The idempotency key already made a workspace of another source or branch.",
            reason="idempotency_conflict",
            remedy="Use a new idempotency key for a new workspace.",
            fields={"workspace_id": workspace_id},
        )


class HostFull(ResourceExhausted):
    """The host holds as many workspaces as it may, or its disk is full."""

    def __init__(self, detail: str) -> None:
        super().__init__(
            f"The host takes no more workspaces: {detail}.",
            reason="host_full",
            remedy="Release workspaces that are not needed any more, or try another host.",
        )


class HostRootInUse(Unavailable):
    """The host root belongs to another user, whose provisioner could not read what this one
    writes.
    """

    def __init__(self) -> None:
        super().__init__(
            "The host root belongs to another user.",
            reason="host_root_in_use",
            remedy="Set FAIRLEAD_HOST_ROOT to a directory of this user.",
        )


class SecretRequired(FailedPrecondition):
    """The room would serve over TCP, and nothing protects it."""

    def __init__(self) -> None:
        super().__init__(
            "FAIRLEAD_WORKSPACE_BIND is a TCP address, and there is no stack secret.",
            reason="secret_required",
            remedy="Set FAIRLEAD_SECRET_FILE, or serve on a unix socket.",
        )


class GitNotFound(FailedPrecondition):
    """There is no git program."""

    def __init__(self) -> None:
        super().__init__(
            "The workspace-provisioner does not find git.",
            reason="git_not_found",
            remedy="Install git 2.39 or later on the host.",
        )


class ProvisionerStopping(Unavailable):
    """The provisioner takes no more work."""

    def __init__(self) -> None:
        super().__init__(
            "The workspace-provisioner is stopping.",
            reason="workspace_provisioner_stopping",
            remedy="Try again in a moment.",
        )


class StorageUnavailable(Unavailable):
    """The host's disk does not take or give what a workspace needs."""

    def __init__(self) -> None:
        super().__init__(
            "The host's storage does not take a workspace.",
            reason="storage_unavailable",
            remedy="Look at the host's volume: is it full, read-only or damaged? Then try again.",
        )


class CheckoutFailed(Internal):
    """Git could not write the files, and not for want of objects."""

    def __init__(self, step: str) -> None:
        super().__init__(
            f"The workspace could not be made: {step} failed.",
            reason="checkout_failed",
            remedy="Look for the cause in the log of the workspace-provisioner.",
        )


@contextmanager
def storage_errors() -> Iterator[None]:
    """Raise StorageUnavailable for what the operating system says of the host's files."""
    try:
        yield
    except TimeoutError:  # which is an OSError too
        raise
    except OSError as error:
        log.error("storage failed", extra={"cause": str(error)})
        raise StorageUnavailable from error
