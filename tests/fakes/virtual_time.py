"""An event loop whose time only passes when nothing else can happen: tests wait for hours and never
sleep.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import TypeVar

_Result = TypeVar("_Result")
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class NothingWillHappen(AssertionError):
    """Every task waits for something that no timer and no file will bring."""


class _Selector(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise NothingWillHappen
        if not ready and timeout:
            self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop that jumps to the next timer as soon as it is idle."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now


class VirtualClock:
    """The clock of the running virtual loop."""

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self.monotonic())

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


def run(scenario: Coroutine[object, object, _Result]) -> _Result:
    """Run a scenario in a virtual loop of its own."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(scenario)


async def settle(turns: int = 50) -> None:
    """Let everything that can happen now happen, without letting time pass."""
    for _ in range(turns):
        await asyncio.sleep(0)
