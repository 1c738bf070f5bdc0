"""Errors as problem documents (RFC 9457), for whatever answers in JSON."""

from __future__ import annotations

from http import HTTPStatus

from chassis.errors import FairleadError, Kind

_STATUS = {
    Kind.INVALID_ARGUMENT: 400,
    Kind.UNAUTHENTICATED: 401,
    Kind.PERMISSION_DENIED: 403,
    Kind.NOT_FOUND: 404,
    Kind.ALREADY_EXISTS: 409,
    Kind.FAILED_PRECONDITION: 409,
    Kind.OUT_OF_RANGE: 410,
    Kind.RESOURCE_EXHAUSTED: 429,
    Kind.INTERNAL: 500,
    Kind.UNAVAILABLE: 503,
    Kind.DEADLINE_EXCEEDED: 504,
}
_STATUS_BY_REASON = {
    "body_too_large": 413,
    "body_too_complex": 413,
    "file_changed": 412,
    "file_too_large": 413,
    "method_not_allowed": 405,
    "no_space": 507,
    "range_unsatisfiable": 416,
}
_OWN_MEMBERS = frozenset({"type", "title", "status", "detail", "reason", "remedy", "trace_id"})


def problem_of(error: FairleadError, *, trace_id: str = "") -> dict[str, object]:
    """Return the members of the problem document that describes an error."""
    status = status_of(error)
    return {
        "type": f"urn:fairlead:problem:{error.reason}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": error.message,
        "reason": error.reason,
        "remedy": error.remedy,
        "trace_id": trace_id,
    } | {name: value for name, value in error.fields.items() if name not in _OWN_MEMBERS}


def status_of(error: FairleadError) -> int:
    """Return the HTTP status of an error."""
    return _STATUS_BY_REASON.get(error.reason, _STATUS[error.kind])
