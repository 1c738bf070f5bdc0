"""Keeps the last traces of the local stack in memory: takes OTLP/HTTP, gives each trace as JSON.

Bounded in traces, spans and bytes; the trace that was added to least recently goes first.
"""

from __future__ import annotations

import hmac
import json
import socket
import zlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from chassis.http_server import http_server
from chassis.listeners import ConnectionLimits

Scope = MutableMapping[str, object]
Message = MutableMapping[str, object]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Value = str | bool | int | float | list["Value"] | dict[str, "Value"] | None

BODY_BYTES = 4 * 1024 * 1024
INFLATED_BYTES = 16 * 1024 * 1024
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_GZIP = 16 + zlib.MAX_WBITS


@dataclass(frozen=True, slots=True)
class Limits:
    """How much the store keeps; a trace that is larger than `spans_per_trace` loses the oldest
    spans of the name that it has most of, so that thousands of one kind do not hide the others.
    """

    traces: int = 500
    spans: int = 50_000
    spans_per_trace: int = 5_000
    content_bytes: int = 64 * 1024 * 1024


@dataclass(slots=True)
class _Trace:
    spans: dict[str, dict[str, Value]] = field(default_factory=dict)
    by_name: dict[str, dict[str, int]] = field(default_factory=dict)
    """The size of each span by its id, oldest first, by the name of the span."""
    content_bytes: int = 0

    def forget_one(self) -> int:
        """Drop the oldest span of the most frequent name; returns its size."""
        name, sizes = max(self.by_name.items(), key=lambda each: len(each[1]))
        span_id = next(iter(sizes))
        size = sizes.pop(span_id)
        if not sizes:
            del self.by_name[name]
        del self.spans[span_id]
        self.content_bytes -= size
        return size


class SpanStore:
    """The traces that are kept, by trace id in lower-case hexadecimal."""

    def __init__(self, *, limits: Limits) -> None:
        self._limits = limits
        self._traces: OrderedDict[str, _Trace] = OrderedDict()
        self._spans = 0
        self._content_bytes = 0

    def add(self, request: ExportTraceServiceRequest) -> None:
        """Take one OTLP export; a span that is there already is replaced."""
        for resource_spans in request.resource_spans:
            service = _service(resource_spans.resource.attributes)
            for scope_spans in resource_spans.scope_spans:
                for span in scope_spans.spans:
                    self._add_span(span, service)
        self._forget()

    def trace(self, trace_id: str) -> dict[str, Value] | None:
        """Return a trace as JSON values, its spans by start time; None when it is not (or no
        longer) kept.
        """
        trace = self._traces.get(trace_id.lower())
        if trace is None:
            return None
        spans = sorted(
            trace.spans.values(), key=lambda span: (str(span["started_at"]), str(span["ended_at"]))
        )
        return {"trace_id": trace_id.lower(), "spans": list(spans)}

    def _add_span(self, span: WireSpan, service: str) -> None:
        trace_id = span.trace_id.hex()
        trace = self._traces.setdefault(trace_id, _Trace())
        self._traces.move_to_end(trace_id)
        span_id = span.span_id.hex()
        if span_id not in trace.spans:
            if len(trace.spans) >= self._limits.spans_per_trace:
                self._content_bytes -= trace.forget_one()
                self._spans -= 1
            size = span.ByteSize()
            trace.by_name.setdefault(span.name, {})[span_id] = size
            trace.content_bytes += size
            self._content_bytes += size
            self._spans += 1
        trace.spans[span_id] = {
            "span_id": span_id,
            "parent_span_id": span.parent_span_id.hex(),
            "name": span.name,
            "service": service,
            "started_at": _time(span.start_time_unix_nano),
            "ended_at": _time(span.end_time_unix_nano),
            "failed": span.status.code == Status.STATUS_CODE_ERROR,
            "attributes": _attributes(span.attributes),
        }

    def _forget(self) -> None:
        while self._traces and (
            len(self._traces) > self._limits.traces
            or self._spans > self._limits.spans
            or self._content_bytes > self._limits.content_bytes
        ):
            _, oldest = self._traces.popitem(last=False)
            self._spans -= len(oldest.spans)
            self._content_bytes -= oldest.content_bytes


def _service(attributes: Iterable[KeyValue]) -> str:
    return next((pair.value.string_value for pair in attributes if pair.key == "service.name"), "")


