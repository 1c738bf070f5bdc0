"""Hosts: a provisioner and a worker that share a file system, as their registrations tell. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from signalling.sandbox import Limits, Wall

_PROCESS = "process"
"""The isolation without walls, which a host gives to one tenant only."""


@dataclass(frozen=True, slots=True)
class Host:
    """One host; the addresses are gRPC targets (`unix:/path` or `host:port`), `isolation` is best
    first; `overlay` says whether its sandboxes can mount layered workspaces, `walls` what walls the
    sandboxes of each isolation have. `process_tenant` is the only one who gets the isolation
    `process` there, empty while nobody has it. `limits` are those of each profile there.
    """

    host_id: str
    workspace_address: str
    sandbox_address: str
    isolation: tuple[str, ...] = ()
    sandboxes: int = 0
    capacity: int = 0
    draining: bool = False
    overlay: bool = False
    profiles: tuple[str, ...] = ()
    walls: Mapping[str, tuple[Wall, ...]] = field(default_factory=dict)
    process_tenant: str = ""
    limits: Mapping[str, Limits] = field(default_factory=dict)

    def offered_to(self, tenant: str) -> tuple[str, ...]:
        """Return the isolations that a tenant can have here, best first; the host has the last word
        about it.
        """
        if self.process_tenant in ("", tenant):
            return self.isolation
        return tuple(name for name in self.isolation if name != _PROCESS)

    def is_reserved_from(self, tenant: str) -> bool:
        """Say whether all that it has is another tenant's: it cannot raise walls."""
        return bool(self.isolation) and not self.offered_to(tenant)

    @property
    def load(self) -> float:
        """Share of its capacity that is taken; without a capacity, its sandboxes."""
        return self.sandboxes / self.capacity if self.capacity > 0 else float(self.sandboxes)

    @property
    def full(self) -> bool:
        """Say whether it can take no further sandbox."""
        return 0 < self.capacity <= self.sandboxes
