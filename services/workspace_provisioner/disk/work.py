"""Runs blocking work on files in the room's one named executor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class FileWork:
    """An executor whose work is never left half done: who is cancelled still waits for it."""

    def __init__(self, *, executor: Executor) -> None:
        self._executor = executor

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` in the executor and return its result."""
        future = asyncio.get_running_loop().run_in_executor(
            self._executor, lambda: work(*args, **kwargs)
        )
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            while not future.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait({future})
            future.exception()
            raise
