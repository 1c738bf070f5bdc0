"""The waterfall: order, indentation, bars to scale, and waiting until a trace is whole."""

from __future__ import annotations

import pytest

from fairlead_sdk.cli.ticks import shown_seconds
from fairlead_sdk.cli.waterfall import waterfall, whole_trace
from fairlead_sdk.records import Trace
from tests.fakes import launch_documents as documents

WHOLE = documents.trace(
    documents.span(1, 0, "rest.POST /v1/launches", "signalling", 0, 20),
    documents.span(2, 1, "launch.run", "signalling", 1, 100),
    documents.span(4, 2, "sandbox.create", "sandbox-worker", 10, 20),
    documents.span(3, 2, "workspace.materialize", "workspace-provisioner", 2, 52),
    documents.span(5, 3, "snapshot.failed", "workspace-provisioner", 50, 51),
)
CUT = documents.trace(
    documents.span(1, 0, "rest.POST /v1/launches", "signalling", 0, 20),
    documents.span(5, 3, "snapshot.import", "workspace-provisioner", 50, 51),
)


def read(document: dict[str, object]) -> Trace:
    return Trace.read(document)  # type: ignore[arg-type]


def test_draws_children_below_their_parents_with_bars_to_scale() -> None:
    lines = waterfall(read(WHOLE), columns=100, coloured=False).splitlines()
    assert lines[0] == f"trace {documents.TRACE_ID}  5 spans  100.0 ms"
    assert [line.split()[0] for line in lines[1:]] == [
        "rest.POST",
        "launch.run",
        "workspace.materialize",
        "snapshot.failed",
        "sandbox.create",
    ]
    assert [len(line) - len(line.lstrip()) for line in lines[1:]] == [0, 2, 4, 6, 4]
    assert lines[4].split()[1] == "!"
    assert all(len(line) <= 100 for line in lines)
    run, materialize = lines[2].count("█"), lines[3].count("█")
    assert abs(run / 2 - materialize) <= 1
    assert lines[3].rstrip().endswith("50.0 ms")


def test_narrow_terminals_still_get_bars() -> None:
    drawn = waterfall(read(WHOLE), columns=20, coloured=False)
    assert "█" in drawn


def test_colours_only_where_they_are_wanted() -> None:
    assert "\x1b[" not in waterfall(read(WHOLE), columns=100, coloured=False)
    assert "\x1b[31;1m" in waterfall(read(WHOLE), columns=100, coloured=True)


def test_an_empty_trace_says_so() -> None:
    assert "no spans" in waterfall(read(documents.trace()), columns=80, coloured=False)


def test_orphans_are_shown_and_counted() -> None:
    drawn = waterfall(read(CUT), columns=100, coloured=False)
    assert "snapshot.import" in drawn
    assert "1 spans without their parent" in drawn


@pytest.mark.asyncio
async def test_waits_until_the_trace_is_whole() -> None:
    answers = [read(CUT), read(WHOLE)]

    async def answer() -> Trace:
        return answers.pop(0)

    assert (await whole_trace(answer, seconds=5)).is_whole
    assert answers == []


@pytest.mark.asyncio
async def test_gives_what_there_is_when_time_is_up() -> None:
    async def answer() -> Trace:
        return read(CUT)

    assert not (await whole_trace(answer, seconds=0)).is_whole


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0000384, "38 µs"), (0.0123, "12.3 ms"), (3.456, "3.46 s"), (1800.0, "30 min")],
)
def test_durations_read_well(seconds: float, text: str) -> None:
    assert shown_seconds(seconds) == text


def test_calls_between_rooms_are_left_out_unless_they_failed() -> None:
    trace = documents.trace(
        documents.span(1, 0, "rpc.LaunchService/Launch", "signalling", 0, 5),
        documents.span(2, 1, "launch.run", "signalling", 1, 100),
        documents.span(3, 2, "rpc.SandboxService/CreateSandbox", "signalling", 2, 30),
        documents.span(4, 3, "rpc.SandboxService/CreateSandbox", "sandbox-worker", 4, 28),
        documents.span(5, 4, "sandbox.create", "sandbox-worker", 5, 27),
    )
    lines = waterfall(read(trace), columns=100, coloured=False).splitlines()
    assert "5 spans, 2 of them calls between rooms" in lines[0]
    assert [line.split()[0] for line in lines[1:]] == [
        "rpc.LaunchService/Launch",
        "launch.run",
        "sandbox.create",
    ]
    assert [len(line) - len(line.lstrip()) for line in lines[1:]] == [0, 2, 4]
    trace["spans"][2]["failed"] = True  # type: ignore[index]
    assert "rpc.SandboxService/CreateSandbox !" in waterfall(
        read(trace), columns=100, coloured=False
    )
