"""A log line is one JSON object that names its room and its trace."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

from opentelemetry.sdk.trace import TracerProvider

from chassis.logs import JsonFormatter
from chassis.telemetry import current_trace_id


def line(record: logging.LogRecord) -> dict[str, object]:
    text = JsonFormatter(room="probe").format(record)
    assert "\n" not in text
    parsed = json.loads(text)
    assert isinstance(parsed, dict)
    return parsed


def record(message: str = "session opened", **extra: object) -> logging.LogRecord:
    return logging.getLogger("room.part").makeRecord(
        "room.part", logging.WARNING, __file__, 1, message, (), None, extra=extra
    )


def test_a_line_has_its_fields_and_the_extras() -> None:
    found = line(record(session_id="ses_1", count=3, place=Path("/x"), text="two\nlines"))
    assert str(found.pop("ts")).endswith("+00:00")
    assert found == {
        "level": "warning",
        "logger": "room.part",
        "message": "session opened",
        "room": "probe",
        "session_id": "ses_1",
        "count": 3,
        "place": "/x",
        "text": "two\nlines",
    }


def test_an_extra_never_replaces_a_field() -> None:
    assert line(record(room="other", level="info"))["room"] == "probe"


def test_a_line_inside_a_span_has_its_ids() -> None:
    with TracerProvider().get_tracer("t").start_as_current_span("x"):
        found = line(record())
        assert found["trace_id"] == current_trace_id()
        assert len(str(found["span_id"])) == 16


def test_an_exception_is_one_field() -> None:
    try:
        raise ValueError("boom")
    except ValueError:
        raised = record()
        raised.exc_info = sys.exc_info()
    assert "ValueError: boom" in str(line(raised)["exception"])
