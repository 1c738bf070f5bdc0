"""Spans for gRPC calls, on both ends: `rpc.<Service>/<Method>`, joined by a W3C traceparent.

Rules found by trying: the client interceptor never awaits the call's code or result (that breaks
cancellation), it ends the span from the call's done callback. A stream's span is its opening: it
ends at the first response.
"""

from __future__ import annotations

from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import contextmanager
from types import TracebackType

import grpc
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from chassis.rpc_wrapping import Request, Response, ServicerContext, wrapped
from chassis.telemetry import links_to

ATTRIBUTES = ("rpc.system", "rpc.method", "rpc.response.status_code")
_PROPAGATOR = TraceContextTextMapPropagator()
_CODES = {code.value[0]: code for code in grpc.StatusCode}
_DEADLINE_SLACK_SECONDS = 0.05


class RpcSpan:
    """The span of one call; it ends once, and what comes later is ignored.

    What it recorded is let go of then: a stream can be open for hours after its span.
    """

    __slots__ = ("span",)

    def __init__(self, span: Span) -> None:
        self.span = span

    def end(self, code: grpc.StatusCode) -> None:
        """Record the outcome and end the span."""
        if not self.span.is_recording():
            return
        self.span.set_attribute("rpc.response.status_code", code.name)
        if code is not grpc.StatusCode.OK:
            self.span.set_status(StatusCode.ERROR, code.name)
        self.span.end()
        self.span = trace.INVALID_SPAN

    def opened(self) -> None:
        """End the span of a stream at its first response."""
        self.end(grpc.StatusCode.OK)

    def call_ended(self, call: grpc.aio.Call) -> None:
        """End the span of a client's call with the status that the call has by now."""
        self.end(_code_of(call))


class ServerTracing(grpc.aio.ServerInterceptor):
    """Opens a server span for each call; health checks and reflection make none.

    The caller's trace is continued, or where callers are not trusted only linked to.
    """

    def __init__(self, *, tracer_provider: trace.TracerProvider, trusts_callers: bool) -> None:
        self._tracer = tracer_provider.get_tracer("chassis.rpc")
        self._trusts_callers = trusts_callers
        self._root = otel_context.Context()

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Request, Response] | None]
        ],
        call: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Request, Response] | None:
        method = await continuation(call)
        if method is None or call.method.startswith("/grpc."):
            return method
        carrier = {key: str(value) for key, value in call.invocation_metadata or ()}
        caller = _PROPAGATOR.extract(carrier, otel_context.Context())
        opening = _Opening(
            tracer=self._tracer,
            path=call.method,
            parent=caller if self._trusts_callers else self._root,
            links=() if self._trusts_callers else tuple(links_to(caller)),
            streams=method.response_streaming,
        )
        return wrapped(method, opening)


class _Opening:
    """Opens the span of a call that is served.

    Kept as long as a stream is open: a closure is three times its size, and has all metadata.
    """

    __slots__ = ("_links", "_parent", "_path", "_streams", "_tracer")

    def __init__(
        self,
        *,
        tracer: trace.Tracer,
        path: str,
        parent: otel_context.Context,
        links: Sequence[trace.Link],
        streams: bool,
    ) -> None:
        self._tracer = tracer
        self._path = path
        self._parent = parent
        self._links = links
        self._streams = streams

    def __call__(self, context: ServicerContext) -> _ServerCall:
        rpc = _start(self._tracer, self._path, SpanKind.SERVER, self._parent, self._links)
        seen = _identity_of(rpc.span) if self._streams else rpc.span
        return _ServerCall(context=context, rpc=rpc, seen=seen, parent=self._parent)


