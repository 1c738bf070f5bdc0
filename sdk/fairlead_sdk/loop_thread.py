"""An event loop in a thread of its own, for the blocking client."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TypeVar

Result = TypeVar("Result")


class LoopThread:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="fairlead-sdk", daemon=True
        )
        self._thread.start()

    def run(self, work: Coroutine[object, object, Result]) -> Result:
        """Run to the end and give the result; an interrupt cancels the work and waits for it."""
        task = asyncio.run_coroutine_threadsafe(_settled(work), self._loop)
        try:
            return task.result()
        except BaseException:
            if not task.done():
                task.cancel()
                asyncio.run_coroutine_threadsafe(_others(), self._loop).result()
            raise

    def begin(self, work: Coroutine[object, object, Result]) -> Future[Result]:
        """Run it without waiting; cancelling the future cancels the work. Raises RuntimeError when
        this is closed.
        """
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    @contextmanager
    def entered(self, context: AbstractAsyncContextManager[Result]) -> Iterator[Result]:
        """Hold an asynchronous context open."""
        value = self.run(context.__aenter__())
        try:
            yield value
        except BaseException as error:
            if not self.run(context.__aexit__(type(error), error, error.__traceback__)):
                raise
        else:
            self.run(context.__aexit__(None, None, None))

    def close(self) -> None:
        """End the loop and its thread."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(_end_all(self._loop), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _settled(work: Coroutine[object, object, Result]) -> Result:
    return await work


async def _others() -> None:
    """Wait until what was cancelled has cleaned up behind itself."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    cancelled = [task for task in tasks if task is not None and task.cancelling()]
    if cancelled:
        await asyncio.wait(cancelled)


async def _end_all(loop: asyncio.AbstractEventLoop) -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()
