"""Streams that survive a broken connection: they go on after the last position, nothing twice."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

from fairlead_sdk import json_form as form
from fairlead_sdk.client import Sleep, problem_of
from fairlead_sdk.errors import StreamLost, Unavailable
from fairlead_sdk.json_form import JsonObject

PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, *(3.0,) * 9)
FIRST_PAUSES = (0.1, 0.3)
_LONG_SECONDS = 10.0

OpenStream = Callable[[str], AbstractAsyncContextManager[AsyncIterator[JsonObject]]]


async def resumed(
    open_stream: OpenStream,
    *,
    position: Callable[[JsonObject], str],
    is_last: Callable[[JsonObject], bool],
    sleep: Sleep,
    after: str = "",
) -> AsyncGenerator[JsonObject, None]:
    """Give the documents of a stream, each exactly once, until the last one.

    `open_stream` opens it after a position; `position` reads a document's own, empty when it has
    none. Only the first `snapshot` document is given. Raises `StreamLost` when the stream stays
    broken through all pauses, which start anew with every document; what the first attempts raise
    is raised as it is.
    """
    cursor = after
    seen_snapshot = False
    seen_output: dict[str, int] = {}
    failures = 0
    while True:
        opened = time.monotonic()
        broken: Unavailable | None = None
        try:
            async with open_stream(cursor) as documents:
                async for document in documents:
                    problem = problem_of(document)
                    if problem is not None:
                        raise problem
                    cursor = position(document) or cursor
                    if form.text(document, "type") == "snapshot":
                        if not seen_snapshot:
                            seen_snapshot = True
                            yield document
                        continue
                    failures = 0
                    if _is_repeated(document, seen_output):
                        continue
                    yield document
                    if is_last(document):
                        return
        except Unavailable as error:
            broken = error
        if time.monotonic() - opened > _LONG_SECONDS:
            failures = 0
        pauses = PAUSES if seen_snapshot else FIRST_PAUSES
        if failures >= len(pauses):
            if broken is not None and not seen_snapshot:
                raise broken
            raise StreamLost(
                "The stream of events broke and could not be taken up again.",
                reason="stream_lost",
                remedy="`fairlead ps` shows what became of it, and `fairlead logs` its output.",
            ) from broken
        await sleep(pauses[failures])
        failures += 1


def _is_repeated(document: JsonObject, seen: dict[str, int]) -> bool:
    """Say whether this output record was given before; remembers it otherwise."""
    if form.text(document, "type") != "output":
        return False
    record = form.child(document, "output") or document
    execution, sequence = form.text(record, "execution_id"), form.number(record, "sequence")
    if sequence <= seen.get(execution, 0):
        return True
    seen[execution] = sequence
    return False
