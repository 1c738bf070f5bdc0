"""The child's event loop: one thread on which everything awaitable of the child runs, so that its
objects share a loop.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

SLICE = 0.05
"""Seconds between two looks at whether the waiting call was cancelled: that arrives as an
asynchronous exception, which no lock wait notices before it ends.
"""


class GuestLoop:
    """Run awaitables for the lanes; the thread starts with the first one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, make: Callable[[], object]) -> object:
        """Await what `make` gives, which is called on the loop; what is no awaitable is the result
        itself.
        """
        import asyncio  # 40 ms that most children never need
        import inspect

        async def awaited() -> tuple[object, BaseException | None]:
            try:
                made = make()
                return (await made if inspect.isawaitable(made) else made), None
            except (StopIteration, StopAsyncIteration) as end:
                return None, end

        future = asyncio.run_coroutine_threadsafe(awaited(), self._running())
        try:
            while True:
                try:
                    value, end = future.result(SLICE)
                    break
                except TimeoutError:
                    if future.done():
                        value, end = future.result()
                        break
        except BaseException:
            future.cancel()
            raise
        if end is not None:
            raise end
        return value

    def _running(self) -> asyncio.AbstractEventLoop:
        import asyncio

        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(
                    target=self._loop.run_forever, name="membrane-loop", daemon=True
                ).start()
            return self._loop
