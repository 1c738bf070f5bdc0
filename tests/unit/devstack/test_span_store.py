"""The store, and its HTTP face with what the real OTLP exporter sends (without a socket in
between).
"""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import MutableMapping
from dataclasses import dataclass

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from devstack.span_store import BODY_BYTES, INFLATED_BYTES, Limits, SpanStore, SpanStoreApi

WIDE = Limits()
PROTOBUF = {"content-type": "application/x-protobuf"}


class Recorder:
    """A tracer whose finished spans become an OTLP export."""

    def __init__(self, service: str = "signalling") -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(resource=Resource.create({"service.name": service}))
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = provider.get_tracer("test")

    def export(self) -> ExportTraceServiceRequest:
        request = encode_spans(self._exporter.get_finished_spans())
        self._exporter.clear()
        return request


def one_trace(spans: int = 1, padding: str = "") -> tuple[str, ExportTraceServiceRequest]:
    recorder = Recorder()
    with recorder.tracer.start_as_current_span("launch.run") as root:
        root.set_attribute("padding", padding)
        for _ in range(spans - 1):
            recorder.tracer.start_span("launch.place").end()
    return f"{root.get_span_context().trace_id:032x}", recorder.export()


@dataclass
class Answer:
    status: int
    body: bytes

    @property
    def reason(self) -> str:
        return str(json.loads(self.body)["reason"])


