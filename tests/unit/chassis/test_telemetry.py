"""Trace context as text, the exporter's quiet, and a bounded end."""

from __future__ import annotations

import logging
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from chassis.telemetry import (
    OncePerMinute,
    current_trace_id,
    remote_context,
    start_metrics,
    start_telemetry,
    stop_metrics,
    stop_telemetry,
    traceparent,
)

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(autouse=True)
def no_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    ):
        monkeypatch.delenv(name, raising=False)


def test_without_a_span_there_is_no_trace() -> None:
    assert current_trace_id() == ""
    assert traceparent() == ""


def test_the_active_span_is_told_as_a_traceparent() -> None:
    provider = start_telemetry("probe")
    with provider.get_tracer("t").start_as_current_span("x") as span:
        context = span.get_span_context()
        assert current_trace_id() == f"{context.trace_id:032x}"
        assert traceparent().startswith(f"00-{context.trace_id:032x}-{context.span_id:016x}-")
    assert provider.resource.attributes["service.name"] == "probe"


def test_a_remote_traceparent_is_continued() -> None:
    with TracerProvider().get_tracer("t").start_as_current_span("x", remote_context(PARENT)):
        assert current_trace_id() == "0af7651916cd43dd8448eb211c80319c"


@pytest.mark.parametrize("text", ["", "nonsense", PARENT.replace("0af7", "zzzz")])
def test_a_malformed_traceparent_is_no_parent(text: str) -> None:
    assert not trace.get_current_span(remote_context(text)).get_span_context().is_valid


def test_a_traces_parent_decides_on_sampling() -> None:
    unsampled = remote_context(PARENT[:-2] + "00")
    span = start_telemetry("probe").get_tracer("t").start_span("x", unsampled)
    assert not span.is_recording()


def test_one_warning_a_minute_passes() -> None:
    now = [0.0]
    quiet = OncePerMinute(now=lambda: now[0])

    def passes(level: int) -> bool:
        return quiet.filter(logging.LogRecord("x", level, "", 0, "m", (), None)) is not False

    assert [passes(logging.ERROR), passes(logging.ERROR)] == [True, False]
    assert passes(logging.DEBUG)
    now[0] = 60.0
    assert passes(logging.WARNING)


def test_an_error_of_the_exporter_passes_as_a_warning() -> None:
    record = logging.LogRecord("x", logging.ERROR, "", 0, "m", (), None)
    assert OncePerMinute(now=lambda: 0.0).filter(record)
    assert record.levelname == "WARNING"


class Stuck(SpanExporter):
    """An exporter whose collector never answers."""

    def __init__(self) -> None:
        self.release = threading.Event()

    def export(self, spans: object) -> SpanExportResult:
        self.release.wait()
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        self.release.wait()


def test_the_end_is_bounded_when_the_collector_does_not_answer() -> None:
    stuck = Stuck()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(stuck))
    provider.get_tracer("t").start_span("x").end()
    before = threading.enumerate()
    stop_telemetry(provider, seconds=0.05)
    begun = [each for each in threading.enumerate() if each not in before]
    assert [each.name for each in begun] == ["telemetry-flush"]
    stuck.release.set()
    begun[0].join()


class Collector(BaseHTTPRequestHandler):
    """Takes whatever comes."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.bodies.append(body)  # type: ignore[attr-defined]
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        return


def test_counters_go_to_the_metrics_endpoint_at_the_latest_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        server.bodies = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        endpoint = f"http://127.0.0.1:{server.server_port}/v1/metrics"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", endpoint)
        meters = start_metrics("probe")
        meters.get_meter("t").create_counter("fairlead.probe.things").add(3)
        stop_metrics(meters, seconds=200)
        server.shutdown()
        thread.join()
        (body,) = server.bodies  # type: ignore[attr-defined]
    assert b"fairlead.probe.things" in body
    assert b"probe" in body


def test_without_an_endpoint_counters_cost_no_thread() -> None:
    before = threading.active_count()
    meters = start_metrics("probe")
    meters.get_meter("t").create_counter("fairlead.probe.things").add(3)
    assert threading.active_count() == before
    stop_metrics(meters)
