"""Wakes everybody who waits for a change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Pulse:
    """A change that happens again and again; who looks and then waits misses none."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def beat(self) -> None:
        """Wake all who wait now."""
        self._event.set()
        self._event = asyncio.Event()

    async def wait(self) -> None:
        """Wait for the next beat."""
        await self._event.wait()

    async def until(self, fact: Callable[[], bool]) -> None:
        """Wait until something is so, looking at each beat."""
        while not fact():
            await self.wait()
