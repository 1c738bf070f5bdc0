"""JSON documents of launches, events, executions and traces, as the front door sends them."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence

LAUNCH_ID = "lch_" + "a" * 26
SANDBOX_ID = "sbx_" + "b" * 26
EXECUTION_ID = "exe_" + "c" * 26
TRACE_ID = "0123456789abcdef" * 2
WHEN = "2026-01-02T03:04:05.678901Z"

Document = dict[str, object]


def launch(state: str = "requested", **members: object) -> Document:
    """Make a launch."""
    document: Document = {
        "launch_id": LAUNCH_ID,
        "state": state,
        "created_at": WHEN,
        "ended_at": None,
        "released_at": None,
        "expires_at": "2026-01-02T03:34:05Z",
        "project": "p",
        "commit": "c",
        "branch": "main",
        "arguments": ["echo", "hi"],
        "keep": False,
        "host_id": "",
        "workspace_id": "",
        "sandbox_id": "" if state == "requested" else SANDBOX_ID,
        "isolation": "",
        "session_id": "",
        "execution_id": "",
        "exit": None,
        "failure": None,
        "trace_id": TRACE_ID,
    }
    return document | members


def event(cursor: str, name: str, fields: Mapping[str, object]) -> Document:
    """Make an event."""
    return {"cursor": cursor, "occurred_at": WHEN, "type": name, name: dict(fields)}


def snapshot(cursor: str = "0", **members: object) -> Document:
    """Make the first event of a stream."""
    return event(cursor, "snapshot", launch(**members))  # type: ignore[arg-type]


def step(cursor: str, name: str, state: str = "done") -> Document:
    """Make a change of a step."""
    elapsed = None if state == "started" else 0.0123
    return event(
        cursor,
        "step",
        {"step": name, "state": state, "elapsed": elapsed, "failure": None, "detail": ""},
    )


def output_record(sequence: int, content: bytes, stream: str = "stdout") -> Document:
    """Make a piece of output."""
    return {
        "execution_id": EXECUTION_ID,
        "sequence": sequence,
        "stream": stream,
        "content": base64.b64encode(content).decode(),
        "written_at": WHEN,
    }


def output(cursor: str, sequence: int, content: bytes, stream: str = "stdout") -> Document:
    """Make an output event."""
    return event(cursor, "output", output_record(sequence, content, stream))


def ending(code: int | None = 0, *, reason: str = "exited", signal: int | None = None) -> Document:
    """Make an exit."""
    return {
        "reason": reason,
        "code": code,
        "signal": signal,
        "last_sequence": 0,
        "ended_at": WHEN,
    }


def exited(
    cursor: str = "9",
    code: int | None = 0,
    *,
    changed: int = 0,
    refused: Sequence[str] = (),
    **how: object,
) -> Document:
    """Make the terminal event of a command that ended."""
    fields = {
        "exit": ending(code, **how),  # type: ignore[arg-type]
        "changed_files": changed,
        "discarded": changed > 0,
        "refused_connections": list(refused),
    }
    return event(cursor, "exited", fields)


def failed(
    cursor: str = "9", reason: str = "command_not_found", name: str = "execution"
) -> Document:
    """Make the terminal event of a launch that failed."""
    failure = {"step": name, "reason": reason, "message": f"It is {reason}.", "remedy": "Look."}
    return event(cursor, "failed", {"failure": failure})


def cancelled(cursor: str = "9", reason: str = "requested") -> Document:
    """Make the terminal event of a cancelled launch."""
    return event(cursor, "cancelled", {"reason": reason})


def miss(cursor: str = "1", *tips: str) -> Document:
    """Make the event that asks for an upload."""
    fields = {
        "reason": "no_base",
        "wanted": [],
        "tips": list(tips),
        "upload_token": "token",
        "expires_at": WHEN,
    }
    return event(cursor, "miss", fields)


def provisioned(cursor: str = "5") -> Document:
    """Make the event that says that everything is there."""
    return event(cursor, "provisioned", {"launch": launch("provisioned", arguments=[])})


def execution(state: str = "running") -> Document:
    """Make an execution."""
    return {
        "execution_id": EXECUTION_ID,
        "sandbox_id": SANDBOX_ID,
        "state": state,
        "arguments": ["echo", "hi"],
        "started_at": WHEN,
        "exit": None,
    }


def execution_lines(*pieces: tuple[str, bytes], end: Mapping[str, object]) -> list[Document]:
    """Make the lines of an execution's output."""
    records = (
        {"type": "output", **output_record(number, content, stream)}
        for number, (stream, content) in enumerate(pieces, 1)
    )
    return [
        {"type": "snapshot", "snapshot": execution()},
        *records,
        {"type": "exit", "exit": dict(end)},
    ]


def span(number: int, parent: int, name: str, service: str, start: int, end: int) -> Document:
    """Make a span; times are milliseconds after a full second."""
    return {
        "span_id": f"{number:016x}",
        "parent_span_id": f"{parent:016x}" if parent else "",
        "name": name,
        "service": service,
        "started_at": f"2026-01-02T03:04:05.{start:03}Z",
        "ended_at": f"2026-01-02T03:04:05.{end:03}Z",
        "failed": name.endswith("failed"),
        "attributes": {},
    }


def trace(*spans: Document) -> Document:
    """Make a trace."""
    return {"trace_id": TRACE_ID, "spans": list(spans)}
