"""Sandboxes as signalling sees them: what to make, and what was made. Pure."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from chassis.allow_list import DEFAULT_PORTS, AllowEntryInvalid, parse_allow_list


class SandboxState(StrEnum):
    """Whether a sandbox can be used."""

    REQUESTED = "requested"
    PROVISIONED = "provisioned"
    RELEASED = "released"


class NetworkMode(StrEnum):
    """How a sandbox is connected."""

    NONE = "none"
    HOST = "host"
    EGRESS = "egress"


@dataclass(frozen=True, slots=True)
class NetworkPolicy:
    """What of the network a sandbox reaches; `allow` is what EGRESS lets through its proxy."""

    mode: NetworkMode
    allow: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NetworkDecision:
    """What a sandbox's proxy decided about one connection; `reason` is `allowed`, or why not."""

    at: datetime
    host: str
    port: int
    address: str
    reason: str


_UNLISTED = ("not_listed", "port_not_listed")
_MOST_ENTRIES = 16


@dataclass(frozen=True, slots=True)
class NetworkView:
    """What a sandbox reaches, and what it lately tried to reach, oldest first."""

    policy: NetworkPolicy
    decisions: tuple[NetworkDecision, ...]

    @property
    def unlisted(self) -> tuple[str, ...]:
        """Entries of an allow list that would permit what was refused for want of one; at most
        16.
        """
        found: dict[str, None] = {}
        for decision in self.decisions:
            if decision.reason not in _UNLISTED or not decision.host:
                continue
            host = f"[{decision.host}]" if ":" in decision.host else decision.host
            entry = host if decision.port in DEFAULT_PORTS else f"{host}:{decision.port}"
            with suppress(AllowEntryInvalid):  # a host that cannot be listed
                parse_allow_list([entry])
                found[entry] = None
        return tuple(found)[:_MOST_ENTRIES]


@dataclass(frozen=True, slots=True)
class Wall:
    """One thing that holds a sandbox in; `reason` says why where it does not stand."""

    name: str
    stands: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a sandbox, as in proto `fairlead.sandbox.v1.Limits`; 0 is the profile's, and in an
    answer none that is held. `wall_time` is in seconds.
    """

    memory_bytes: int = 0
    processes: int = 0
    open_files: int = 0
    file_bytes: int = 0
    cpu_milli: int = 0
    disk_bytes: int = 0
    wall_time: float = 0
    output_bytes: int = 0


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Fence:
    """Orders the holders of a sandbox: the life of its host's worker, then a number within it."""

    epoch: int
    counter: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """An isolated place to execute in, with its walls and a lease.

    `launch_id` is empty for one that has a lease of its own.
    """

    sandbox_id: str
    state: SandboxState
    isolation: str
    limits: Limits
    network: NetworkPolicy | None
    profile: str
    walls: tuple[Wall, ...]
    host_id: str
    workspace_id: str
    launch_id: str
    fence: Fence
    created_at: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxOrder:
    """What a host is to make; `key` makes asking repeatable. What is empty is the profile's."""

    key: str
    isolation: str = ""
    profile: str = ""
    limits: Limits = field(default=NO_LIMITS)
    network: NetworkPolicy | None = None
    lease: timedelta | None = None
    workspace_id: str = ""
    host_id: str = ""
    launch_id: str = ""