class _ServerCall:
    """The span of a call that is served, from before its method to its end; its method sees `seen`
    as the current one.
    """

    __slots__ = ("_context", "_rpc", "_token")

    def __init__(
        self, *, context: ServicerContext, rpc: RpcSpan, seen: Span, parent: otel_context.Context
    ) -> None:
        self._context = context
        self._rpc = rpc
        self._token = otel_context.attach(trace.set_span_in_context(seen, parent))

    async def __aenter__(self) -> Callable[[], None]:
        return self._rpc.opened

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        otel_context.detach(self._token)
        if error is not None:
            self._rpc.end(_server_code(self._context, error))
        else:
            self._rpc.end(_CODES.get(_number(self._context.code()), grpc.StatusCode.UNKNOWN))


def client_interceptors(
    tracer_provider: trace.TracerProvider, metadata: Sequence[tuple[str, str]] = ()
) -> list[grpc.aio.ClientInterceptor]:
    """Make the interceptors of one channel: client spans, and `metadata` on every call.

    They are four because grpc.aio sorts an interceptor into one kind of call only.
    """
    calls = _ClientCalls(tracer=tracer_provider.get_tracer("chassis.rpc"), metadata=metadata)
    return [_UnaryUnary(calls), _UnaryStream(calls), _StreamUnary(calls), _StreamStream(calls)]


class _ClientCalls:
    def __init__(self, *, tracer: trace.Tracer, metadata: Sequence[tuple[str, str]]) -> None:
        self._tracer = tracer
        self._metadata = metadata

    @contextmanager
    def span(
        self, call: grpc.aio.ClientCallDetails
    ) -> Iterator[tuple[RpcSpan, grpc.aio.ClientCallDetails]]:
        """Start the span of a call; it stays open unless starting the call raises."""
        name = call.method.decode() if isinstance(call.method, bytes) else call.method
        metadata = grpc.aio.Metadata(*(call.metadata or ()), *self._metadata)
        if name.startswith("/grpc."):
            rpc = RpcSpan(trace.INVALID_SPAN)
        else:
            rpc = _start(self._tracer, name, SpanKind.CLIENT, otel_context.get_current())
            carrier: dict[str, str] = {}
            _PROPAGATOR.inject(carrier, trace.set_span_in_context(rpc.span))
            for key, value in carrier.items():
                metadata.add(key, value)
        try:
            yield (
                rpc,
                grpc.aio.ClientCallDetails(
                    call.method, call.timeout, metadata, call.credentials, call.wait_for_ready
                ),
            )
        except BaseException:
            rpc.end(grpc.StatusCode.CANCELLED)
            raise


class _FirstResponse(AsyncIterator[Response]):
    """The responses of a streaming call, ending the span when the first has come."""

    def __init__(
        self,
        call: grpc.aio.UnaryStreamCall[Request, Response]
        | grpc.aio.StreamStreamCall[Request, Response],
        rpc: RpcSpan,
    ) -> None:
        self._responses = call.__aiter__()
        self._rpc = rpc

    async def __anext__(self) -> Response:
        response = await self._responses.__anext__()
        self._rpc.opened()
        return response


class _UnaryUnary(grpc.aio.UnaryUnaryClientInterceptor):
    def __init__(self, calls: _ClientCalls) -> None:
        self._calls = calls

    async def intercept_unary_unary(
        self,
        continuation: Callable[
            [grpc.aio.ClientCallDetails, Request],
            Awaitable[grpc.aio.UnaryUnaryCall[Request, Response]],
        ],
        call: grpc.aio.ClientCallDetails,
        request: Request,
    ) -> grpc.aio.UnaryUnaryCall[Request, Response]:
        with self._calls.span(call) as (rpc, traced):
            started = await continuation(traced, request)
        started.add_done_callback(rpc.call_ended)
        return started


