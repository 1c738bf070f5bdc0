"""Sequenced events as an HTTP answer: NDJSON, or server-sent events (HTML, section 9.2) when asked
for.

The first event is awaited before the answer starts, so that what can be refused is refused with a
status.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from chassis.errors import FairleadError, Internal
from signalling.problems import problem_members

log = logging.getLogger(__name__)

NDJSON = "application/x-ndjson"
SSE = "text/event-stream"
_AHEAD = 64

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Rendered:
    """An event as it is sent: its cursor (may be empty), its type and the object."""

    cursor: str
    type: str
    members: Mapping[str, object]


def wants_stream(accept: str) -> bool:
    """Say whether an Accept value asks for events rather than for one object."""
    return NDJSON in accept or SSE in accept


def stream_end(error: FairleadError, *, is_sse: bool) -> bytes:
    """Return the last line of a stream that an error ends."""
    return _encoded(_last_words(error), is_sse)


class EventStreams:
    """Answers with streams and can end all that are open, for a stop."""

    def __init__(self, *, keep_alive_seconds: float = 15.0) -> None:
        self._keep_alive_seconds = keep_alive_seconds
        self._closing = asyncio.Event()

    def close(self) -> None:
        """End every stream now; watchers come back with their cursor."""
        self._closing.set()

    async def respond(
        self,
        source: AsyncIterator[Item],
        render: Callable[[Item], Rendered],
        *,
        accept: str,
        headers: Mapping[str, str] | None = None,
    ) -> StreamingResponse:
        """Answer with the events of `source`, which is closed when they end or the client leaves.

        Raises what `source` raises before its first event.
        """
        pump = _Pump(source, self._closing)
        try:
            first = await pump.next(None)
        except BaseException:
            await pump.aclose()
            raise
        is_sse = SSE in accept
        return _Answer(
            pump,
            _chunks(pump, first, render, is_sse, self._keep_alive_seconds if is_sse else None),
            media_type=SSE if is_sse else NDJSON,
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no", **(headers or {})},
        )


class _End:
    """There are no more events."""


_END = _End()


class _Pump(Generic[Item]):
    """Runs a source in one task of its own, some events ahead of the reader."""

    def __init__(self, source: AsyncIterator[Item], closing: asyncio.Event) -> None:
        self._queue: asyncio.Queue[Item | Exception | _End] = asyncio.Queue(_AHEAD)
        self._source = source
        self._tasks = [
            asyncio.create_task(self._run()),
            asyncio.create_task(self._end_when(closing)),
        ]

    async def next(self, seconds: float | None) -> Item | _End | None:
        """Return the next event, None after `seconds` without one; raises what the source did."""
        try:
            async with asyncio.timeout(seconds):
                found = await self._queue.get()
        except TimeoutError:
            return None
        if isinstance(found, Exception):
            raise found
        return found

    def next_at_once(self) -> Item | Exception | _End | None:
        """Return what is there already, None when nothing is."""
        return None if self._queue.empty() else self._queue.get_nowait()

    async def aclose(self) -> None:
        """End the source and wait until it has."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self) -> None:
        try:
            async for event in self._source:
                await self._queue.put(event)
        except Exception as error:
            await self._queue.put(error)
        else:
            await self._queue.put(_END)
        finally:
            if isinstance(self._source, AsyncGenerator):
                await self._source.aclose()

    async def _end_when(self, closing: asyncio.Event) -> None:
        await closing.wait()
        self._tasks[0].cancel()
        await asyncio.gather(self._tasks[0], return_exceptions=True)
        await self._queue.put(_END)


class _Answer(StreamingResponse):
    """A stream that ends its pump, also when it was never read."""

    def __init__(
        self,
        pump: _Pump[Item],
        content: AsyncIterator[bytes],
        *,
        media_type: str,
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(content, media_type=media_type, headers=headers)
        self._close = pump.aclose

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._close()


async def _chunks(
    pump: _Pump[Item],
    first: Item | _End | None,
    render: Callable[[Item], Rendered],
    is_sse: bool,
    keep_alive_seconds: float | None,
) -> AsyncIterator[bytes]:
    found: Item | Exception | _End | None = first
    while True:
        chunk = bytearray()
        while found is not None and not isinstance(found, _End | Exception):
            chunk += _encoded(render(found), is_sse)
            found = pump.next_at_once() if len(chunk) < 65_536 else None
        if chunk:
            yield bytes(chunk)
        if isinstance(found, _End):
            return
        if isinstance(found, Exception):
            yield _encoded(_last_words(found), is_sse)
            return
        try:
            found = await pump.next(keep_alive_seconds)
        except Exception as error:
            found = error
            continue
        if found is None:
            yield b": keep-alive\n\n"


def _last_words(error: Exception) -> Rendered:
    """Return the event that tells why a stream ends early; it has no cursor and is not of the
    journal.
    """
    if not isinstance(error, FairleadError):
        log.error("stream failed", exc_info=error)
        error = Internal(
            "Something went wrong here.",
            reason="internal",
            remedy="Watch again with the last cursor; signalling's log has the cause.",
        )
    members = problem_members(error)
    return Rendered(cursor="", type="problem", members={"type": "problem", "problem": members})


def _encoded(event: Rendered, is_sse: bool) -> bytes:
    text = json.dumps(event.members, separators=(",", ":"))
    if not is_sse:
        return f"{text}\n".encode()
    cursor = f"id: {event.cursor}\n" if event.cursor else ""
    return f"{cursor}event: {event.type}\ndata: {text}\n\n".encode()
