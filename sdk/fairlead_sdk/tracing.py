"""Client spans, where the program that uses the SDK has configured OpenTelemetry, and else nothing.

A span of a client stands in the trace of the service that it asked, below the span that the answer
names (`traceresponse`, W3C Trace Context Level 2), and links to the caller's own span. The front
door continues no trace that a client names, as that could be another tenant's. Spans are made when
they end, with the time when they began.

This is the one module of the SDK that knows OpenTelemetry. The SDK does not depend on it: who has
configured it has imported it.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_FLUSH_MILLISECONDS: Final = 2000

_current: ContextVar[ClientSpan | None] = ContextVar("fairlead_client_span", default=None)


class ClientSpan:
    """What a client does, from now until `end`."""

    def __init__(self, name: str, attributes: Mapping[str, str | int]) -> None:
        self._name = name
        self._attributes = dict(attributes)
        self._began_ns = time.time_ns()
        self._is_over = False
        outer = _current.get()
        self._parent: str = outer._parent if outer is not None else ""

    def note(self, name: str, value: str | int) -> None:
        """Set an attribute."""
        self._attributes[name] = value

    def hear(self, traceresponse: str) -> None:
        """Take the trace of the first answer that names one."""
        if not self._parent and _TRACEPARENT.fullmatch(traceresponse):
            self._parent = traceresponse

    @contextmanager
    def current(self) -> Iterator[None]:
        """Have the answers that come in the block be heard."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def end(self, error: BaseException | None = None) -> None:
        """Export it, once: where OpenTelemetry is configured and a service has answered."""
        if self._is_over or not self._parent or "opentelemetry.trace" not in sys.modules:
            return
        self._is_over = True
        from opentelemetry import trace
        from opentelemetry.context import Context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        caller = trace.get_current_span().get_span_context()
        span = trace.get_tracer("fairlead_sdk").start_span(
            self._name,
            context=TraceContextTextMapPropagator().extract(
                {"traceparent": self._parent}, Context()
            ),
            kind=trace.SpanKind.CLIENT,
            attributes=self._attributes,
            links=[trace.Link(caller)] if caller.is_valid else None,
            start_time=self._began_ns,
        )
        if error is not None:
            reason = getattr(error, "reason", "") or type(error).__name__
            span.set_attribute("error.type", reason)
            span.set_status(trace.StatusCode.ERROR, reason)
        span.end()


def begin_span(name: str, **attributes: str | int) -> ClientSpan:
    """Begin what a generator ends later; attributes are `fairlead.<noun>.<field>`, with `_`."""
    named = {f"fairlead.{key.replace('_', '.', 1)}": value for key, value in attributes.items()}
    return ClientSpan(name, named)


@contextmanager
def client_span(name: str, **attributes: str | int) -> Iterator[ClientSpan]:
    """Make a span of the block."""
    span = begin_span(name, **attributes)
    try:
        with span.current():
            yield span
    except BaseException as error:
        span.end(error)
        raise
    span.end()


def heard(traceresponse: str) -> None:
    """Note the trace that an answer names."""
    span = _current.get()
    if span is not None and traceresponse:
        span.hear(traceresponse)


def trace_headers() -> dict[str, str]:
    """Return the header by which a service links to the caller's span; nothing without one."""
    if "opentelemetry.trace" not in sys.modules:
        return {}
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier


@contextmanager
def exported_spans() -> Iterator[None]:
    """Export the spans of the block to where OTEL_EXPORTER_OTLP_ENDPOINT says.

    Needs the extra `fairlead-sdk[otel]`; without it there are none.
    """
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        print(  # noqa: T201 - nobody else says it
            "fairlead: warning: spans need more: pip install 'fairlead-sdk[otel]'.", file=sys.stderr
        )
        yield
        return
    name = os.environ.get("OTEL_SERVICE_NAME") or "fairlead"
    provider = TracerProvider(
        resource=Resource.create({SERVICE_NAME: name}), shutdown_on_exit=False
    )
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(timeout=2)))
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:
        provider.force_flush(_FLUSH_MILLISECONDS)
