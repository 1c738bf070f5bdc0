"""The spans of this room, sandbox.create, sandbox.bind, sandbox.release and execution.run, and its
counter.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.metrics import Meter
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from chassis.errors import FairleadError
from sandbox_worker.execution import Exit, ExitReason
from sandbox_worker.held_sandbox import SandboxOrder
from sandbox_worker.network.decision import Reason
from sandbox_worker.sandbox import Sandbox
from sandbox_worker.sandboxes import Sandboxes

_PROPAGATOR = TraceContextTextMapPropagator()


class EgressCounter:
    """Counts what was decided about connections of sandboxes, by reason."""

    def __init__(self, *, meter: Meter) -> None:
        self._decisions = meter.create_counter(
            "fairlead.egress.decisions", description="Connections of sandboxes, by reason."
        )

    def count(self, reason: Reason) -> None:
        """Count one."""
        self._decisions.add(1, {"reason": reason.value})


class TracedSandboxes:
    """Sandboxes whose changes of state are spans."""

    def __init__(self, *, sandboxes: Sandboxes, tracer_provider: TracerProvider) -> None:
        self._sandboxes = sandboxes
        self._tracer = tracer_provider.get_tracer(__name__)

    async def create(self, *, tenant: str, key: str, order: SandboxOrder) -> Sandbox:
        """Create within `sandbox.create`."""
        with self._span("sandbox.create") as span:
            sandbox = await self._sandboxes.create(tenant=tenant, key=key, order=order)
            span.set_attribute("fairlead.sandbox.id", sandbox.sandbox_id)
            span.set_attribute("fairlead.sandbox.isolation", sandbox.isolation)
            return sandbox

    async def bind(self, *, tenant: str, sandbox_id: str, workspace_id: str) -> Sandbox:
        """Bind within `sandbox.bind`."""
        with self._span("sandbox.bind") as span:
            span.set_attribute("fairlead.sandbox.id", sandbox_id)
            span.set_attribute("fairlead.workspace.id", workspace_id)
            return await self._sandboxes.bind(
                tenant=tenant, sandbox_id=sandbox_id, workspace_id=workspace_id
            )

    async def release(self, *, tenant: str, sandbox_id: str = "", key: str = "") -> bool:
        """Release within `sandbox.release`."""
        with self._span("sandbox.release") as span:
            if sandbox_id:
                span.set_attribute("fairlead.sandbox.id", sandbox_id)
            released = await self._sandboxes.release(tenant=tenant, sandbox_id=sandbox_id, key=key)
            span.set_attribute("fairlead.sandbox.released", released)
            return released

    @contextmanager
    def _span(self, name: str) -> Iterator[Span]:
        with self._tracer.start_as_current_span(
            name, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield span
            except FairleadError as error:
                _fail(span, error)
                raise


class TracedRun:
    """The span of one execution, from before its start to its exit."""

    def __init__(self, *, span: Span) -> None:
        self._span = span

    @property
    def traceparent(self) -> str:
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, trace.set_span_in_context(self._span))
        return carrier.get("traceparent", "")

    def fail(self, error: Exception) -> None:
        _fail(self._span, error)
        self._span.end()

    def close(self, exit_: Exit) -> None:
        self._span.set_attribute("fairlead.execution.reason", exit_.reason.value)
        if exit_.code is not None:
            self._span.set_attribute("fairlead.execution.code", exit_.code)
        if exit_.signal is not None:
            self._span.set_attribute("fairlead.execution.signal", exit_.signal)
        if exit_.reason is ExitReason.HOST_LOST:
            self._span.set_status(Status(StatusCode.ERROR, exit_.reason.value))
        self._span.end()


class TracedRuns:
    """Opens `execution.run` below whatever span the start runs in."""

    def __init__(self, *, tracer_provider: TracerProvider) -> None:
        self._tracer: Tracer = tracer_provider.get_tracer(__name__)

    def open(self, *, execution_id: str, sandbox_id: str) -> TracedRun:
        return TracedRun(
            span=self._tracer.start_span(
                "execution.run",
                kind=SpanKind.INTERNAL,
                attributes={
                    "fairlead.execution.id": execution_id,
                    "fairlead.sandbox.id": sandbox_id,
                },
            )
        )


def _fail(span: Span, error: Exception) -> None:
    reason = error.reason if isinstance(error, FairleadError) else "internal"
    span.set_attribute("error.type", reason)
    span.set_status(Status(StatusCode.ERROR, reason))
