"""A peer connection whose steps are never cut half-way, and whose end takes a bounded time.

aioice 0.13 forgets the sockets that it has bound when its gathering is cancelled, and a second
`close()` of aiortc 1.16 waits for ever when the first one was cancelled. So each step runs in a
task of its own, which a caller may stop waiting for, and the end waits for the steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Protocol, TypeVar

CLOSE_SECONDS = 5.0

Result = TypeVar("Result")


class Connection(Protocol):
    """What is closed: `aiortc.RTCPeerConnection`."""

    async def close(self) -> None:
        """Free the sockets."""
        ...


class NotClosed(Exception):
    """A connection could not be closed in its time; its sockets may be left."""


class WholeConnection:
    """Takes steps of one connection, one at a time, and closes it once."""

    def __init__(self, *, connection: Connection) -> None:
        self._connection = connection
        self._steps: set[asyncio.Task[object]] = set()
        self._closing: asyncio.Task[None] | None = None

    async def step(self, step: Coroutine[object, object, Result]) -> Result:
        """Return what `step` does; it goes on when the caller is cancelled, and close() waits."""
        task = asyncio.ensure_future(step)
        self._steps.add(task)
        task.add_done_callback(self._steps.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            # Nobody else asks how it ended.
            task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
            raise

    async def close(self) -> None:
        """Close the connection after its steps, within twice CLOSE_SECONDS; again changes nothing.

        Raises NotClosed, and what aiortc raises. It goes on when the caller is cancelled.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        are_whole = await _ended(self._steps)
        closing = asyncio.ensure_future(self._connection.close())
        is_closed = await _ended({closing})
        if not (are_whole and is_closed):
            raise NotClosed
        closing.result()


async def _ended(tasks: set[asyncio.Task[object]] | set[asyncio.Task[None]]) -> bool:
    """Wait for tasks and say whether they ended in time; those that did not are cancelled."""
    if not tasks:
        return True
    _, late = await asyncio.wait(tuple(tasks), timeout=CLOSE_SECONDS)
    for task in late:
        task.cancel()
    if late:
        await asyncio.wait(late)
    return not late
