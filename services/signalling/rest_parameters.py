"""Parameters and answers that several routes share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from fastapi import Header, Query
from fastapi.routing import APIRoute
from starlette.convertors import PathConvertor
from starlette.datastructures import QueryParams
from starlette.routing import Match, Router
from starlette.types import Receive, Scope, Send

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


class QueryUnknown(InvalidArgument):
    """A query has a parameter that its route does not know."""

    def __init__(self, unknown: str, known: Iterable[str]) -> None:
        names = ", ".join(sorted(known))
        super().__init__(
            f"The route has no parameter {unknown[:100]!r} in its query.",
            reason="query_unknown",
            remedy=f"It takes {names}." if names else "Leave the query out.",
            fields={"field": unknown[:100]},
        )


class KnownQueries:
    """Refuses parameters of a query that the route does not know; stands around the router."""

    def __init__(self, router: Router) -> None:
        self._router = router

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["query_string"]:
            for route in self._router.routes:
                if isinstance(route, APIRoute) and route.matches(scope)[0] is Match.FULL:
                    known = {each.alias for each in route.dependant.query_params}
                    for name in QueryParams(scope["query_string"]):
                        if name not in known:
                            raise QueryUnknown(name, known)
                    break
        await self._router(scope, receive, send)


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
        description=f"Makes the call repeatable; {table.IDEMPOTENCY_KEY.rule}.",
        json_schema_extra={"type": "string", **table.IDEMPOTENCY_KEY.schema},
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