def ask(api: SpanStoreApi, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
    sent: list[MutableMapping[str, object]] = []
    chunks = [body[at : at + 65536] for at in range(0, len(body), 65536)] or [b""]

    async def receive() -> MutableMapping[str, object]:
        return {"type": "http.request", "body": chunks.pop(0), "more_body": bool(chunks)}

    async def send(message: MutableMapping[str, object]) -> None:
        sent.append(message)

    scope: MutableMapping[str, object] = {
        "type": "http",
        "method": method,
        "path": path,
        "headers": [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()],
    }
    asyncio.run(api(scope, receive, send))
    status, content = sent[0]["status"], sent[1]["body"]
    assert isinstance(status, int)
    assert isinstance(content, bytes)
    return Answer(status, content)


def made(limits: Limits = WIDE) -> SpanStoreApi:
    return SpanStoreApi(store=SpanStore(limits=limits), write_token="w", read_token="r")


def post(api: SpanStoreApi, body: bytes, token: str = "w", **headers: str) -> Answer:  # noqa: S107
    headers = {"content_type": "application/x-protobuf", **headers}
    return ask(api, "POST", "/v1/traces", body, authorization=f"Bearer {token}", **headers)


def get(api: SpanStoreApi, trace_id: str, token: str = "r") -> Answer:  # noqa: S107
    return ask(api, "GET", f"/v1/traces/{trace_id}", authorization=f"Bearer {token}")


def test_a_trace_comes_back_with_everything_in_it() -> None:
    recorder = Recorder("sandbox-worker")
    attributes: dict[str, str | bool | int | float] = {
        "fairlead.a": "x",
        "fairlead.b": True,
        "fairlead.c": 3,
        "fairlead.d": 0.5,
    }
    with (
        recorder.tracer.start_as_current_span("execution.run") as root,
        recorder.tracer.start_as_current_span("inner", attributes=attributes) as inner,
    ):
        inner.set_attribute("fairlead.e", ["one", "two"])
        inner.set_status(StatusCode.ERROR)
    trace_id = f"{root.get_span_context().trace_id:032x}"
    api = made()
    assert post(api, recorder.export().SerializeToString()).status == 200

    trace = json.loads(get(api, trace_id.upper()).body)

    assert trace["trace_id"] == trace_id
    outer, child = trace["spans"]
    assert (outer["name"], outer["service"], outer["parent_span_id"], outer["failed"]) == (
        "execution.run",
        "sandbox-worker",
        "",
        False,
    )
    assert outer["span_id"] == f"{root.get_span_context().span_id:016x}"
    assert child["parent_span_id"] == outer["span_id"]
    assert child["failed"] is True
    assert child["attributes"] == {**attributes, "fairlead.e": ["one", "two"]}
    assert outer["started_at"] <= child["started_at"] <= child["ended_at"] <= outer["ended_at"]


def test_times_are_rfc_3339_with_microseconds() -> None:
    request = ExportTraceServiceRequest()
    span = request.resource_spans.add().scope_spans.add().spans.add()
    span.trace_id, span.span_id = b"\1" * 16, b"\2" * 8
    span.start_time_unix_nano, span.end_time_unix_nano = (
        1_700_000_000_000_000_000,
        1_700_000_000_123_456_999,
    )
    store = SpanStore(limits=WIDE)
    store.add(request)
    trace = store.trace("01" * 16)
    assert trace is not None
    assert '"started_at": "2023-11-14T22:13:20.000000Z"' in json.dumps(trace)
    assert '"ended_at": "2023-11-14T22:13:20.123456Z"' in json.dumps(trace)


def test_spans_of_one_trace_come_together_from_several_rooms() -> None:
    trace_id, request = one_trace()
    second = ExportTraceServiceRequest.FromString(request.SerializeToString())
    span = second.resource_spans[0].scope_spans[0].spans[0]
    span.parent_span_id, span.span_id = span.span_id, b"\7" * 8
    store = SpanStore(limits=WIDE)
    for part in (request, second, second):
        store.add(part)
    trace = store.trace(trace_id)
    assert trace is not None
    spans = trace["spans"]
    assert isinstance(spans, list)
    assert len(spans) == 2


def test_gzip_is_understood() -> None:
    trace_id, request = one_trace()
    api = made()
    answer = post(api, gzip.compress(request.SerializeToString()), content_encoding="gzip")
    assert answer.status == 200
    assert get(api, trace_id).status == 200


@pytest.mark.parametrize(
    ("limits", "spans", "padding"),
    [
        (Limits(traces=3), 1, ""),
        (Limits(spans=12), 4, ""),
        (Limits(content_bytes=40_000), 1, "x" * 10_000),
    ],
)
def test_the_oldest_trace_goes_when_a_limit_is_met(
    limits: Limits, spans: int, padding: str
) -> None:
    store = SpanStore(limits=limits)
    kept = [one_trace(spans, padding) for _ in range(4)]
    for _, request in kept:
        store.add(request)
    assert [store.trace(trace_id) is not None for trace_id, _ in kept] == [False, True, True, True]


def test_a_trace_that_is_added_to_stays() -> None:
    store = SpanStore(limits=Limits(traces=2))
    first, second, third = (one_trace() for _ in range(3))
    for _, request in (first, second, first, third):
        store.add(request)
    assert store.trace(first[0]) is not None
    assert store.trace(second[0]) is None


def test_a_large_trace_loses_spans_of_the_most_frequent_name() -> None:
    recorder = Recorder()
    with recorder.tracer.start_as_current_span("launch.run") as root:
        recorder.tracer.start_span("launch.place").end()
        for number in range(30):
            recorder.tracer.start_span("channel.open", attributes={"number": number}).end()
    store = SpanStore(limits=Limits(spans_per_trace=10))
    store.add(recorder.export())
    trace = store.trace(f"{root.get_span_context().trace_id:032x}")
    assert trace is not None
    assert isinstance(trace["spans"], list)
    spans = [each for each in trace["spans"] if isinstance(each, dict)]
    assert [each["name"] for each in spans] == ["launch.run", "launch.place"] + ["channel.open"] * 8
    assert spans[-1]["attributes"] == {"number": 29}


def test_the_token_that_writes_does_not_read_and_the_other_way_round() -> None:
    trace_id, request = one_trace()
    api = made()
    body = request.SerializeToString()
    assert [post(api, body, token).status for token in ("w", "r", "")] == [200, 401, 401]
    assert [get(api, trace_id, token).status for token in ("r", "w", "")] == [200, 401, 401]
    assert ask(api, "GET", f"/v1/traces/{trace_id}").reason == "unauthenticated"


def test_what_is_not_an_export_is_refused_by_name() -> None:
    api = made()
    assert (post(api, b"\xff\xff").status, post(api, b"\xff\xff").reason) == (400, "malformed_body")
    assert post(api, b"no gzip", content_encoding="gzip").status == 400
    assert post(api, b"{}", content_type="application/json").status == 415
    assert get(api, "0" * 32).reason == "trace_not_found"
    assert ask(api, "GET", "/", authorization="Bearer r").status == 404


def test_what_is_too_large_is_refused_also_when_it_is_packed() -> None:
    api = made()
    assert post(api, b"\0" * (BODY_BYTES + 1)).status == 413
    assert (
        post(api, gzip.compress(b"\0" * (INFLATED_BYTES + 1)), content_encoding="gzip").status
        == 413
    )
