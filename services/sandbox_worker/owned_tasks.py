"""Tasks that outlive the call that started them, with an owner that waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

Answer = TypeVar("Answer")


class OwnedTasks:
    """A kept set of tasks: a caller that leaves does not stop the work that it asked for."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[object]] = set()

    def start(self, work: Coroutine[None, None, Answer], *, name: str) -> asyncio.Task[Answer]:
        """Run `work` in a task of this set."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    async def settle(self) -> None:
        """Wait until none is left, those included that are started meanwhile."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def cancel(self) -> None:
        """Cancel all and wait for them."""
        for task in self._tasks:
            task.cancel()
        await self.settle()

    def _on_done(self, task: asyncio.Task[object]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            # Whoever waits for the task gets its error; that nobody may wait is no news.
            task.exception()


async def outcome(task: asyncio.Task[Answer]) -> Answer:
    """Return or raise the outcome of a task that goes on when this caller is cancelled."""
    return task.result() if task.done() else await asyncio.shield(task)
