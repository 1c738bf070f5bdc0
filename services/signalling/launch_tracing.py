"""The spans of launches: `launch.run` around one launch's work, `launch.place` around the choice of
its host.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from opentelemetry.trace import Span, StatusCode, TracerProvider, format_trace_id

from chassis.errors import FairleadError
from chassis.telemetry import traceparent
from signalling.host import Host
from signalling.launch import Launch
from signalling.placement import Placement
from signalling.snapshot import Source

ATTRIBUTES = (
    "fairlead.launch.id",
    "fairlead.launch.state",
    "fairlead.launch.tenant",
    "fairlead.launch.reason",
    "fairlead.host.id",
)


class OpenRunSpan:
    """The span of a run while it is open."""

    def __init__(self, *, span: Span) -> None:
        self._span = span

    @property
    def trace_id(self) -> str:
        """Return the trace that the run belongs to, as 32 hexadecimal digits; empty without one."""
        context = self._span.get_span_context()
        return format_trace_id(context.trace_id) if context.is_valid else ""

    @property
    def traceparent(self) -> str:
        """Return the span (W3C), for what belongs to the launch later; empty without one."""
        return traceparent(self._span)

    def tell(self, launch: Launch) -> None:
        """Note how far the launch has come."""
        self._span.set_attribute("fairlead.launch.state", launch.state.value)
        if launch.failure is not None:
            self._span.set_attribute("fairlead.launch.reason", launch.failure.reason)
            self._span.set_status(StatusCode.ERROR, launch.failure.reason)


class RunSpans:
    """Opens `launch.run`, as a child of the span that the request came with."""

    def __init__(self, *, tracer_provider: TracerProvider) -> None:
        self._tracer = tracer_provider.get_tracer("signalling.launches")

    @contextmanager
    def launch(self, tenant: str, launch_id: str) -> Iterator[OpenRunSpan]:
        """Open the span of a launch's run."""
        attributes = {"fairlead.launch.id": launch_id, "fairlead.launch.tenant": tenant}
        with self._tracer.start_as_current_span(
            "launch.run",
            attributes=attributes,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            yield OpenRunSpan(span=span)


class TracedPlacement:
    """Placement with a span around it."""

    def __init__(self, *, placement: Placement, tracer_provider: TracerProvider) -> None:
        self._placement = placement
        self._tracer = tracer_provider.get_tracer("signalling.launches")

    async def place(
        self,
        tenant: str,
        source: Source | None,
        isolation: str,
        reserved: Mapping[str, int],
        *,
        profile: str = "",
    ) -> Host:
        """Return the host to launch on."""
        with self._tracer.start_as_current_span(
            "launch.place", record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                host = await self._placement.place(
                    tenant, source, isolation, reserved, profile=profile
                )
            except FairleadError as refused:
                span.set_status(StatusCode.ERROR, refused.reason)
                raise
            span.set_attribute("fairlead.host.id", host.host_id)
            return host
