"""What goes wrong in a fake, and where."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

Fault = Callable[[], Awaitable[None]]


class Faults:
    """What goes wrong where; a point is `noun.verb:before` or `noun.verb:after`."""

    def __init__(self) -> None:
        self._at: dict[str, Fault] = {}
        self.passed: list[str] = []

    def put(self, point: str, fault: Fault, *, once: bool = False) -> None:
        """Let `fault` happen at a point."""

        async def only_once() -> None:
            del self._at[point]
            await fault()

        self._at[point] = only_once if once else fault

    def refuse(self, point: str, error: Exception, *, once: bool = False) -> None:
        """Let a call fail at a point."""

        async def fail() -> None:
            raise error

        self.put(point, fail, once=once)

    def hold(self, point: str) -> asyncio.Event:
        """Hold calls at a point until the event is set; returns it."""
        gate = asyncio.Event()

        async def wait() -> None:
            await gate.wait()

        self.put(point, wait)
        return gate

    def clear(self, point: str) -> None:
        """Let nothing happen there any more."""
        self._at.pop(point, None)

    async def at(self, point: str) -> None:
        """Pass a point."""
        self.passed.append(point)
        await asyncio.sleep(0)
        if point in self._at:
            await self._at[point]()
