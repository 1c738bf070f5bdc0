"""Attachments to terminals in JSON and bytes: `fairlead.terminal.v1`, see docs/protocol.md. The
front door's WebSocket says the same.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TypeGuard

from chassis.errors import FairleadError
from chassis.problem import problem_of
from sandbox_worker.attachments import (
    AttachedFrame,
    TerminalAccepted,
    TerminalInput,
    TerminalOpening,
    TerminalSnapshot,
    TerminalTakenOver,
    Typed,
)
from sandbox_worker.execution import Execution, Exit, Gap, TerminalSize
from sandbox_worker.execution_errors import TerminalFrameInvalid

Message = str | bytes
Json = dict[str, object]

_POSITION = struct.Struct(">Q")
_LARGEST_NUMBER = 2**62


def opening_of(message: Message | None) -> TerminalOpening:
    """Read the first message; raises TerminalFrameInvalid."""
    kind, members = _control(message if isinstance(message, str) else "")
    if kind != "open":
        raise TerminalFrameInvalid("The first message must be `open`.")
    after = members.get("after_sequence", 0)
    take_over = members.get("take_over", False)
    owner = members.get("owner", "")
    size = members.get("size")
    if not _is_number(after) or not isinstance(take_over, bool) or not isinstance(owner, str):
        raise TerminalFrameInvalid("A field of `open` has the wrong type.")
    if not 0 <= after <= _LARGEST_NUMBER or not _is_unicode(owner):
        raise TerminalFrameInvalid("A field of `open` is out of its range.")
    return TerminalOpening(
        after=after,
        take_over=take_over,
        owner=owner,
        size=None if size is None else _size(size),
    )


def typed_of(message: Message) -> Typed | None:
    """Read what is typed, None for `detach`; raises TerminalFrameInvalid."""
    if isinstance(message, bytes):
        if len(message) < _POSITION.size:
            raise TerminalFrameInvalid("A binary message begins with its offset, 8 bytes.")
        return TerminalInput(_POSITION.unpack_from(message)[0], message[_POSITION.size :])
    kind, members = _control(message)
    match kind:
        case "resize":
            return _size(members)
        case "detach":
            return None
        case "open":
            raise TerminalFrameInvalid("Only the first message may be `open`.")
        case _:
            raise TerminalFrameInvalid("The message is none that is known.")


def to_messages(frame: AttachedFrame) -> Sequence[Message]:
    """Return a frame of an attachment as messages."""
    match frame:
        case TerminalSnapshot():
            snapshot = execution_json(frame.execution)
            return [
                _said(
                    "snapshot",
                    snapshot=snapshot,
                    input_offset=frame.input_offset,
                    resumed=frame.resumed,
                )
            ]
        case TerminalAccepted(offset):
            return [_said("accepted", offset=offset)]
        case TerminalTakenOver():
            return [_said("taken_over")]
        case Execution():
            return []
        case Exit():
            return [_said("exit", exit=exit_json(frame))]
        case Gap():
            gap = {
                "first_sequence": frame.first,
                "last_sequence": frame.last,
                "bytes": frame.size,
                "reason": frame.reason.value,
            }
            return [_said("gap", gap=gap)]
        case records:
            return [_POSITION.pack(record.sequence) + record.content for record in records]


def to_problem(error: FairleadError) -> str:
    """Return an error as the last message."""
    return _said("problem", problem=problem_of(error))


def execution_json(execution: Execution) -> Json:
    """Return an execution as the front door shows it."""
    return {
        "execution_id": execution.execution_id,
        "sandbox_id": execution.sandbox_id,
        "state": "running" if execution.exit is None else "exited",
        "arguments": list(execution.arguments),
        "started_at": _time(execution.started_at),
        "exit": None if execution.exit is None else exit_json(execution.exit),
    }


def exit_json(exit_: Exit) -> Json:
    """Return an exit as the front door shows it."""
    usage = exit_.usage
    return {
        "reason": exit_.reason.value,
        "code": exit_.code,
        "signal": exit_.signal,
        "last_sequence": exit_.last_sequence,
        "ended_at": _time(exit_.ended_at),
        "cpu_time": None if usage is None else round(usage.cpu_seconds, 6),
        "peak_memory_bytes": 0 if usage is None else usage.peak_memory_bytes,
    }


def _said(kind: str, **members: object) -> str:
    return json.dumps({"type": kind, **members})


def _control(text: str) -> tuple[str, Json]:
    """Read a text message: its type, and its other members."""
    try:
        members = json.loads(text)
    except (ValueError, RecursionError):
        members = None
    if not isinstance(members, dict):
        raise TerminalFrameInvalid("The message is no JSON object.")
    return str(members.pop("type", "")), members


def _size(members: object) -> TerminalSize:
    if isinstance(members, dict):
        rows, columns = members.get("rows"), members.get("columns")
        if _is_number(rows) and _is_number(columns):
            return TerminalSize(rows=rows, columns=columns)
    raise TerminalFrameInvalid("A size has `rows` and `columns`, both numbers.")


def _is_number(value: object) -> TypeGuard[int]:
    """Say whether it is an integer, which JSON's true and false are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def _is_unicode(text: str) -> bool:
    """Say whether it is text: JSON may spell half a surrogate pair, which UTF-8 cannot."""
    return not any("\ud800" <= each <= "\udfff" for each in text)


def _time(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
