"""Waits for what another task or process will have done, without guessing how long that takes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

Found = TypeVar("Found")

SECONDS = 240.0
"""Longer than anything takes on one slow core beside busy neighbours: what takes longer hangs."""


async def eventually(
    look: Callable[[], Awaitable[Found]], until: Callable[[Found], bool] = bool
) -> Found:
    """Call `look` until its answer satisfies `until`, and return that.

    Raises TimeoutError, with the last answer, after that long.
    """
    found: Found | None = None
    try:
        async with asyncio.timeout(SECONDS):
            while True:
                found = await look()
                if until(found):
                    return found
                await asyncio.sleep(0.005)
    except TimeoutError as error:
        raise TimeoutError(f"after {SECONDS:.0f} s it is {found!r}") from error
