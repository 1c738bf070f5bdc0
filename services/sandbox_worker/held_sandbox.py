"""A sandbox that this host holds, with what lives in it, and the rules for asking for one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from sandbox_worker.errors import ArgumentInvalid
from sandbox_worker.execution import ExitReason
from sandbox_worker.ports import Enclosure
from sandbox_worker.sandbox import (
    DEFAULT_LEASE_SECONDS,
    LEAST_LIMITS,
    LONGEST_LEASE_SECONDS,
    Limits,
    Sandbox,
)


@dataclass(eq=False, slots=True)
class HeldSandbox:
    """A sandbox that this host holds, with what lives in it.

    `ending` says, from the moment that it is known, how its executions end. `occupants` are the
    tasks of its executions: a release waits for them. `visitors` are the tasks of connections into
    it: a release cancels them.
    """

    sandbox: Sandbox
    ends_at: float
    enclosure: Enclosure | None = None
    making: asyncio.Task[None] | None = None
    releasing: asyncio.Task[None] | None = None
    ending: ExitReason | None = None
    occupants: set[asyncio.Task[object]] = field(default_factory=set)
    visitors: set[asyncio.Task[object]] = field(default_factory=set)

    def occupy(self, task: asyncio.Task[object]) -> None:
        """Let a release wait for this task."""
        self.occupants.add(task)
        task.add_done_callback(self.occupants.discard)


def lease_seconds(seconds: float) -> float:
    """Return a lease's length, the default for 0; raises ArgumentInvalid."""
    if not 0 <= seconds <= LONGEST_LEASE_SECONDS:
        raise ArgumentInvalid("lease", "is at most 24 h, and not negative")
    return seconds or DEFAULT_LEASE_SECONDS


def check_limits(limits: Limits) -> None:
    """Raise ArgumentInvalid for limits below what a sandbox's own init needs."""
    pairs: list[tuple[str, Callable[[Limits], int]]] = [
        ("limits.memory_bytes", lambda each: each.memory_bytes),
        ("limits.processes", lambda each: each.processes),
        ("limits.open_files", lambda each: each.open_files),
        ("limits.file_bytes", lambda each: each.file_bytes),
    ]
    for name, value in pairs:
        if value(limits) != 0 and value(limits) < value(LEAST_LIMITS):
            raise ArgumentInvalid(name, f"is at least {value(LEAST_LIMITS)}, or 0 for the default")
