"""Fairlead's Python SDK. What is listed here is public; it is imported when it is first used, so
that the command line starts fast.
"""

from __future__ import annotations

# `typing` takes longer to import than all that a launch by the agent needs.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from fairlead_sdk.batch import (
        BatchOutcome,
        MakeDirectory,
        MoveFile,
        ReadFile,
        RemoveFile,
        WriteFile,
    )
    from fairlead_sdk.blocking import Fairlead, Launch
    from fairlead_sdk.blocking_commands import RunningCommand
    from fairlead_sdk.blocking_sandboxes import Sandbox
    from fairlead_sdk.blocking_sessions import Session
    from fairlead_sdk.blocking_terminals import PtyTerminal
    from fairlead_sdk.commands import AsyncRunningCommand, CommandResult
    from fairlead_sdk.errors import (
        AlreadyExists,
        BranchInUse,
        CommandFailed,
        CursorGone,
        DeadlineExceeded,
        DirectoryNotEmpty,
        FailedPrecondition,
        FairleadError,
        FileChanged,
        FileForbidden,
        FileMissing,
        FileThere,
        FileTooLarge,
        HostLacksObjects,
        HostReserved,
        IdempotencyConflict,
        Internal,
        InvalidArgument,
        IsolationTooWeak,
        IsolationUnavailable,
        LaunchCancelled,
        LaunchFailed,
        LaunchNotFound,
        LaunchNotHeld,
        LimitExceeded,
        MeshUnavailable,
        NameInvalid,
        NetworkExceeded,
        NetworkUnavailable,
        NoDirectory,
        NoRegularFile,
        NoSpace,
        NotATerminal,
        NotFound,
        OutOfRange,
        PathRefused,
        PermissionDenied,
        ProfileUnknown,
        QuotaExceeded,
        RepositoryError,
        ResourceExhausted,
        SandboxInUse,
        SandboxNotFound,
        SandboxReleased,
        StoreLocked,
        StreamLost,
        TerminalOwned,
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
    from fairlead_sdk.file_records import FileEvent, FileRecord, TreeCopied
    from fairlead_sdk.network_records import NetworkDecision, NetworkRecord
    from fairlead_sdk.peer_session import AsyncSession
    from fairlead_sdk.records import Exit, LaunchRecord, OutputGap, Span, Trace
    from fairlead_sdk.sandbox_records import SandboxRecord, Wall
    from fairlead_sdk.sandboxes import AsyncSandbox
    from fairlead_sdk.session_records import (
        OpenedSession,
        SessionClosed,
        SessionRecord,
        SessionTunnel,
    )
    from fairlead_sdk.ssh_blocking import SshHost
    from fairlead_sdk.ssh_host import AsyncSshHost
    from fairlead_sdk.terminals import AsyncTerminal
    from fairlead_sdk.workspace_records import Freshness, WorkspaceRecord

__all__ = [
    "AlreadyExists",
    "AsyncFairlead",
    "AsyncLaunch",
    "AsyncRunningCommand",
    "AsyncSandbox",
    "AsyncSession",
    "AsyncSshHost",
    "AsyncTerminal",
    "BatchOutcome",
    "BranchInUse",
    "CommandFailed",
    "CommandResult",
    "CursorGone",
    "DeadlineExceeded",
    "DirectoryNotEmpty",
    "Exit",
    "FailedPrecondition",
    "Fairlead",
    "FairleadError",
    "FileChanged",
    "FileEvent",
    "FileForbidden",
    "FileMissing",
    "FileRecord",
    "FileThere",
    "FileTooLarge",
    "Freshness",
    "HostLacksObjects",
    "HostReserved",
    "IdempotencyConflict",
    "Internal",
    "InvalidArgument",
    "IsolationTooWeak",
    "IsolationUnavailable",
    "Launch",
    "LaunchCancelled",
    "LaunchEvent",
    "LaunchFailed",
    "LaunchNotFound",
    "LaunchNotHeld",
    "LaunchRecord",
    "LimitExceeded",
    "MakeDirectory",
    "MeshUnavailable",
    "MoveFile",
    "NameInvalid",
    "NetworkDecision",
    "NetworkExceeded",
    "NetworkRecord",
    "NetworkUnavailable",
    "NoDirectory",
    "NoRegularFile",
    "NoSpace",
    "NotATerminal",
    "NotFound",
    "OpenedSession",
    "OutOfRange",
    "OutputGap",
    "PathRefused",
    "PermissionDenied",
    "ProfileUnknown",
    "PtyTerminal",
    "QuotaExceeded",
    "ReadFile",
    "RemoveFile",
    "RepositoryError",
    "ResourceExhausted",
    "RunningCommand",
    "Sandbox",
    "SandboxInUse",
    "SandboxNotFound",
    "SandboxRecord",
    "SandboxReleased",
    "Session",
    "SessionClosed",
    "SessionRecord",
    "SessionTunnel",
    "Span",
    "SshHost",
    "StoreLocked",
    "StreamLost",
    "TerminalOwned",
    "Trace",
    "TreeCopied",
    "Unauthenticated",
    "Unavailable",
    "Wall",
    "WorkspaceDirty",
    "WorkspaceExists",
    "WorkspaceNotFound",
    "WorkspaceRecord",
    "WorkspaceReleased",
    "WorkspaceUnpushed",
    "WriteFile",
]

_MODULES = {
    "AsyncFairlead": "fairlead",
    "AsyncLaunch": "fairlead",
    "AsyncRunningCommand": "commands",
    "AsyncSandbox": "sandboxes",
    "AsyncSession": "peer_session",
    "AsyncSshHost": "ssh_host",
    "AsyncTerminal": "terminals",
    "BatchOutcome": "batch",
    "CommandResult": "commands",
    "Exit": "records",
    "Fairlead": "blocking",
    "FileEvent": "file_records",
    "FileRecord": "file_records",
    "Freshness": "workspace_records",
    "Launch": "blocking",
    "LaunchEvent": "events",
    "LaunchRecord": "records",
    "MakeDirectory": "batch",
    "MoveFile": "batch",
    "NetworkDecision": "network_records",
    "NetworkRecord": "network_records",
    "OpenedSession": "session_records",
    "OutputGap": "records",
    "PtyTerminal": "blocking_terminals",
    "ReadFile": "batch",
    "RemoveFile": "batch",
    "RunningCommand": "blocking_commands",
    "Sandbox": "blocking_sandboxes",
    "SandboxRecord": "sandbox_records",
    "Session": "blocking_sessions",
    "SessionClosed": "session_records",
    "SessionRecord": "session_records",
    "SessionTunnel": "session_records",
    "Span": "records",
    "SshHost": "ssh_blocking",
    "Trace": "records",
    "TreeCopied": "file_records",
    "Wall": "sandbox_records",
    "WorkspaceRecord": "workspace_records",
    "WriteFile": "batch",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'errors')}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
