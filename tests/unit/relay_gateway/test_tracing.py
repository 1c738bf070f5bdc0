"""The gateway's spans join the trace that an offer came with."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from errno import ETIMEDOUT
from typing import cast

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from chassis.errors import FairleadError
from chassis.telemetry import traceparent
from relay_gateway.happening import Happening
from relay_gateway.ports import Stream
from relay_gateway.session import PortTimeout, WantedSession
from relay_gateway.tracing import (
    ATTRIBUTES,
    FIRST_RECORDED,
    RECORD_SECONDS,
    TracedCarrier,
    TracedConnector,
    TracedOpener,
)
from tests.fakes.gateway_ports import CarrierFake

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SESSION = WantedSession("ses_a", "v=0", datetime.now(UTC), f"00-{TRACE}-{PARENT}-01")


class RefusingOpener:
    async def open(self, session: WantedSession, port: int, execution_id: str = "") -> Stream:
        await asyncio.sleep(0)
        raise PortTimeout


@pytest.mark.asyncio
async def test_both_spans_are_in_the_offers_trace_with_listed_attributes_only() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    await TracedCarrier(carrier=CarrierFake(), tracer_provider=provider).answer(SESSION, print)
    with pytest.raises(FairleadError):
        await TracedOpener(opener=RefusingOpener(), tracer_provider=provider).open(SESSION, 80)
    offer, opening = exporter.get_finished_spans()
    assert (offer.name, opening.name) == ("session.offer", "channel.open")
    for span in (offer, opening):
        assert span.parent is not None
        assert f"{span.parent.trace_id:032x}" == TRACE
        assert f"{span.parent.span_id:016x}" == PARENT
        assert set(span.attributes or {}) <= set(ATTRIBUTES)
    assert dict(opening.attributes or {}) == {
        "fairlead.session.id": "ses_a",
        "fairlead.channel.port": 80,
        "error.type": "port_timeout",
    }
    assert opening.status.description == "port_timeout"
    assert offer.status.is_ok or offer.status.is_unset


class CountingOpener:
    """Keeps the trace context in which it is asked; port 1 is refused."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def open(self, session: WantedSession, port: int, execution_id: str = "") -> Stream:
        self.asked.append(traceparent())
        if port == 1:
            raise PortTimeout
        return cast(Stream, None)


@pytest.mark.asyncio
async def test_of_many_channels_of_a_session_some_have_spans() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    now, opener = 0.0, CountingOpener()
    traced = TracedOpener(opener=opener, tracer_provider=provider, monotonic=lambda: now)
    for _ in range(1000):
        await traced.open(SESSION, 80)
    assert len(exporter.get_finished_spans()) == FIRST_RECORDED
    assert opener.asked[-1].startswith(f"00-{TRACE}-")
    assert [opener.asked[0][-2:], opener.asked[-1][-2:]] == ["01", "00"]  # sampled, and not
    for _ in range(100):
        with pytest.raises(PortTimeout):
            await traced.open(SESSION, 1)
    failed = exporter.get_finished_spans()[FIRST_RECORDED:]
    assert [span.status.description for span in failed] == ["port_timeout"] * FIRST_RECORDED
    now += RECORD_SECONDS
    await traced.open(SESSION, 80)
    last = exporter.get_finished_spans()[-1]
    unrecorded = 1000 - FIRST_RECORDED + 100
    assert (last.attributes or {})["fairlead.channel.unrecorded"] == unrecorded
    await traced.open(replace(SESSION, session_id="ses_b"), 80)
    assert len(exporter.get_finished_spans()) == 2 * FIRST_RECORDED + 2


@pytest.mark.asyncio
@pytest.mark.parametrize("ends", [False, True])
async def test_a_connection_is_one_span_from_the_offer_to_its_first_path_or_end(ends: bool) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    carrier, happenings = CarrierFake(), list[Happening]()
    traced = TracedCarrier(carrier=carrier, tracer_provider=provider)
    await traced.answer(SESSION, happenings.append)
    made = carrier.made["ses_a"]
    assert [span.name for span in exporter.get_finished_spans()] == ["session.offer"]
    if ends:
        made.end()
    else:
        made.connect()
        made.lose_path()
        made.connect()
        made.end()
    (connecting,) = exporter.get_finished_spans()[1:]
    assert connecting.name == "session.connect"
    assert connecting.parent is not None
    assert f"{connecting.parent.span_id:016x}" == PARENT
    assert set(connecting.attributes or {}) <= set(ATTRIBUTES)
    assert connecting.status.description == ("peer_closed" if ends else None)
    assert len(happenings) == (1 if ends else 4)


