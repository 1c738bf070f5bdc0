"""Terminals in JSON: what the front door's WebSocket says, said by a worker."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from chassis.errors import FairleadError
from sandbox_worker.attachments import (
    TerminalAccepted,
    TerminalInput,
    TerminalOpening,
    TerminalSnapshot,
    TerminalTakenOver,
)
from sandbox_worker.execution import (
    Execution,
    Exit,
    ExitReason,
    Gap,
    OutputRecord,
    Stream,
    TerminalSize,
    Usage,
)
from sandbox_worker.execution_errors import TerminalOwned
from sandbox_worker.terminal_json import (
    execution_json,
    opening_of,
    to_messages,
    to_problem,
    typed_of,
)
from sandbox_worker.wire.execution_messages import to_execution
from signalling.execution_messages import from_execution
from signalling.launch_json import execution_json as front_door_json

WHEN = datetime(2026, 2, 3, 4, 5, 6, 789, tzinfo=UTC)
EXITS = [
    None,
    Exit(ExitReason.EXITED, 7, WHEN, code=3, usage=Usage(1.25, 4096)),
    Exit(ExitReason.SIGNALLED, 0, WHEN, signal=9),
    Exit(ExitReason.LIMIT_PIDS, 2, WHEN, usage=Usage(0.000001, 1)),
]


@pytest.mark.parametrize("exit_", EXITS)
def test_executions_look_as_at_the_front_door(exit_: Exit | None) -> None:
    execution = Execution("exe_a", "sbx_a", "tenant", ("sh", "-c", "ä"), WHEN, exit_)
    assert execution_json(execution) == front_door_json(from_execution(to_execution(execution)))


def test_what_a_terminal_shows() -> None:
    execution = Execution("exe_a", "sbx_a", "tenant", ("sh",), WHEN)
    (text,) = to_messages(TerminalSnapshot(execution, 12, resumed=True))
    assert json.loads(text) == {
        "type": "snapshot",
        "snapshot": execution_json(execution),
        "input_offset": 12,
        "resumed": True,
    }
    records = [OutputRecord(5, Stream.STDOUT, b"x", 0), OutputRecord(6, Stream.STDOUT, b"", 0)]
    assert to_messages(records) == [b"\0\0\0\0\0\0\0\5x", b"\0\0\0\0\0\0\0\6"]
    said = [
        (TerminalAccepted(9), {"type": "accepted", "offset": 9}),
        (TerminalTakenOver(), {"type": "taken_over"}),
        (
            Gap(1, 4, 99),
            {
                "type": "gap",
                "gap": {"first_sequence": 1, "last_sequence": 4, "bytes": 99, "reason": "unknown"},
            },
        ),
    ]
    for frame, expected in said:
        (message,) = to_messages(frame)  # type: ignore[arg-type]
        assert json.loads(message) == expected
    problem = json.loads(to_problem(TerminalOwned()))
    assert problem["type"] == "problem"
    assert (problem["problem"]["reason"], problem["problem"]["status"]) == ("terminal_owned", 409)


def test_what_a_client_says() -> None:
    assert opening_of('{"type": "open"}') == TerminalOpening()
    assert opening_of(
        '{"type": "open", "after_sequence": 3, "owner": "me", "take_over": true,'
        ' "size": {"rows": 2, "columns": 4}, "later": 1}'
    ) == TerminalOpening(3, True, "me", TerminalSize(2, 4))
    assert typed_of(b"\0\0\0\0\0\0\0\7ls") == TerminalInput(7, b"ls")
    assert typed_of('{"type": "resize", "rows": 2, "columns": 4}') == TerminalSize(2, 4)
    assert typed_of('{"type": "detach"}') is None


@pytest.mark.parametrize(
    "message",
    [
        None,
        b"\0\0\0\0\0\0\0\0",
        "",
        "[]",
        "{}",
        '{"type": "resize"}',
        '{"type": "open", "after_sequence": "3"}',
        '{"type": "open", "after_sequence": true}',
        '{"type": "open", "after_sequence": -1}',
        '{"type": "open", "after_sequence": 1' + "0" * 40 + "}",
        '{"type": "open", "owner": 1}',
        '{"type": "open", "owner": "\\ud800"}',
        '{"type": "open", "take_over": 1}',
        '{"type": "open", "size": 1}',
        '{"type": "open", "size": {"rows": 1}}',
        "[" * 100_000,
    ],
)
def test_a_first_message_that_is_none(message: str | bytes | None) -> None:
    with pytest.raises(FairleadError) as caught:
        opening_of(message)
    assert caught.value.reason == "terminal_frame_invalid"


@pytest.mark.parametrize(
    "message",
    [b"\0\0\0", '{"type": "open"}', '{"type": "shout"}', "x", '{"type": "resize", "rows": 2}'],
)
def test_a_message_that_is_none(message: str | bytes) -> None:
    with pytest.raises(FairleadError) as caught:
        typed_of(message)
    assert caught.value.reason == "terminal_frame_invalid"
