"""Fairlead's Python SDK. What is listed here is public; it is imported when it is first used, so
that the command line starts fast.
"""

from __future__ import annotations

# `typing` takes longer to import than all that a launch by the agent needs.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from fairlead_sdk.blocking import Fairlead, Launch
    from fairlead_sdk.commands import CommandResult
    from fairlead_sdk.errors import (
        AlreadyExists,
        BranchInUse,
        CommandFailed,
        CursorGone,
        DeadlineExceeded,
        FailedPrecondition,
        FairleadError,
        HostLacksObjects,
        IdempotencyConflict,
        Internal,
        InvalidArgument,
        LaunchCancelled,
        LaunchFailed,
        LaunchNotFound,
        LaunchNotHeld,
        MeshUnavailable,
        NameInvalid,
        NotFound,
        OutOfRange,
        PermissionDenied,
        QuotaExceeded,
        RepositoryError,
        ResourceExhausted,
        StoreLocked,
        StreamLost,
        Unauthenticated,
        Unavailable,
        WorkspaceDirty,
        WorkspaceExists,
        WorkspaceNotFound,
        WorkspaceReleased,
        WorkspaceUnpushed,
    )
    from fairlead_sdk.events import LaunchEvent
    from fairlead_sdk.fairlead import AsyncFairlead, AsyncLaunch
    from fairlead_sdk.records import Exit, LaunchRecord, Span, Trace
    from fairlead_sdk.ssh_blocking import SshHost
    from fairlead_sdk.ssh_host import AsyncSshHost
    from fairlead_sdk.workspace_records import Freshness, WorkspaceRecord

__all__ = [
    "AlreadyExists",
    "AsyncFairlead",
    "AsyncLaunch",
    "AsyncSshHost",
    "BranchInUse",
    "CommandFailed",
    "CommandResult",
    "CursorGone",
    "DeadlineExceeded",
    "Exit",
    "FailedPrecondition",
    "Fairlead",
    "FairleadError",
    "Freshness",
    "HostLacksObjects",
    "IdempotencyConflict",
    "Internal",
    "InvalidArgument",
    "Launch",
    "LaunchCancelled",
    "LaunchEvent",
    "LaunchFailed",
    "LaunchNotFound",
    "LaunchNotHeld",
    "LaunchRecord",
    "MeshUnavailable",
    "NameInvalid",
    "NotFound",
    "OutOfRange",
    "PermissionDenied",
    "QuotaExceeded",
    "RepositoryError",
    "ResourceExhausted",
    "Span",
    "SshHost",
    "StoreLocked",
    "StreamLost",
    "Trace",
    "Unauthenticated",
    "Unavailable",
    "WorkspaceDirty",
    "WorkspaceExists",
    "WorkspaceNotFound",
    "WorkspaceRecord",
    "WorkspaceReleased",
    "WorkspaceUnpushed",
]

_MODULES = {
    "AsyncFairlead": "fairlead",
    "AsyncLaunch": "fairlead",
    "AsyncSshHost": "ssh_host",
    "CommandResult": "commands",
    "Exit": "records",
    "Fairlead": "blocking",
    "Freshness": "workspace_records",
    "Launch": "blocking",
    "LaunchEvent": "events",
    "LaunchRecord": "records",
    "Span": "records",
    "SshHost": "ssh_blocking",
    "Trace": "records",
    "WorkspaceRecord": "workspace_records",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'errors')}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
