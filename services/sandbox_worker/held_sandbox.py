"""A sandbox that this host holds, with what lives in it, and the rules for asking for one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, fields

from sandbox_worker.errors import ArgumentInvalid
from sandbox_worker.execution import ExitReason
from sandbox_worker.ports import Enclosure
from sandbox_worker.sandbox import (
    LEAST_LIMITS,
    LONGEST_LEASE_SECONDS,
    Limits,
    NetworkPolicy,
    Sandbox,
)


@dataclass(frozen=True, slots=True)
class SandboxOrder:
    """What a caller asks for; what is empty, 0 or None is its profile's.

    `lease` is in seconds. With a `workspace_id` the sandbox is bound before anybody sees it.
    """

    isolation: str = ""
    limits: Limits = field(default_factory=Limits)
    lease: float = 0
    profile: str = ""
    network: NetworkPolicy | None = None
    workspace_id: str = ""
    launch_id: str = ""


@dataclass(eq=False, slots=True)
class HeldSandbox:
    """A sandbox that this host holds, with what lives in it.

    `ending` says, from the moment that it is known, how its executions end. `occupants` are the
    tasks of its executions: a release waits for them. `visitors` are the tasks of connections into
    it: a release cancels them.
    """

    sandbox: Sandbox
    order: SandboxOrder
    ends_at: float
    enclosure: Enclosure | None = None
    making: asyncio.Task[None] | None = None
    releasing: asyncio.Task[None] | None = None
    ending: ExitReason | None = None
    renewing: asyncio.Lock = field(default_factory=asyncio.Lock)
    connecting: asyncio.Lock = field(default_factory=asyncio.Lock)
    occupants: set[asyncio.Task[object]] = field(default_factory=set)
    visitors: set[asyncio.Task[object]] = field(default_factory=set)

    def ending_at(self, now: float) -> ExitReason | None:
        """Say how its executions end that end now, None while nothing ends it: one whose lease is
        over has ended itself, also when an execution hears of it first.
        """
        return self.ending or (ExitReason.RELEASED if self.ends_at <= now else None)

    def occupy(self, task: asyncio.Task[object]) -> None:
        """Let a release wait for this task."""
        self.occupants.add(task)
        task.add_done_callback(self.occupants.discard)


def lease_seconds(seconds: float, default: float) -> float:
    """Return a lease's length, the default for 0; raises ArgumentInvalid."""
    if not 0 <= seconds <= LONGEST_LEASE_SECONDS:
        raise ArgumentInvalid("lease", "is at most 24 h, and not negative")
    return seconds or default


def check_limits(limits: Limits) -> None:
    """Raise ArgumentInvalid for limits below what a sandbox's own init needs."""
    for each in fields(Limits):
        value, least = getattr(limits, each.name), getattr(LEAST_LIMITS, each.name)
        # Also what is not a number: it is neither 0 nor at least anything.
        if value != 0 and not value >= least:
            raise ArgumentInvalid(
                f"limits.{each.name}", f"is at least {least:.15g}, or 0 for the default"
            )