def _attributes(attributes: Iterable[KeyValue]) -> dict[str, Value]:
    return {pair.key: _value(pair.value) for pair in attributes}


def _value(value: AnyValue) -> Value:
    match value.WhichOneof("value"):
        case "string_value":
            return value.string_value
        case "bool_value":
            return value.bool_value
        case "int_value":
            return value.int_value
        case "double_value":
            return value.double_value
        case "bytes_value":
            return value.bytes_value.hex()
        case "array_value":
            return [_value(item) for item in value.array_value.values]
        case "kvlist_value":
            return _attributes(value.kvlist_value.values)
        case _:
            return None


def _time(unix_nanoseconds: int) -> str:
    moment = _EPOCH + timedelta(microseconds=unix_nanoseconds // 1000)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class SpanStoreApi:
    """The store over HTTP (ASGI): `POST /v1/traces` as in the OTLP specification 1.x, `GET
    /v1/traces/{trace_id}`.

    Bearer tokens: `write_token` may only add, so that a sandboxed program can be given it;
    `read_token` may only read.
    """

    def __init__(self, *, store: SpanStore, write_token: str, read_token: str) -> None:
        self._store = store
        self._writers = f"Bearer {write_token}".encode()
        self._readers = f"Bearer {read_token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])  # type: ignore[call-overload]
        path, method = str(scope["path"]), str(scope["method"])
        expected = self._writers if method == "POST" else self._readers
        if not hmac.compare_digest(headers.get(b"authorization", b""), expected):
            await _answer(send, 401, _problem("unauthenticated", "The bearer token is wrong."))
        elif path == "/v1/traces" and method == "POST":
            await self._take(headers, receive, send)
        elif path.startswith("/v1/traces/") and method == "GET":
            trace = self._store.trace(path.removeprefix("/v1/traces/"))
            if trace is None:
                await _answer(send, 404, _problem("trace_not_found", "No such trace is kept."))
            else:
                await _answer(send, 200, json.dumps(trace).encode())
        else:
            await _answer(send, 404, _problem("route_not_found", "There is no such route."))

    async def _take(self, headers: dict[bytes, bytes], receive: Receive, send: Send) -> None:
        if headers.get(b"content-type", b"").split(b";")[0] != b"application/x-protobuf":
            await _answer(send, 415, _problem("unsupported_media_type", "Send OTLP as protobuf."))
            return
        body = await _body(receive)
        if body is not None and headers.get(b"content-encoding", b"identity") == b"gzip":
            body = _inflated(body)
        if body is None:
            await _answer(send, 413, _problem("body_too_large", "One export is at most 4 MiB."))
            return
        try:
            request = ExportTraceServiceRequest.FromString(body)
        except DecodeError:
            await _answer(send, 400, _problem("malformed_body", "The body is no OTLP export."))
            return
        self._store.add(request)
        await _answer(
            send, 200, ExportTraceServiceResponse().SerializeToString(), b"application/x-protobuf"
        )


async def _body(receive: Receive) -> bytes | None:
    """Read the request to its end; None when it is too large."""
    content = bytearray()
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return bytes(content)
        chunk = message.get("body", b"")
        if isinstance(chunk, bytes):
            size += len(chunk)
            if size <= BODY_BYTES:
                content += chunk
        if not message.get("more_body", False):
            return bytes(content) if size <= BODY_BYTES else None


def _inflated(body: bytes) -> bytes | None:
    """Undo gzip; None when it holds too much, and an empty-handed b"\\xff" (no protobuf) when it is
    no gzip.
    """
    inflater = zlib.decompressobj(_GZIP)
    try:
        content = inflater.decompress(body, INFLATED_BYTES)
    except zlib.error:
        return b"\xff"
    return None if inflater.unconsumed_tail else content


def _problem(reason: str, detail: str) -> bytes:
    return json.dumps({"reason": reason, "detail": detail}).encode()


async def _answer(send: Send, status: int, body: bytes, kind: bytes = b"application/json") -> None:
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class SpanStoreServer:
    """Serves a store on a socket that listens already, inside the supervisor's event loop."""

    def __init__(self, *, api: SpanStoreApi) -> None:
        self._server = http_server(api, limits=ConnectionLimits(), grace_seconds=1)

    async def serve(self, listener: socket.socket) -> None:
        """Serve until `stop`."""
        await self._server.serve(sockets=[listener])

    def stop(self) -> None:
        """Finish open requests, then end `serve`."""
        self._server.should_exit = True
