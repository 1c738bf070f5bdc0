"""Problem documents (RFC 9457) over HTTP: the one place where an error becomes an answer."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Mapping
from http import HTTPStatus

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope

from chassis.errors import (
    FailedPrecondition,
    FairleadError,
    Internal,
    InvalidArgument,
    Kind,
    NotFound,
    ResourceExhausted,
)
from chassis.problem import problem_of, status_of
from chassis.telemetry import current_trace_id
from signalling.launch_json import time_json
from signalling.workspace_errors import WorkspaceMissed

log = logging.getLogger(__name__)

PROBLEM_TYPE = "application/problem+json"


class Problem(BaseModel):
    """What every error answers; some carry further members, which are the facts as texts."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(description="URN of the reason.")
    title: str = Field(description="Phrase of the HTTP status.")
    status: int = Field(description="HTTP status.")
    detail: str = Field(description="A sentence for a person.")
    reason: str = Field(description="Machine-readable reason, lower snake case; stable.")
    remedy: str = Field(description="What to do about it; may be empty.")
    trace_id: str = Field(description="Trace id of the request; empty where nothing is traced.")


class RouteNotFound(NotFound):
    """The path names nothing."""

    def __init__(self) -> None:
        super().__init__(
            "There is nothing at this path.",
            reason="route_not_found",
            remedy="GET /docs lists what there is.",
        )


class MethodNotAllowed(FailedPrecondition):
    """The path does not take this method."""

    def __init__(self) -> None:
        super().__init__(
            "This path does not take this method.",
            reason="method_not_allowed",
            remedy="The Allow header names the methods that it takes.",
        )


class MalformedJson(InvalidArgument):
    """The body is not JSON."""

    def __init__(self) -> None:
        super().__init__(
            "The body is not valid JSON.",
            reason="malformed_json",
            remedy="Send one JSON object in UTF-8.",
        )


class InvalidBody(InvalidArgument):
    """The body is JSON of another shape."""

    def __init__(self, field: str, fault: str) -> None:
        super().__init__(
            f"The body is not what this route takes: {field or 'body'}: {fault}.",
            reason="invalid_body",
            remedy="GET /docs shows the shape; send it with Content-Type: application/json.",
            fields={"field": field},
        )


class InvalidParameter(InvalidArgument):
    """A parameter of the query, path or header is wrong."""

    def __init__(self, name: str, fault: str) -> None:
        super().__init__(
            f"The parameter {name} is wrong: {fault}.",
            reason="invalid_parameter",
            remedy="GET /docs shows the parameters.",
            fields={"field": name},
        )


class BodyTooLarge(ResourceExhausted):
    """The body is larger than a request may be."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"The body is larger than {limit} bytes.",
            reason="body_too_large",
            remedy="Send less; objects of a repository go to POST /v1/snapshots.",
            fields={"limit_bytes": str(limit)},
        )


class BodyTooComplex(ResourceExhausted):
    """The body has more members and items than a request may have."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"The body has more than {limit} members and items.",
            reason="body_too_complex",
            remedy="Send fewer; long texts and bytes do not count.",
            fields={"limit": str(limit)},
        )


def problem_members(error: FairleadError) -> dict[str, object]:
    """Return the members of the problem document that describes an error."""
    members = problem_of(error, trace_id=current_trace_id())
    if isinstance(error, WorkspaceMissed):
        members |= {
            "wanted": error.missed.miss.wanted,
            "tips": error.missed.miss.tips,
            "upload_token": error.missed.upload_token,
            "expires_at": time_json(error.missed.expires_at),
        }
    return members


def problem_response(error: FairleadError, headers: Mapping[str, str] | None = None) -> Response:
    """Return the HTTP answer that describes an error."""
    every = dict(headers or {})
    match error.kind:
        case Kind.UNAUTHENTICATED:
            every["WWW-Authenticate"] = "Bearer"
        case Kind.UNAVAILABLE:
            every["Retry-After"] = "1"
    if error.retry_seconds is not None:
        every["Retry-After"] = str(max(1, math.ceil(error.retry_seconds)))
    return Response(
        json.dumps(problem_members(error), ensure_ascii=True),
        status_code=status_of(error),
        media_type=PROBLEM_TYPE,
        headers=every,
    )


def _allowed_methods(routes: Iterable[BaseRoute], scope: Scope) -> str:
    """Return the value of `Allow` for a path: the methods of all routes that it matches."""
    found: set[str] = set()
    for route in routes:
        if isinstance(route, Route) and route.matches(scope)[0] is not Match.NONE:
            found |= route.methods or set()
    return ", ".join(sorted(found))


async def on_fairlead_error(request: Request, error: Exception) -> Response:
    """Answer with an error of ours."""
    return problem_response(_expected(error))


async def on_http_error(request: Request, error: Exception) -> Response:
    """Answer what routing refuses."""
    if not isinstance(error, HTTPException):
        raise error
    match error.status_code:
        case 404:
            return problem_response(RouteNotFound())
        case 405:
            routes = request.app.router.routes
            allowed = _allowed_methods(routes, request.scope)
            return problem_response(MethodNotAllowed(), {"Allow": allowed})
        case 400:
            return problem_response(MalformedJson())
        case _:
            return internal_response(error)


async def on_invalid_request(request: Request, error: Exception) -> Response:
    """Answer what the declared types refuse."""
    if not isinstance(error, RequestValidationError):
        raise error
    first = error.errors()[0]
    where, *path = (str(part) for part in first["loc"]) if first["loc"] else ("body",)
    if first["type"] == "json_invalid":
        return problem_response(MalformedJson())
    name = ".".join(path)
    fault = str(first["msg"]).rstrip(".")
    return problem_response(
        InvalidBody(name, fault) if where == "body" else InvalidParameter(name, fault)
    )


def internal_error(error: Exception) -> Internal:
    """Log a fault of ours and return what may be said of it."""
    log.error("request failed", exc_info=error)
    return Internal(
        "Something went wrong here.",
        reason="internal",
        remedy="Report it with the trace id; the service's log has the cause.",
    )


def internal_response(error: Exception) -> Response:
    """Log a fault of ours and answer it without its internals."""
    return problem_response(internal_error(error))


def problem_documents(*statuses: int) -> dict[int | str, dict[str, object]]:
    """Return the OpenAPI responses of these statuses and of those that every route can have."""
    return {
        status: {
            "description": HTTPStatus(status).phrase,
            "content": {PROBLEM_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for status in sorted({400, 401, 429, 500, 503, 504, *statuses})
    }


def _expected(error: Exception) -> FairleadError:
    if not isinstance(error, FairleadError):
        raise error
    return error
