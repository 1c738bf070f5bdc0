"""The gateway's spans: `session.offer` and `session.restart` around an answer, `session.connect`
from an offer to the path that carries, `channel.open` around an opening, `channel.dial` around a
connection to a host; in tunnels around those that failed or were slow.

A session may open thousands of channels: of its `channel.*` spans only the first ones and then one
now and then are recorded, and each says how many before it were not.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import (
    NonRecordingSpan,
    Span,
    SpanContext,
    StatusCode,
    TraceFlags,
    TracerProvider,
    get_current_span,
    use_span,
)

from chassis.errors import FairleadError
from chassis.telemetry import remote_context
from relay_gateway.happening import Ended, Happening, PathUp
from relay_gateway.ports import (
    Association,
    Carrier,
    ChannelOpening,
    Connecting,
    Dialling,
    Judging,
    Stream,
)
from relay_gateway.session import WantedSession

SLOW_SECONDS = 0.05
"""A tunnel's connection that took so long has a span."""
ATTRIBUTES = (
    "fairlead.session.id",
    "fairlead.channel.port",
    "fairlead.channel.unrecorded",
    "error.type",
)
FIRST_RECORDED = 32
"""So many openings of a session have spans, and so many that failed; later ones share a rate."""
RECORD_SECONDS = 10.0
_MOST_SESSIONS = 4096

Monotonic = Callable[[], float]


@dataclass(slots=True)
class _Budget:
    """The spans that a session may have now: a token bucket."""

    left: float
    at: float
    unrecorded: int = 0


class ChannelSampler:
    """Chooses which openings of a session have a span."""

    def __init__(self, monotonic: Monotonic) -> None:
        self._monotonic = monotonic
        self._budgets: OrderedDict[str, _Budget] = OrderedDict()

    def take(self, session_id: str) -> int | None:
        """Return how many were not recorded since the last one that was, or None: this one is not
        to be recorded either.
        """
        now = self._monotonic()
        budget = self._budgets.setdefault(session_id, _Budget(FIRST_RECORDED, now))
        self._budgets.move_to_end(session_id)
        while len(self._budgets) > _MOST_SESSIONS:
            self._budgets.popitem(last=False)
        refill = (now - budget.at) / RECORD_SECONDS
        budget.left, budget.at = min(budget.left + refill, FIRST_RECORDED), now
        if budget.left < 1.0:
            budget.unrecorded += 1
            return None
        budget.left -= 1.0
        unrecorded, budget.unrecorded = budget.unrecorded, 0
        return unrecorded


