"""Starts tracing and metrics for a room and says which trace is active; rooms name spans and
counters in `tracing.py`.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import requests
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_PROPAGATOR = TraceContextTextMapPropagator()
_SCHEDULE_MILLISECONDS = 200.0
_FLUSH_SECONDS = 2.0
_EXPORTER_LOGGERS = (
    "opentelemetry.exporter.otlp.common.http",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.sdk._shared_internal",
)


class OncePerMinute(logging.Filter):
    """Lets one warning a minute pass: a collector that is away must not fill the log."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._next = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        if self._now() < self._next:
            return False
        self._next = self._now() + 60.0
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        return True


def start_telemetry(room: str) -> TracerProvider:
    """Make the room's tracer provider, with an OTLP/HTTP exporter when an endpoint is set.

    The endpoint is OTEL_EXPORTER_OTLP_ENDPOINT. Sampling follows OTEL_TRACES_SAMPLER (default:
    parent-based, always on). What is still queued when the process exits is flushed for at most two
    seconds.
    """
    propagate.set_global_textmap(_PROPAGATOR)
    provider = TracerProvider(
        resource=Resource.create({"service.name": room}), shutdown_on_exit=False
    )
    endpoint = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or os.environ.get(
        "OTEL_EXPORTER_OTLP_ENDPOINT"
    )
    if endpoint:
        quiet = OncePerMinute()
        for name in _EXPORTER_LOGGERS:
            logging.getLogger(name).addFilter(quiet)
        provider.add_span_processor(
            BatchSpanProcessor(
                OTLPSpanExporter(session=_session(endpoint)),
                schedule_delay_millis=float(
                    os.environ.get("OTEL_BSP_SCHEDULE_DELAY") or _SCHEDULE_MILLISECONDS
                ),
            )
        )
        atexit.register(stop_telemetry, provider)
    return provider


def start_metrics(room: str) -> MeterProvider:
    """Make the room's meter provider, which exports over OTLP/HTTP once a minute when
    OTEL_EXPORTER_OTLP_METRICS_ENDPOINT is set; the local stack's own store takes spans only.
    """
    readers: list[MetricReader] = []
    endpoint = os.environ.get("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
    if endpoint:
        quiet = OncePerMinute()
        for name in _EXPORTER_LOGGERS:
            logging.getLogger(name).addFilter(quiet)
        readers.append(
            PeriodicExportingMetricReader(OTLPMetricExporter(session=_session(endpoint)))
        )
    return MeterProvider(
        metric_readers=readers,
        resource=Resource.create({"service.name": room}),
        shutdown_on_exit=False,
    )


def stop_metrics(provider: MeterProvider, seconds: float = _FLUSH_SECONDS) -> None:
    """Flush and shut `provider` down, waiting at most `seconds`, collector or not."""
    _stop(provider.shutdown, seconds)


def stop_telemetry(provider: TracerProvider, seconds: float = _FLUSH_SECONDS) -> None:
    """Flush and shut `provider` down, waiting at most `seconds`, collector or not."""
    _stop(provider.shutdown, seconds)


def _stop(shut_down: Callable[[], None], seconds: float) -> None:
    worker = threading.Thread(target=shut_down, name="telemetry-flush", daemon=True)
    worker.start()
    worker.join(seconds)


def current_ids() -> tuple[str, str]:
    """Return the trace id and span id of the active span in hexadecimal, or two empty strings."""
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return "", ""
    return trace.format_trace_id(context.trace_id), trace.format_span_id(context.span_id)


def current_trace_id() -> str:
    """Return the active trace id as 32 hexadecimal digits, or an empty string."""
    return current_ids()[0]


def traceparent(span: trace.Span | None = None) -> str:
    """Return a span, else the active one, as a W3C `traceparent` value, or an empty string."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, None if span is None else trace.set_span_in_context(span))
    return carrier.get("traceparent", "")


def remote_context(traceparent: str) -> Context:
    """Return the context that continues a W3C `traceparent`; an empty one when it is malformed."""
    return _PROPAGATOR.extract({"traceparent": traceparent} if traceparent else {}, Context())


def links_to(caller: Context) -> list[trace.Link]:
    """Return the link to a caller whose trace is not continued; none when it has no trace."""
    found = trace.get_current_span(caller).get_span_context()
    return [trace.Link(found)] if found.is_valid else []


def _session(endpoint: str) -> requests.Session:
    session = requests.Session()
    # A proxy from the environment cannot reach this machine's loopback.
    session.trust_env = urlsplit(endpoint).hostname not in ("127.0.0.1", "localhost", "::1")
    return session
