"""The server span of an HTTP request: `rest.<METHOD> <route>`, the root of a trace of ours.

The caller's trace is linked to and not continued: otherwise a tenant could write into the trace of
another one, and read it, by naming its id.
"""

from __future__ import annotations

from opentelemetry.context import Context
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanKind,
    StatusCode,
    TracerProvider,
    use_span,
)
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chassis.telemetry import links_to, remote_context

ATTRIBUTES = ("http.request.method", "http.route", "http.response.status_code")
_METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})


class HttpTracing:
    """Opens a span around each request below /v1; it ends when the answer starts, however long it
    streams.
    """

    def __init__(self, app: ASGIApp, *, tracer_provider: TracerProvider) -> None:
        self._app = app
        self._tracer = tracer_provider.get_tracer("signalling.http")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or not scope["path"].startswith("/v1/"):
            await self._app(scope, receive, send)
            return
        asked = scope.get("method", "GET")  # a WebSocket is asked for by GET
        method = asked if asked in _METHODS else "OTHER"
        caller = remote_context(Headers(scope=scope).get("traceparent", ""))
        span = self._tracer.start_span(
            f"rest.{method}",
            context=Context(),
            links=links_to(caller),
            kind=SpanKind.SERVER,
            attributes={"http.request.method": method},
        )

        # What goes on long after the answer started needs to know of the span only its ids.
        parent = NonRecordingSpan(span.get_span_context())

        async def watched(message: Message) -> None:
            nonlocal span
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                _end(span, method, scope, message["status"])
                span = parent
            elif message["type"] == "websocket.accept":
                _end(span, method, scope, 101)
                span = parent
            await send(message)

        try:
            with use_span(parent, record_exception=False, set_status_on_exception=False):
                await self._app(scope, receive, watched)
        finally:
            if span.is_recording():  # the client left before there was an answer
                _end(span, method, scope, 499)


def _end(span: Span, method: str, scope: Scope, status: int) -> None:
    route = getattr(scope.get("route"), "path", "unmatched")
    span.update_name(f"rest.{method} {route}")
    span.set_attribute("http.route", route)
    span.set_attribute("http.response.status_code", status)
    if status >= 500:
        span.set_status(StatusCode.ERROR)
    span.end()
