"""A trace as a waterfall: one line a span, indented by parent, bars to scale.

The calls between rooms are left out unless they failed: what they cost is the gap between the bars
above and below. `-o json` has every span.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import datetime

from fairlead_sdk.cli.ticks import shown_seconds
from fairlead_sdk.records import Span, Trace

WHOLE_SECONDS = 3.0
_PAUSE_SECONDS = 0.1
_COLOURS = ("36", "33", "35", "32", "34", "31")
_PARTS = " ▏▎▍▌▋▊▉█"
_LONGEST_NAME = 48
_LEAST_BAR = 16


async def whole_trace(
    read: Callable[[], Awaitable[Trace]], *, seconds: float = WHOLE_SECONDS
) -> Trace:
    """Read a trace until it is whole, or `seconds` have passed: rooms export their spans late."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while True:
        trace = await read()
        if trace.is_whole or loop.time() >= end:
            return trace
        await asyncio.sleep(_PAUSE_SECONDS)


def waterfall(trace: Trace, *, columns: int, coloured: bool) -> str:
    """Draw a trace for a terminal of so many columns."""
    if not trace.spans:
        return f"trace {trace.trace_id}: no spans"
    began = min(span.started_at for span in trace.spans)
    ended = max(span.ended_at for span in trace.spans)
    total = max((ended - began).total_seconds(), 1e-6)
    services = list(dict.fromkeys(span.service for span in trace.spans))
    paint = {
        service: _COLOURS[number % len(_COLOURS)] if coloured else ""
        for number, service in enumerate(services)
    }
    rows = [
        ("  " * depth + span.name + (" !" if span.failed else ""), span)
        for span, depth in _in_order(_without_calls(trace.spans))
    ]
    service_width = max(len(service) for service in services)
    name_width = min(_LONGEST_NAME, max(len(name) for name, _ in rows))
    bar_width = max(_LEAST_BAR, columns - name_width - service_width - 13)
    count = f"{len(trace.spans)} span{'' if len(trace.spans) == 1 else 's'}"
    if hidden := len(trace.spans) - len(rows):
        count += f", {hidden} of them calls between rooms"
    lines = [f"trace {trace.trace_id}  {count}  {shown_seconds(total)}"]
    for name, span in rows:
        bar = _bar(span, began, total, bar_width)
        took = shown_seconds((span.ended_at - span.started_at).total_seconds())
        room = _painted(f"{span.service:<{service_width}}", paint, span)
        shown = f"{name[:name_width]:<{name_width}}"
        lines.append(f"{shown} {room} {_painted(bar, paint, span)} {took:>9}")
    if trace.orphans:
        lines.append(f"{len(trace.orphans)} spans without their parent: the trace is not whole yet")
    return "\n".join(line.rstrip() for line in lines)


def _painted(text: str, paint: dict[str, str], span: Span) -> str:
    colour = "31;1" if span.failed and paint[span.service] else paint[span.service]
    return f"\x1b[{colour}m{text}\x1b[0m" if colour else text


def _bar(span: Span, began: datetime, total: float, width: int) -> str:
    scale = width / total
    start = (span.started_at - began).total_seconds() * scale
    length = max((span.ended_at - span.started_at).total_seconds() * scale, 0.125)
    offset = min(int(start), width - 1)
    eighths = max(1, round(min(length, width - offset) * 8))
    full, part = divmod(eighths, 8)
    return f"{' ' * offset}{'█' * full}{_PARTS[part].strip()}"[:width].ljust(width)


def _without_calls(spans: Sequence[Span]) -> list[Span]:
    """Leave out every call that is not the root and has not failed; its children move up."""
    known = {span.span_id: span for span in spans}
    hidden = {
        span.span_id
        for span in spans
        if span.name.startswith("rpc.") and span.parent_span_id in known and not span.failed
    }

    def shown_parent(span: Span) -> str:
        parent = span.parent_span_id
        while parent in hidden:
            parent = known[parent].parent_span_id
        return parent

    return [
        replace(span, parent_span_id=shown_parent(span))
        for span in spans
        if span.span_id not in hidden
    ]


def _in_order(spans: Sequence[Span]) -> list[tuple[Span, int]]:
    """Give every span below its parent, siblings by start; those without their parent are roots."""
    known = {span.span_id for span in spans}
    children: dict[str, list[Span]] = {}
    for span in sorted(spans, key=lambda span: span.started_at):
        parent = span.parent_span_id if span.parent_span_id in known else ""
        children.setdefault(parent, []).append(span)
    ordered: list[tuple[Span, int]] = []
    waiting = [(span, 0) for span in reversed(children.get("", []))]
    while waiting:
        span, depth = waiting.pop()
        ordered.append((span, depth))
        waiting += [(child, depth + 1) for child in reversed(children.pop(span.span_id, []))]
    return ordered
