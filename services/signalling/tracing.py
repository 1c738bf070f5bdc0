"""The server span of an HTTP request: `rest.<METHOD> <route>`, the root of a trace of ours.

The caller's trace is linked to and not continued: otherwise a tenant could write into the trace of
another one, and read it, by naming its id. The answer says by `traceresponse` (W3C Trace Context
Level 2) which trace it is, so that spans of a client can stand in it.
"""

from __future__ import annotations

from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanKind,
    StatusCode,
    TracerProvider,
    set_span_in_context,
)
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chassis.telemetry import links_to, remote_context, traceparent
from signalling.request_header import header_of

ATTRIBUTES = ("http.request.method", "http.route", "http.response.status_code")
_ROOT = Context()
_ANSWER_HEADER = b"traceresponse"
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
        caller = header_of(scope, b"traceparent")
        span = self._tracer.start_span(
            f"rest.{method}",
            context=_ROOT,
            links=links_to(remote_context(caller)) if caller else None,
            kind=SpanKind.SERVER,
            attributes={"http.request.method": method},
        )
        if not span.is_recording():
            await self._served(span, scope, receive, send)
            return

        # What goes on long after the answer started needs to know of the span only its ids.
        parent = NonRecordingSpan(span.get_span_context())

        async def watched(message: Message) -> None:
            nonlocal span
            if message["type"] == "http.response.start":
                headers = [*message.get("headers", ())]
                if all(name != _ANSWER_HEADER for name, _ in headers):
                    headers.append((_ANSWER_HEADER, traceparent(parent).encode()))
                message = {**message, "headers": headers}
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                _end(span, method, scope, message["status"])
                span = parent
            elif message["type"] == "websocket.accept":
                _end(span, method, scope, 101)
                span = parent
            await send(message)

        try:
            await self._served(parent, scope, receive, watched)
        finally:
            if span.is_recording():  # the client left before there was an answer
                _end(span, method, scope, 499)

    async def _served(self, parent: Span, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request whose spans have this parent."""
        token = attach(set_span_in_context(parent))
        try:
            await self._app(scope, receive, send)
        finally:
            detach(token)


def _end(span: Span, method: str, scope: Scope, status: int) -> None:
    route = getattr(scope.get("route"), "path", "unmatched")
    span.update_name(f"rest.{method} {route}")
    span.set_attributes({"http.route": route, "http.response.status_code": status})
    if status >= 500:
        span.set_status(StatusCode.ERROR)
    span.end()
