"""Parameters and answers that several routes share."""

from __future__ import annotations

from typing import Annotated

from fastapi import Header, Query
from starlette.convertors import PathConvertor

from chassis.errors import InvalidArgument
from fairlead_limits import table
from signalling.event_stream import NDJSON, SSE


class IdempotencyKeysDiffer(InvalidArgument):
    """Header and body name different idempotency keys."""

    def __init__(self) -> None:
        super().__init__(
            "The header Idempotency-Key and the body's idempotency_key differ.",
            reason="idempotency_keys_differ",
            remedy="Send one of them.",
        )


class AnyPath(PathConvertor):
    """The rest of a path, whatever its names hold: Starlette's own ends at a newline."""

    regex = "(?s:.*)"


class CursorNumberInvalid(InvalidArgument):
    """A cursor of an output or of a session's events is not a number."""

    def __init__(self) -> None:
        super().__init__(
            "The cursor is not the number of an event or an output record.",
            reason="cursor_invalid",
            remedy="Use the sequence of the last record seen, or none to start over.",
        )


IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        description="Makes the call repeatable; 1 to 255 printable ASCII characters.",
    ),
]
Cursor = Annotated[str | None, Query(description="Cursor of the last event seen.")]
LastEventId = Annotated[
    str | None, Header(alias="Last-Event-ID", description="The same, as SSE clients send it.")
]
PageSize = Annotated[
    int,
    Query(description="50 when 0.", json_schema_extra={**table.PAGE_SIZE.schema}),
]
PageToken = Annotated[str, Query(description="`next_page_token` of the page before.")]


def cursor_number(cursor: str) -> int:
    """Read a cursor that is the number of an event; raises CursorNumberInvalid."""
    if not (cursor.isascii() and cursor.isdecimal() and len(cursor) < 20):
        raise CursorNumberInvalid
    number = int(cursor)
    if not table.POSITION.allows(number):
        raise CursorNumberInvalid
    return number


def stream_documents(schema: str, description: str) -> dict[int | str, dict[str, object]]:
    """Return the OpenAPI response of a stream whose lines are of a named schema."""
    line = {"schema": {"$ref": f"#/components/schemas/{schema}"}}
    return {200: {"description": description, "content": {NDJSON: line, SSE: line}}}
