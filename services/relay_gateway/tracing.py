"""The gateway's spans: `session.offer` and `session.restart` around an answer, `session.connect`
from an offer to the path that carries, `channel.open` around an opening, `channel.dial` around a
connection to a host.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from opentelemetry.trace import Span, StatusCode, TracerProvider

from chassis.errors import FairleadError
from chassis.telemetry import remote_context
from relay_gateway.happening import Ended, Happening, PathUp
from relay_gateway.ports import Association, Carrier, ChannelOpening, Connecting, Dialling, Stream
from relay_gateway.session import WantedSession

ATTRIBUTES = ("fairlead.session.id", "fairlead.channel.port", "error.type")


class _Spans:
    def __init__(self, tracer_provider: TracerProvider) -> None:
        self._tracer = tracer_provider.get_tracer("relay_gateway")

    @contextmanager
    def open(self, name: str, session: WantedSession, **attributes: int) -> Iterator[None]:
        """Open a span in the trace that the session's offer came with."""
        with self._tracer.start_as_current_span(
            name,
            context=remote_context(session.traceparent),
            attributes={
                "fairlead.session.id": session.session_id,
                **{f"fairlead.channel.{field}": value for field, value in attributes.items()},
            },
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except FairleadError as error:
                span.set_attribute("error.type", error.reason)
                span.set_status(StatusCode.ERROR, error.reason)
                raise
            except Exception:
                span.set_status(StatusCode.ERROR, "internal")
                raise

    def begin(self, name: str, session: WantedSession) -> Span:
        """Return a span that is open until it is ended; one that never is, is not exported."""
        return self._tracer.start_span(
            name,
            context=remote_context(session.traceparent),
            attributes={"fairlead.session.id": session.session_id},
        )


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

    def __init__(self, *, opener: ChannelOpening, tracer_provider: TracerProvider) -> None:
        self._opener = opener
        self._spans = _Spans(tracer_provider)

    async def open(self, session: WantedSession, port: int, execution_id: str = "") -> Stream:
        """Connect to a port of the session's sandbox, or to a terminal in it."""
        with self._spans.open("channel.open", session, port=port):
            return await self._opener.open(session, port, execution_id)


class TracedDialler:
    """A dialler whose connections are spans until they are made; they do not name the host."""

    def __init__(self, *, dialler: Dialling, tracer_provider: TracerProvider) -> None:
        self._dialler = dialler
        self._spans = _Spans(tracer_provider)

    async def dial(self, session: WantedSession, host: str, port: int) -> Stream:
        """Connect to a host."""
        with self._spans.open("channel.dial", session, port=port):
            return await self._dialler.dial(session, host, port)


class TracedConnector:
    """As a traced dialler, for channels of tunnels."""

    def __init__(self, *, connector: Connecting, tracer_provider: TracerProvider) -> None:
        self._connector = connector
        self._spans = _Spans(tracer_provider)

    async def connect(
        self,
        session: WantedSession,
        host: str,
        port: int,
        make: Callable[[], asyncio.BaseProtocol],
    ) -> None:
        """Connect what `make` returns to a host."""
        with self._spans.open("channel.dial", session, port=port):
            await self._connector.connect(session, host, port, make)
