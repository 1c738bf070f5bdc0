"""Sandboxes as plain values: limits, states and the isolations that exist."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

ISOLATIONS = ("process", "walled", "gvisor", "microvm")
"""Names of all isolations, from the weakest to the strongest; a host offers some of them."""

LONGEST_LEASE_SECONDS = 24 * 3600.0
DEFAULT_LEASE_SECONDS = 30 * 60.0


class SandboxState(StrEnum):
    """Whether a sandbox can be used."""

    REQUESTED = "requested"
    PROVISIONED = "provisioned"
    RELEASED = "released"


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a sandbox; 0 means none was asked for, or none can be held.

    `memory_bytes` is the address space of each process, `file_bytes` the size of each file written.
    """

    memory_bytes: int = 0
    processes: int = 0
    open_files: int = 0
    file_bytes: int = 0

    def over(self, defaults: Limits) -> Limits:
        """Fill what is 0 here from `defaults`."""
        return Limits(
            memory_bytes=self.memory_bytes or defaults.memory_bytes,
            processes=self.processes or defaults.processes,
            open_files=self.open_files or defaults.open_files,
            file_bytes=self.file_bytes or defaults.file_bytes,
        )


LEAST_LIMITS = Limits(memory_bytes=64 * 1024 * 1024, processes=8, open_files=64, file_bytes=4096)
"""Smaller ones would keep the sandbox's own init from working."""

DEFAULT_LIMITS = Limits(open_files=4096)


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
