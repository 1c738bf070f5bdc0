"""What the spans of a negotiation take where none is sampled."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import cast

import psutil
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from benchmarks.local_stack import local_stack
from benchmarks.recording import QUICK, Recording
from benchmarks.sessions import whole
from benchmarks.sessions.caller import rate
from benchmarks.sessions.front import CONNECTIONS, Negotiations, stub_gateway
from chassis.telemetry import traceparent
from signalling.session import Session
from signalling.session_ports import Sessions
from signalling.session_tracing import TracedSessions
from signalling.tracing import HttpTracing

_ROUNDS = 3 if QUICK else 15
_IN_A_ROUND = 300
_SECONDS = 1.0 if QUICK else 8.0
_SESSION = Session("ses_", "default", "lch_", "gtw_", datetime.now(UTC), datetime.now(UTC))


class _AtOnce:
    """Sessions that do nothing but ask for the traceparent that an offer is kept with."""

    async def open(self, *_: object, **__: object) -> Session:
        return _SESSION

    async def offer(self, *_: object) -> Session:
        traceparent()
        return _SESSION


async def _receive() -> Message:
    return {"type": "http.disconnect"}


async def _send(_: Message) -> None:
    return


def _negotiation(
    traced: Callable[[ASGIApp], ASGIApp], sessions: Sessions
) -> Callable[[], Awaitable[None]]:
    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        match scope["step"]:
            case "open":
                await sessions.open("default", "lch_", "complete", None)
            case "offer":
                await sessions.offer("default", "ses_", "")
        await send({"type": "http.response.start", "status": 200, "headers": []})

    app = traced(served)

    async def once() -> None:
        for step in ("open", "offer", "close"):
            scope = {"type": "http", "path": "/v1/", "method": "POST", "headers": [], "step": step}
            await app(scope, _receive, _send)

    return once


async def _seconds(once: Callable[[], Awaitable[None]]) -> float:
    """Return the processor time of one call, the smallest of some rounds."""
    found = []
    for _ in range(_ROUNDS):
        begun = time.process_time()
        for _ in range(_IN_A_ROUND):
            await once()
        found.append((time.process_time() - begun) / _IN_A_ROUND)
    return min(found)


async def _negotiation_seconds() -> float:
    """Return signalling's processor time for a negotiation, with sampling off."""
    heartbeat = {"FAIRLEAD_SIGNALLING_GATEWAY_HEARTBEAT_SECONDS": "1"}
    with local_stack(OTEL_TRACES_SAMPLER="always_off", **heartbeat) as stack:
        async with whole.held_launch(stack) as launch, stub_gateway(stack):
            process = psutil.Process(stack.pids["signalling"])
            negotiations = Negotiations(launch_id=launch.launch_id)
            before, begun = process.cpu_times(), time.perf_counter()
            per_second = await rate(
                stack.url,
                negotiations.whole,
                api_key=stack.api_key,
                connections=CONNECTIONS,
                seconds=_SECONDS,
            )
            done = per_second * (time.perf_counter() - begun)
            after = process.cpu_times()
            return (after.user + after.system - before.user - before.system) / done


async def sampling_off(recording: Recording) -> None:
    """Measure the spans of a negotiation as a share of it, with sampling off."""
    provider = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    plain = cast(Sessions, _AtOnce())
    traced = TracedSessions(
        sessions=plain,
        tracer_provider=provider,
        trace_of=lambda _tenant, _session: "",
        trace_of_launch=lambda _tenant, _launch: "",
    )
    without = await _seconds(_negotiation(lambda app: app, plain))
    with_spans = await _seconds(
        _negotiation(lambda app: HttpTracing(app, tracer_provider=provider), traced)
    )
    whole_seconds = await _negotiation_seconds()
    recording.metrics["negotiation_cpu_ms"] = round(whole_seconds * 1000, 2)
    share = (with_spans - without) / whole_seconds
    recording.metrics["sampling_off_cost_pct"] = round(100 * share, 2)
    recording.notes.append(
        "sampling_off_cost_pct: processor time of the spans of a negotiation where none is sampled,"
        " of negotiation_cpu_ms, which is signalling's for a whole one"
    )