class _UnaryStream(grpc.aio.UnaryStreamClientInterceptor):
    def __init__(self, calls: _ClientCalls) -> None:
        self._calls = calls

    async def intercept_unary_stream(
        self,
        continuation: Callable[
            [grpc.aio.ClientCallDetails, Request],
            Awaitable[grpc.aio.UnaryStreamCall[Request, Response]],
        ],
        call: grpc.aio.ClientCallDetails,
        request: Request,
    ) -> AsyncIterator[Response]:
        with self._calls.span(call) as (rpc, traced):
            started = await continuation(traced, request)
        started.add_done_callback(rpc.call_ended)
        return _FirstResponse(started, rpc)


class _StreamUnary(grpc.aio.StreamUnaryClientInterceptor):
    def __init__(self, calls: _ClientCalls) -> None:
        self._calls = calls

    async def intercept_stream_unary(
        self,
        continuation: Callable[
            [grpc.aio.ClientCallDetails, AsyncIterable[Request] | Iterable[Request]],
            Awaitable[grpc.aio.StreamUnaryCall[Request, Response]],
        ],
        call: grpc.aio.ClientCallDetails,
        requests: AsyncIterable[Request] | Iterable[Request],
    ) -> grpc.aio.StreamUnaryCall[Request, Response]:
        with self._calls.span(call) as (rpc, traced):
            started = await continuation(traced, requests)
        started.add_done_callback(rpc.call_ended)
        return started


class _StreamStream(grpc.aio.StreamStreamClientInterceptor):
    def __init__(self, calls: _ClientCalls) -> None:
        self._calls = calls

    async def intercept_stream_stream(
        self,
        continuation: Callable[
            [grpc.aio.ClientCallDetails, AsyncIterable[Request] | Iterable[Request]],
            Awaitable[grpc.aio.StreamStreamCall[Request, Response]],
        ],
        call: grpc.aio.ClientCallDetails,
        requests: AsyncIterable[Request] | Iterable[Request],
    ) -> AsyncIterator[Response]:
        with self._calls.span(call) as (rpc, traced):
            started = await continuation(traced, requests)
        started.add_done_callback(rpc.call_ended)
        return _FirstResponse(started, rpc)


def _start(
    tracer: trace.Tracer,
    path: str,
    kind: SpanKind,
    parent: otel_context.Context,
    links: Sequence[trace.Link] = (),
) -> RpcSpan:
    service, _, method = path.lstrip("/").partition("/")
    name = f"{service.rpartition('.')[2]}/{method}"
    attributes = {"rpc.system": "grpc", "rpc.method": f"{service}/{method}"}
    return RpcSpan(
        tracer.start_span(
            f"rpc.{name}", context=parent, kind=kind, attributes=attributes, links=links
        )
    )


def _identity_of(span: Span) -> Span:
    """Return what others need to be a span's children, without what it has recorded."""
    return trace.NonRecordingSpan(span.get_span_context())


def _code_of(call: grpc.aio.Call) -> grpc.StatusCode:
    """Return the status of a call that is done: its `code()` answers at the first step then."""
    question = call.code()
    try:
        question.send(None)
    except StopIteration as answer:
        return grpc.StatusCode(answer.value)
    finally:
        question.close()
    return grpc.StatusCode.UNKNOWN


def _server_code(context: ServicerContext, error: BaseException) -> grpc.StatusCode:
    if isinstance(error, grpc.aio.AbortError):
        return _CODES.get(_number(context.code()), grpc.StatusCode.UNKNOWN)
    if isinstance(error, Exception):
        return grpc.StatusCode.UNKNOWN
    # gRPC cancels the method both for a caller that left and for a deadline; only the clock tells
    # them apart.
    remaining: float | None = context.time_remaining()
    if remaining is not None and remaining <= _DEADLINE_SLACK_SECONDS:
        return grpc.StatusCode.DEADLINE_EXCEEDED
    return grpc.StatusCode.CANCELLED


def _number(code: grpc.StatusCode | int | None) -> int:
    """Return a code as a number; grpc.aio has either, and None when nothing was set."""
    if isinstance(code, grpc.StatusCode):
        return int(code.value[0])
    return code or 0
