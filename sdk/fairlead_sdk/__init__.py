"""Fairlead's Python SDK. What is listed here is public; it is imported when it is first used, so
that the command line starts fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairlead_sdk.blocking import Fairlead, Launch
    from fairlead_sdk.commands import CommandResult
    from fairlead_sdk.errors import (
        AlreadyExists,
        CommandFailed,
        CursorGone,
        DeadlineExceeded,
        FailedPrecondition,
        FairleadError,
        IdempotencyConflict,
        Internal,
        InvalidArgument,
        LaunchCancelled,
        LaunchFailed,
        LaunchNotFound,
        LaunchNotHeld,
        MeshUnavailable,
        NotFound,
        OutOfRange,
        PermissionDenied,
        RepositoryError,
        ResourceExhausted,
        StreamLost,
        Unauthenticated,
        Unavailable,
    )
    from fairlead_sdk.events import LaunchEvent
    from fairlead_sdk.fairlead import AsyncFairlead, AsyncLaunch
    from fairlead_sdk.records import Exit, LaunchRecord, Span, Trace

__all__ = [
    "AlreadyExists",
    "AsyncFairlead",
    "AsyncLaunch",
    "CommandFailed",
    "CommandResult",
    "CursorGone",
    "DeadlineExceeded",
    "Exit",
    "FailedPrecondition",
    "Fairlead",
    "FairleadError",
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
    "NotFound",
    "OutOfRange",
    "PermissionDenied",
    "RepositoryError",
    "ResourceExhausted",
    "Span",
    "StreamLost",
    "Trace",
    "Unauthenticated",
    "Unavailable",
]

_MODULES = {
    "AsyncFairlead": "fairlead",
    "AsyncLaunch": "fairlead",
    "CommandResult": "commands",
    "Exit": "records",
    "Fairlead": "blocking",
    "Launch": "blocking",
    "LaunchEvent": "events",
    "LaunchRecord": "records",
    "Span": "records",
    "Trace": "records",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'errors')}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