class _Spans:
    def __init__(
        self, tracer_provider: TracerProvider, *, monotonic: Monotonic = time.monotonic
    ) -> None:
        self._tracer = tracer_provider.get_tracer("relay_gateway")
        self._ids = RandomIdGenerator()
        self._openings = ChannelSampler(monotonic)
        self._failures = ChannelSampler(monotonic)

    @contextmanager
    def open_channel(self, name: str, session: WantedSession, port: int) -> Iterator[None]:
        """Open a span if it is to be recorded; otherwise nobody else records one below it, and one
        that fails gets a span afterwards.
        """
        unrecorded = self._openings.take(session.session_id)
        if unrecorded is not None:
            with self.open(name, session, **_channel(port, unrecorded)):
                yield
            return
        began_ns = time.time_ns()
        parent = get_current_span(remote_context(session.traceparent)).get_span_context()
        trace_id = parent.trace_id or self._ids.generate_trace_id()
        span_id = parent.span_id or self._ids.generate_span_id()
        unsampled = SpanContext(trace_id, span_id, True, TraceFlags.get_default())
        try:
            with use_span(NonRecordingSpan(unsampled), record_exception=False):
                yield
        except Exception as error:
            self.note_failure(name, session, port, began_ns, time.time_ns(), error)
            raise

    def note_failure(
        self,
        name: str,
        session: WantedSession,
        port: int,
        began_ns: int,
        ended_ns: int,
        error: Exception | None,
    ) -> None:
        """Record an opening that failed, or was slow, when it is over."""
        unrecorded = self._failures.take(session.session_id)
        if unrecorded is None:
            return
        span = self.begin(name, session, began_ns=began_ns, **_channel(port, unrecorded))
        if error is not None:
            _fail(span, error)
        span.end(ended_ns)

    @contextmanager
    def open(self, name: str, session: WantedSession, **attributes: int) -> Iterator[None]:
        """Open a span in the trace that the session's offer came with."""
        with self._tracer.start_as_current_span(
            name,
            context=remote_context(session.traceparent),
            attributes=_attributes(session, attributes),
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except Exception as error:
                _fail(span, error)
                raise

    def begin(
        self, name: str, session: WantedSession, *, began_ns: int | None = None, **attributes: int
    ) -> Span:
        """Return a span that is open until it is ended; one that never is, is not exported."""
        return self._tracer.start_span(
            name,
            context=remote_context(session.traceparent),
            attributes=_attributes(session, attributes),
            start_time=began_ns,
        )


def _channel(port: int, unrecorded: int) -> dict[str, int]:
    return {"port": port, **({"unrecorded": unrecorded} if unrecorded else {})}


def _attributes(session: WantedSession, channel: Mapping[str, int]) -> dict[str, str | int]:
    named = {f"fairlead.channel.{field}": value for field, value in channel.items()}
    return {"fairlead.session.id": session.session_id, **named}


def _fail(span: Span, error: BaseException) -> None:
    if isinstance(error, FairleadError):
        span.set_attribute("error.type", error.reason)
        span.set_status(StatusCode.ERROR, error.reason)
    else:
        span.set_status(StatusCode.ERROR, "internal")


class TracedCarrier:
    """A carrier whose answers and first connections are spans."""

    def __init__(self, *, carrier: Carrier, tracer_provider: TracerProvider) -> None:
        self._carrier = carrier
        self._spans = _Spans(tracer_provider)

    async def answer(self, wanted: WantedSession, take: Callable[[Happening], None]) -> Association:
        """Answer an offer; the span of its connection ends with the first path, or without one."""
        connecting = self._spans.begin("session.connect", wanted)

        def taken(happening: Happening) -> None:
            if connecting.is_recording() and isinstance(happening, PathUp | Ended):
                if isinstance(happening, Ended):
                    connecting.set_attribute("error.type", happening.reason.value)
                    connecting.set_status(StatusCode.ERROR, happening.reason.value)
                connecting.end()
            take(happening)

        with self._spans.open("session.offer", wanted):
            return await self._carrier.answer(wanted, taken)

    async def restart(self, association: Association, wanted: WantedSession) -> str:
        """Answer the offer of another round."""
        with self._spans.open("session.restart", wanted):
            return await self._carrier.restart(association, wanted)


class TracedOpener:
    """An opener whose openings are spans; the bytes that follow are none."""

    def __init__(
        self,
        *,
        opener: ChannelOpening,
        tracer_provider: TracerProvider,
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        self._opener = opener
        self._spans = _Spans(tracer_provider, monotonic=monotonic)

    async def open(self, session: WantedSession, port: int, execution_id: str = "") -> Stream:
        """Connect to a port of the session's sandbox, or to a terminal in it."""
        with self._spans.open_channel("channel.open", session, port):
            return await self._opener.open(session, port, execution_id)


class TracedDialler:
    """A dialler whose connections are spans until they are made; they do not name the host."""

    def __init__(self, *, dialler: Dialling, tracer_provider: TracerProvider) -> None:
        self._dialler = dialler
        self._spans = _Spans(tracer_provider)

    async def dial(self, session: WantedSession, host: str, port: int) -> Stream:
        """Connect to a host."""
        with self._spans.open_channel("channel.dial", session, port):
            return await self._dialler.dial(session, host, port)


class _Connector(Connecting, Judging, Protocol):
    """What connects, or judges for another who does."""


class TracedConnector:
    """As a traced dialler, for channels of tunnels; `time_ns` gives Unix time.

    A tunnel may have thousands a second: those that were connected at once have no span.
    """

    def __init__(
        self,
        *,
        connector: _Connector,
        tracer_provider: TracerProvider,
        time_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._connector = connector
        self._spans = _Spans(tracer_provider)
        self._time_ns = time_ns

    async def connect(
        self,
        session: WantedSession,
        host: str,
        port: int,
        make: Callable[[], asyncio.BaseProtocol],
    ) -> None:
        """Connect what `make` returns to a host."""
        began_ns = self._time_ns()
        try:
            await self._connector.connect(session, host, port, make)
        except Exception as error:
            self._note(session, port, began_ns, error)
            raise
        self._note(session, port, began_ns, None)

    @property
    def dial_seconds(self) -> float:
        """How long the name and the connection together may take."""
        return self._connector.dial_seconds

    def judge(self, session: WantedSession, host: str, port: int) -> str | None:
        """Return the address that a host is, or None for a name that may be resolved."""
        try:
            return self._connector.judge(session, host, port)
        except Exception as error:
            self._note(session, port, self._time_ns(), error)
            raise

    async def resolve(self, session: WantedSession, host: str, port: int) -> Sequence[str]:
        """Return those addresses of a host that may be dialled; the span of a dial is to come."""
        began_ns = self._time_ns()
        try:
            return await self._connector.resolve(session, host, port)
        except Exception as error:
            self._note(session, port, began_ns, error)
            raise

    def dialled(
        self, session: WantedSession, host: str, port: int, error: int, seconds: float
    ) -> FairleadError | None:
        """Note a connection that failed or was slow, as it ends; return what stands in the way."""
        failure = self._connector.dialled(session, host, port, error, seconds)
        self._note(session, port, self._time_ns() - round(seconds * 1e9), failure)
        return failure

    def _note(
        self, session: WantedSession, port: int, began_ns: int, error: Exception | None
    ) -> None:
        ended_ns = self._time_ns()
        if error is None and ended_ns - began_ns < SLOW_SECONDS * 1e9:
            return
        self._spans.note_failure("channel.dial", session, port, began_ns, ended_ns, error)
