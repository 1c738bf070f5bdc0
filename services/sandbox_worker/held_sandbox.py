"""A sandbox that this host holds, with what lives in it, and the rules for asking for one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from chassis.limits import check_size
from fairlead_limits.table import LEASE, SANDBOX_LIMITS
from sandbox_worker.execution import ExitReason
from sandbox_worker.ports import Enclosure
from sandbox_worker.sandbox import (
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
    """Return a lease's length, the default for 0; raises LimitBroken."""
    if seconds:
        check_size(LEASE, seconds)
    return seconds or default


def check_limits(limits: Limits) -> None:
    """Raise LimitBroken for limits that no sandbox can have."""
    for name, limit in SANDBOX_LIMITS.items():
        check_size(limit, getattr(limits, "wall_seconds" if name == "wall_time" else name))
