"""The spans of a session are in the trace of the launch that it leads to, linked to who asked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult

from signalling.association import Want
from signalling.session_errors import SessionNotFound
from signalling.session_tracing import ATTRIBUTES, TracedSessions, UntracedTargets
from tests.fakes.session_house import GATEWAY, HELD, House, make_house
from tests.fakes.sessions import ANSWER, OFFER, candidate

TRACE, RUN = "1" * 32, "b7ad6b7169203331"
RESTART = OFFER.replace("abcd", "efgh")
NAME = "-_" + "A" * 20

pytestmark = pytest.mark.asyncio


class Traced:
    """A replica whose sessions are traced."""

    def __init__(self, trace: str, sampler: Sampler | None = None) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.house: House = make_house()
        self.house.launches.trace = trace
        self.sessions = TracedSessions(
            sessions=self.house.broker,
            tracer_provider=self.provider,
            trace_of=self.house.broker.trace_of,
            trace_of_launch=self.house.launches.traceparent,
        )

    async def negotiate(self) -> None:
        """Open a session by its client's name, and take every step of it."""
        association, _ = await self.house.connect(can_trickle=True)
        opened = await self.sessions.open(
            "default", HELD.launch_id, "trickle", None, conversation_id=NAME
        )
        for number, asked in enumerate((self.sessions.offer, self.sessions.restart), start=1):
            offer = OFFER if number == 1 else RESTART
            asking = asyncio.create_task(asked("default", NAME, offer))
            assert isinstance(await association.next_order(), Want)
            await self.house.desk.take_answer(
                GATEWAY, opened.session_id, ANSWER, round_number=number
            )
            await asking
        await self.sessions.add_candidates("default", NAME, [candidate(1)], ended=True)
        async with aclosing(self.sessions.watch("default", NAME, 0)) as watching:
            await anext(watching)

    def spans(self) -> Sequence[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name != "rest.POST"]


def trace_of(span: ReadableSpan) -> str:
    context = span.get_span_context()
    return f"{context.trace_id:032x}" if context else ""


NAMES = ["session.open", "session.offer", "session.restart", "candidates.flush", "session.watch"]


async def test_all_steps_are_in_the_trace_of_the_launch_and_linked_to_who_asked() -> None:
    it = Traced(f"00-{TRACE}-{RUN}-01")
    with it.provider.get_tracer("test").start_as_current_span("rest.POST") as asking:
        await it.negotiate()
    assert [span.name for span in it.spans()] == NAMES
    for span in it.spans():
        assert trace_of(span) == TRACE
        assert [link.context.span_id for link in span.links] == [asking.get_span_context().span_id]
        assert set(span.attributes or {}) <= set(ATTRIBUTES)


async def test_a_session_without_a_launch_is_in_the_trace_of_who_asked() -> None:
    it = Traced("")
    with it.provider.get_tracer("test").start_as_current_span("rest.POST") as asking:
        opened = await it.house.connect()
        await it.sessions.open("default", HELD.launch_id, "complete", None)
        await it.house.switchboard.disconnect(opened[0])
    (span,) = it.spans()
    assert trace_of(span) == f"{asking.get_span_context().trace_id:032x}"


async def test_a_tenant_writes_into_no_other_tenants_trace() -> None:
    it = Traced(f"00-{TRACE}-{RUN}-01")
    await it.house.connect()
    opened = await it.sessions.open("default", HELD.launch_id, "complete", None)
    with pytest.raises(SessionNotFound):
        await it.sessions.offer("other", opened.session_id, OFFER)
    _, refused = it.spans()
    assert trace_of(refused) != TRACE


async def test_what_is_asked_for_every_few_seconds_leaves_no_span() -> None:
    traced = Traced("")
    tracer = traced.provider.get_tracer("test")

    class Calling:
        """Asks as a gRPC client does, with a span of its own."""

        async def is_gone(self, tenant: str, launch_id: str) -> bool:
            with tracer.start_as_current_span("rpc"):
                return (tenant, launch_id) == ("default", HELD.launch_id)

    assert await UntracedTargets(Calling()).is_gone("default", HELD.launch_id)
    assert traced.exporter.get_finished_spans() == ()
    await Calling().is_gone("default", HELD.launch_id)
    assert [span.name for span in traced.exporter.get_finished_spans()] == ["rpc"]


class Asked(Sampler):
    """Samples nothing, and counts how often it is asked."""

    def __init__(self) -> None:
        self.times = 0

    def should_sample(self, *_: object, **__: object) -> SamplingResult:
        self.times += 1
        return SamplingResult(Decision.DROP)

    def get_description(self) -> str:
        return "none"


@pytest.mark.parametrize("trace", ["", f"00-{TRACE}-{RUN}-00"])
async def test_a_trace_that_is_not_sampled_costs_no_spans(trace: str) -> None:
    asked = Asked()
    it = Traced(trace, asked)
    association, _ = await it.house.connect(can_trickle=True)
    with it.provider.get_tracer("test").start_as_current_span("rest.POST"):
        opened = await it.sessions.open("default", HELD.launch_id, "trickle", None)
        asking = asyncio.create_task(it.sessions.offer("default", opened.session_id, OFFER))
        assert isinstance(await association.next_order(), Want)
        await it.house.desk.take_answer(GATEWAY, opened.session_id, ANSWER)
        await asking
    assert asked.times == 1
    assert it.spans() == []
