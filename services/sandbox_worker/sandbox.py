"""Sandboxes as plain values: limits, walls, networks, states and the isolations that exist."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum

ISOLATIONS = ("process", "walled", "gvisor", "microvm")
"""Names of all isolations, from the weakest to the strongest; a host offers some of them."""

DEFAULT_PROFILE = "default"


class SandboxState(StrEnum):
    """Whether a sandbox can be used."""

    REQUESTED = "requested"
    PROVISIONED = "provisioned"
    RELEASED = "released"


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a sandbox; 0 means none was asked for, or none can be held.

    `memory_bytes` is the address space of each process, or what all of them hold where a cgroup
    counts; `file_bytes` the size of each file written; `cpu_milli` thousandths of a processor;
    `disk_bytes` what the sandbox may add to the disk; `wall_seconds` how long each execution may
    run; `output_bytes` the output that is kept of each execution.
    """

    memory_bytes: int = 0
    processes: int = 0
    open_files: int = 0
    file_bytes: int = 0
    cpu_milli: int = 0
    disk_bytes: int = 0
    wall_seconds: float = 0
    output_bytes: int = 0

    def over(self, defaults: Limits) -> Limits:
        """Fill what is 0 here from `defaults`."""
        names = [each.name for each in fields(Limits)]
        return Limits(**{name: getattr(self, name) or getattr(defaults, name) for name in names})


DEFAULT_LIMITS = Limits(open_files=4096, processes=4096)
"""Without a bound of processes a fork bomb would take all that the machine can have."""


@dataclass(frozen=True, slots=True)
class Wall:
    """One thing that holds a sandbox in; `reason` says why where it does not stand."""

    name: str
    stands: bool
    reason: str = ""


class NetworkMode(StrEnum):
    """How a sandbox is connected."""

    NONE = "none"
    HOST = "host"
    EGRESS = "egress"


NETWORKS = (NetworkMode.NONE, NetworkMode.EGRESS, NetworkMode.HOST)
"""All networks, from what reaches least to what reaches most."""


@dataclass(frozen=True, slots=True)
class NetworkPolicy:
    """What of the network a sandbox reaches; `allow` is what EGRESS lets through its proxy."""

    mode: NetworkMode
    allow: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, order=True)
class Fence:
    """Orders the holders of a sandbox: the life of the host's worker, then a number within it."""

    epoch: int = 0
    counter: int = 0


@dataclass(frozen=True, slots=True)
class Hold:
    """Who holds a sandbox, and for how many seconds from now."""

    fence: Fence
    seconds: float


NO_FENCE = Fence()
HOST_NETWORK = NetworkPolicy(NetworkMode.HOST)


@dataclass(frozen=True, slots=True)
class Sandbox:
    """An isolated place to execute in."""

    sandbox_id: str
    tenant: str
    state: SandboxState
    isolation: str
    limits: Limits
    host_id: str
    workspace_id: str
    created_at: datetime
    expires_at: datetime
    walls: tuple[Wall, ...] = ()
    profile: str = DEFAULT_PROFILE
    network: NetworkPolicy = HOST_NETWORK
    fence: Fence = NO_FENCE
    launch_id: str = ""