@pytest.mark.asyncio
async def test_without_a_trace_a_span_starts_one() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    session = WantedSession("ses_a", "v=0", datetime.now(UTC))
    await TracedCarrier(carrier=CarrierFake(), tracer_provider=provider).answer(session, print)
    (offer,) = exporter.get_finished_spans()
    assert offer.parent is None


class Connector:
    """Takes `seconds` by its own clock to connect, or to fail."""

    def __init__(self, *, seconds: float, fault: Exception | None = None) -> None:
        self._seconds = seconds
        self._fault = fault
        self._now_ns = 0

    def time_ns(self) -> int:
        """Return its clock."""
        return self._now_ns

    async def connect(
        self,
        session: WantedSession,
        host: str,
        port: int,
        make: Callable[[], asyncio.BaseProtocol],
    ) -> None:
        """Let the time pass."""
        self._now_ns += int(self._seconds * 1e9)
        if self._fault is not None:
            raise self._fault

    dial_seconds = 1.0

    def judge(self, session: WantedSession, host: str, port: int) -> str | None:
        """Raise what is in the way of an address."""
        if self._fault is not None:
            raise self._fault
        return host

    async def resolve(self, session: WantedSession, host: str, port: int) -> Sequence[str]:
        """Let the time pass."""
        await self.connect(session, host, port, asyncio.Protocol)
        return [host]

    def dialled(
        self, session: WantedSession, host: str, port: int, error: int, seconds: float
    ) -> FairleadError | None:
        """Let the time pass that another has taken."""
        self._now_ns += int(seconds * 1e9)
        return PortTimeout() if error else None


@pytest.mark.asyncio
@pytest.mark.parametrize("has_pump", [False, True])
@pytest.mark.parametrize(
    ("seconds", "fault", "said"),
    [
        (0.049, None, None),
        (0.05, None, {}),
        (0.001, PortTimeout(), {"error.type": "port_timeout"}),
        (0.001, RuntimeError("a fault"), {}),
    ],
)
async def test_a_tunnels_connections_have_a_span_when_they_fail_or_are_slow(
    seconds: float, fault: Exception | None, said: dict[str, str] | None, has_pump: bool
) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    connector = Connector(seconds=seconds, fault=fault)
    traced = TracedConnector(
        connector=connector, tracer_provider=provider, time_ns=connector.time_ns
    )
    with pytest.raises(type(fault)) if fault is not None else contextlib.nullcontext():
        if not has_pump:
            await traced.connect(SESSION, "host", 80, asyncio.Protocol)
        elif isinstance(fault, PortTimeout):
            failure = traced.dialled(SESSION, "host", 80, ETIMEDOUT, seconds)
            assert failure is not None
            raise failure
        else:
            await traced.resolve(SESSION, "host", 80)  # which is no dial, and told when it fails
            assert not exporter.get_finished_spans()
            assert traced.dialled(SESSION, "host", 80, 0, seconds) is None
    spans = exporter.get_finished_spans()
    if said is None:
        assert not spans
        return
    (span,) = spans
    assert span.name == "channel.dial"
    assert span.status.is_ok == (fault is None) or span.status.is_unset
    assert span.parent is not None
    assert f"{span.parent.trace_id:032x}" == TRACE
    assert (span.end_time or 0) - (span.start_time or 0) == int(seconds * 1e9)
    named = {"fairlead.session.id": "ses_a", "fairlead.channel.port": 80}
    assert dict(span.attributes or {}) == named | said


@pytest.mark.asyncio
async def test_a_target_that_a_pump_may_not_dial_has_a_span() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    connector = Connector(seconds=0.0, fault=PortTimeout())
    traced = TracedConnector(connector=connector, tracer_provider=provider)
    with pytest.raises(FairleadError):
        traced.judge(SESSION, "host", 80)
    (span,) = exporter.get_finished_spans()
    assert span.status.description == "port_timeout"
