"""Hosts: a provisioner and a worker that share a file system, as their registrations tell. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from signalling.sandbox import Wall


@dataclass(frozen=True, slots=True)
class Host:
    """One host; the addresses are gRPC targets (`unix:/path` or `host:port`), `isolation` is best
    first; `overlay` says whether its sandboxes can mount layered workspaces, `walls` what walls the
    sandboxes of each isolation have.
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

    @property
    def load(self) -> float:
        """Share of its capacity that is taken; without a capacity, its sandboxes."""
        return self.sandboxes / self.capacity if self.capacity > 0 else float(self.sandboxes)

    @property
    def full(self) -> bool:
        """Say whether it can take no further sandbox."""
        return 0 < self.capacity <= self.sandboxes
