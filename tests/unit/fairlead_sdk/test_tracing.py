"""Spans of a client stand in the trace that the front door names, if OpenTelemetry is there."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx2
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from fairlead_sdk.client import FrontDoor
from fairlead_sdk.errors import NotFound
from fairlead_sdk.tracing import client_span

pytestmark = pytest.mark.asyncio
MESH = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    return exporter


def ids(span: ReadableSpan) -> tuple[str, str]:
    assert span.parent is not None
    return f"{span.parent.trace_id:032x}", f"{span.parent.span_id:016x}"


async def body(content: bytes) -> AsyncIterator[bytes]:
    yield content


async def test_spans_stand_in_the_trace_of_the_first_answer_and_link_to_the_caller(
    spans: InMemorySpanExporter,
) -> None:
    asked: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(request.headers.get("traceparent", ""))
        other = "00-" + "c" * 32 + "-" + "d" * 16 + "-01"
        return httpx2.Response(
            200, content=body(b"{}"), headers={"traceresponse": MESH if len(asked) == 1 else other}
        )

    caller = trace.get_tracer("caller").start_span("work")
    async with FrontDoor(
        url="http://mesh.test", api_key="k", transport=httpx2.MockTransport(answer)
    ) as door:
        with trace.use_span(caller), client_span("launch.request", launch_id="lch_a"):
            await door.get("/v1/launches/lch_a")
            with client_span("snapshot.upload"):
                await door.get("/v1/launches/lch_a")
    upload, request = spans.get_finished_spans()
    assert (request.name, upload.name) == ("launch.request", "snapshot.upload")
    assert ids(request) == ids(upload) == ("a" * 32, "b" * 16)
    assert dict(request.attributes or {}) == {"fairlead.launch.id": "lch_a"}
    context = caller.get_span_context()
    assert [link.context.span_id for link in request.links] == [context.span_id]
    assert (upload.start_time or 0) >= (request.start_time or 0) > 0
    assert [f"{context.trace_id:032x}" in each for each in asked] == [True, True]


async def test_what_fails_says_why_and_what_nobody_answered_is_no_span(
    spans: InMemorySpanExporter,
) -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(
            404, content=body(b'{"reason": "launch_not_found"}'), headers={"traceresponse": MESH}
        )

    async with FrontDoor(
        url="http://mesh.test", api_key="k", transport=httpx2.MockTransport(answer)
    ) as door:
        with pytest.raises(NotFound), client_span("tunnel.attach"):
            await door.get("/v1/launches/lch_a")
    with client_span("tunnel.attach"):
        pass
    (failed,) = spans.get_finished_spans()
    assert failed.status.description == "launch_not_found"
