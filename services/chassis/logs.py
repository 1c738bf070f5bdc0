"""Log lines as JSON on standard error: one object a line, with room, trace id and span id."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from chassis.telemetry import current_ids

_STANDARD = frozenset(logging.LogRecord("", 0, "", 0, "", (), None).__dict__) | {
    "message",
    "asctime",
    "taskName",
    "color_message",
}

_ENCODER = json.JSONEncoder(default=str, ensure_ascii=False)


class JsonFormatter(logging.Formatter):
    """Renders a record as an object: ts, level, logger, message, room, span ids and the extras."""

    def __init__(self, *, room: str) -> None:
        super().__init__()
        self._room = room

    def format(self, record: logging.LogRecord) -> str:
        trace_id, span_id = current_ids()
        line: dict[str, object] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "room": self._room,
        }
        if trace_id:
            line |= {"trace_id": trace_id, "span_id": span_id}
        for name, value in record.__dict__.items():
            if name not in _STANDARD and name not in line:
                line[name] = value
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return _ENCODER.encode(line)


def start_logging(room: str, level: str) -> None:
    """Send log records, from `level` (a lower-case name) up, to standard error as JSON."""
    output = logging.StreamHandler(sys.stderr)
    output.setFormatter(JsonFormatter(room=room))
    logging.basicConfig(level=level.upper(), handlers=[output], force=True)
    logging.captureWarnings(True)
