"""The error kinds that every room speaks, and the one class they share.

A concrete error is a small class in the room that raises it. The API layers never build a status by
hand: `chassis.rpc_errors` and `signalling.problems` map `kind` and `reason` once each.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar


class Kind(StrEnum):
    """What a caller can do about an error; a subset of the gRPC status codes, by the same names."""

    INVALID_ARGUMENT = "invalid_argument"
    NOT_FOUND = "not_found"
    ALREADY_EXISTS = "already_exists"
    FAILED_PRECONDITION = "failed_precondition"
    PERMISSION_DENIED = "permission_denied"
    UNAUTHENTICATED = "unauthenticated"
    RESOURCE_EXHAUSTED = "resource_exhausted"
    UNAVAILABLE = "unavailable"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    OUT_OF_RANGE = "out_of_range"
    INTERNAL = "internal"


class FairleadError(Exception):
    """An error that reaches a user: a sentence, a machine-readable reason and a remedy.

    `reason` is lower snake case and stable; `remedy` is a sentence that says what to do, or empty;
    `fields` are the facts as short strings. None of the three ever holds a secret, a path of the
    host or file contents.
    """

    kind: ClassVar[Kind] = Kind.INTERNAL
    retry_seconds: float | None = None
    """After how long the same call may succeed, where that is known."""

    def __init__(
        self,
        message: str,
        *,
        reason: str,
        remedy: str = "",
        fields: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.remedy = remedy
        self.fields: dict[str, str] = dict(fields or {})


class InvalidArgument(FairleadError):
    """The request can never succeed as it stands."""

    kind = Kind.INVALID_ARGUMENT


class NotFound(FairleadError):
    """The named thing does not exist, or is not the caller's."""

    kind = Kind.NOT_FOUND


class AlreadyExists(FairleadError):
    """Something else already has that name or key."""

    kind = Kind.ALREADY_EXISTS


class FailedPrecondition(FairleadError):
    """The thing exists, but its state does not allow this."""

    kind = Kind.FAILED_PRECONDITION


class PermissionDenied(FairleadError):
    """The caller is known and may not do this."""

    kind = Kind.PERMISSION_DENIED


class Unauthenticated(FairleadError):
    """The caller is not known."""

    kind = Kind.UNAUTHENTICATED


class ResourceExhausted(FairleadError):
    """A limit, a quota or a size bound was met."""

    kind = Kind.RESOURCE_EXHAUSTED


class Unavailable(FairleadError):
    """A neighbour or a store is away; the same call may succeed later."""

    kind = Kind.UNAVAILABLE


class DeadlineExceeded(FairleadError):
    """The time that the caller or a setting allowed has passed."""

    kind = Kind.DEADLINE_EXCEEDED


class OutOfRange(FairleadError):
    """A cursor points before what is still kept (HTTP 410)."""

    kind = Kind.OUT_OF_RANGE


class Internal(FairleadError):
    """A fault of ours."""

    kind = Kind.INTERNAL


BY_KIND: dict[Kind, type[FairleadError]] = {
    cls.kind: cls
    for cls in (
        InvalidArgument,
        NotFound,
        AlreadyExists,
        FailedPrecondition,
        PermissionDenied,
        Unauthenticated,
        ResourceExhausted,
        Unavailable,
        DeadlineExceeded,
        OutOfRange,
        Internal,
    )
}
