"""Time as a parameter, so that tests never sleep."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """What the rooms read time from."""

    def now(self) -> datetime:
        """Return the wall-clock time, in UTC; for records and expiry times that others read."""
        ...

    def monotonic(self) -> float:
        """Return seconds on a clock that goes only forward, in suspension too; for leases."""
        ...


class SystemClock:
    """The machine's clocks; monotonic is CLOCK_BOOTTIME where the kernel has it."""

    def __init__(self) -> None:
        self._clock_id = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.clock_gettime(self._clock_id)
