"""Routes of launches: JSON in, launcher, JSON or a stream of events out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from signalling.caller import current_tenant
from signalling.event_stream import EventStreams, Rendered, wants_stream
from signalling.launch import Launch, LaunchEvent
from signalling.launch_json import event_json
from signalling.launch_request import LaunchRequest
from signalling.ports import Span
from signalling.problems import problem_documents
from signalling.rest_bodies import LaunchAnswer, LaunchBody
from signalling.rest_parameters import (
    Cursor,
    IdempotencyKey,
    IdempotencyKeysDiffer,
    LastEventId,
    PageSize,
    PageToken,
    stream_documents,
)
from signalling.rest_types import Answer, Body, LeaseSeconds

_EVENTS = "Events of the launch, the last one terminal."


class Launches(Protocol):
    """Launches from the caller's side."""

    async def start(self, tenant: str, request: LaunchRequest, key: str | None) -> Launch:
        """Accept a launch, or return the one that the key made."""
        ...

    def watch(self, tenant: str, launch_id: str, cursor: str | None) -> AsyncIterator[LaunchEvent]:
        """Return the events after a cursor."""
        ...

    async def get(self, tenant: str, launch_id: str) -> Launch:
        """Return a launch."""
        ...

    async def list(
        self, tenant: str, page_size: int, page_token: str
    ) -> tuple[Sequence[Launch], str]:
        """Return a page of launches and the token of the next one."""
        ...

    async def cancel(self, tenant: str, launch_id: str) -> Launch:
        """End a launch and release what it holds."""
        ...

    async def renew(self, tenant: str, launch_id: str, lease: timedelta | None) -> Launch:
        """Move the end of the lease."""
        ...

    async def trace(self, tenant: str, launch_id: str) -> tuple[str, Sequence[Span]]:
        """Return the trace id and the spans."""
        ...


class LaunchPage(Answer):
    """A page of launches, newest first."""

    launches: list[LaunchAnswer]
    next_page_token: str = Field(description="Empty on the last page.")


class RenewBody(Body):
    """How long to hold, from now."""

    lease: LeaseSeconds | None = Field(default=None, description="Seconds; 1800 when null.")


class SpanAnswer(Answer):
    """One span of a trace."""

    span_id: str
    parent_span_id: str
    name: str
    service: str
    started_at: datetime
    ended_at: datetime
    failed: bool
    attributes: dict[str, str]


class TraceAnswer(BaseModel):
    """The spans of a launch's trace, by start time."""

    trace_id: str
    spans: list[SpanAnswer]


def launches_router(launches: Launches, streams: EventStreams) -> APIRouter:
    """Return the routes of launches."""
    router = APIRouter(prefix="/v1/launches", tags=["launches"])

    async def events(launch_id: str, cursor: str | None, accept: str, location: str) -> Response:
        source = launches.watch(current_tenant(), launch_id, cursor)
        headers = {"Location": location} if location else {}
        return await streams.respond(source, _rendered, accept=accept, headers=headers)

    @router.post(
        "",
        status_code=201,
        response_model=LaunchAnswer,
        responses={
            201: {"headers": {"Location": {"schema": {"type": "string"}}}},
            **stream_documents("EventAnswer", _EVENTS + " Sent when Accept names a stream."),
            **problem_documents(409, 413),
        },
    )
    async def create_launch(
        body: LaunchBody, request: Request, response: Response, key: IdempotencyKey = None
    ) -> Launch | Response:
        """Start a launch. With an Accept of `application/x-ndjson` or `text/event-stream` its
        events follow.
        """
        if None not in (key, body.idempotency_key) and key != body.idempotency_key:
            raise IdempotencyKeysDiffer
        started = await launches.start(
            current_tenant(), body.value(), key if key is not None else body.idempotency_key
        )
        location = f"/v1/launches/{started.launch_id}"
        accept = request.headers.get("accept", "")
        if wants_stream(accept):
            return await events(started.launch_id, None, accept, location)
        response.headers["Location"] = location
        return started

    @router.get("", response_model=LaunchPage, responses=problem_documents())
    async def list_launches(page_size: PageSize = 0, page_token: PageToken = "") -> LaunchPage:
        """List the caller's launches, newest first."""
        found, token = await launches.list(current_tenant(), page_size, page_token)
        return LaunchPage(
            launches=[LaunchAnswer.model_validate(launch) for launch in found],
            next_page_token=token,
        )

    @router.get("/{launch_id}", response_model=LaunchAnswer, responses=problem_documents(404))
    async def get_launch(launch_id: str) -> Launch:
        """Return a launch."""
        return await launches.get(current_tenant(), launch_id)

    @router.get(
        "/{launch_id}/events",
        response_class=Response,
        responses={**stream_documents("EventAnswer", _EVENTS), **problem_documents(404, 410)},
    )
    async def watch_launch(
        launch_id: str,
        request: Request,
        cursor: Cursor = None,
        last_event_id: LastEventId = None,
    ) -> Response:
        """Stream a launch's events after a cursor: a snapshot, then what came since."""
        accept = request.headers.get("accept", "")
        return await events(launch_id, cursor or last_event_id or None, accept, "")

    @router.get(
        "/{launch_id}/trace", response_model=TraceAnswer, responses=problem_documents(404, 409)
    )
    async def get_launch_trace(launch_id: str) -> TraceAnswer:
        """Return the spans of a launch that the span store holds."""
        trace_id, spans = await launches.trace(current_tenant(), launch_id)
        return TraceAnswer(
            trace_id=trace_id, spans=[SpanAnswer.model_validate(span) for span in spans]
        )

    @router.post(
        "/{launch_id}/cancel",
        response_model=LaunchAnswer,
        responses=problem_documents(404),
    )
    async def cancel_launch(launch_id: str, key: IdempotencyKey = None) -> Launch:
        """End a launch and release what it holds; it answers when everything is released."""
        return await launches.cancel(current_tenant(), launch_id)

    @router.post(
        "/{launch_id}/renew",
        response_model=LaunchAnswer,
        responses=problem_documents(404, 409, 413),
    )
    async def renew_launch(
        launch_id: str, body: RenewBody | None = None, key: IdempotencyKey = None
    ) -> Launch:
        """Move the end of the lease of a launch that holds a workspace and a sandbox."""
        lease = None if body is None or body.lease is None else timedelta(seconds=body.lease)
        return await launches.renew(current_tenant(), launch_id, lease)

    return router


def _rendered(event: LaunchEvent) -> Rendered:
    return Rendered(cursor=event.cursor, type=event.type, members=event_json(event))
