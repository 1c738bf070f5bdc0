"""Waits for what another task or process will have done, without guessing how long that takes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

Found = TypeVar("Found")

SECONDS = 60.0


async def eventually(
    look: Callable[[], Awaitable[Found]], until: Callable[[Found], bool] = bool
) -> Found:
    """Call `look` until its answer satisfies `until`, and return that.

    Raises TimeoutError after a minute.
    """
    async with asyncio.timeout(SECONDS):
        while True:
            found = await look()
            if until(found):
                return found
            await asyncio.sleep(0.005)
