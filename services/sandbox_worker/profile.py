"""Profiles: named sets of isolation, limits, network and lease that sandboxes are made with."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace

from fairlead_limits.table import DEFAULT_LEASE_SECONDS
from sandbox_worker.errors import (
    IsolationTooWeak,
    LimitExceeded,
    NetworkExceeded,
    ProfileUnknown,
)
from sandbox_worker.sandbox import (
    DEFAULT_LIMITS,
    DEFAULT_PROFILE,
    ISOLATIONS,
    NETWORKS,
    Limits,
    NetworkMode,
    NetworkPolicy,
)

_LEAST_MEMORY = 2 * 1024**3
_LEAST_PROCESSORS = 1


def default_limits(*, memory: int, processors: int, held: Collection[str]) -> Limits:
    """Return the limits that a profile has unless it names others: of memory half of the machine's,
    at least 2 GiB, and three quarters of its processors, at least one.

    Both only where a cgroup holds them: `held` are its controllers. What each process may have is
    another matter, and address space is not memory.
    """
    return replace(
        DEFAULT_LIMITS,
        memory_bytes=max(memory // 2, _LEAST_MEMORY) if "memory" in held else 0,
        cpu_milli=max(processors * 750, _LEAST_PROCESSORS * 1000) if "cpu" in held else 0,
    )


@dataclass(frozen=True, slots=True)
class Profile:
    """What a sandbox gets unless it asks for something else, and how far it may ask.

    `isolation` is also the weakest that may be asked for; an empty one means the host's best, and
    any that the host offers may be asked for. No `network` means the isolation's own. No
    `network_most` means `egress`, or the default network where that is more. `limits` are also the
    most that may be asked for; 0 among them allows anything.
    """

    name: str = DEFAULT_PROFILE
    isolation: str = ""
    limits: Limits = DEFAULT_LIMITS
    network: NetworkPolicy | None = None
    network_most: NetworkMode | None = None
    lease_seconds: float = DEFAULT_LEASE_SECONDS

    def tightened(self, asked: Limits) -> Limits:
        """Return these limits with what is asked in their place; raises LimitExceeded."""
        for each in fields(Limits):
            wanted, most = getattr(asked, each.name), getattr(self.limits, each.name)
            if most and wanted > most:
                raise LimitExceeded(each.name, self.name, most)
        return asked.over(self.limits)

    def check_isolation(self, asked: str) -> None:
        """Raise IsolationTooWeak for an isolation that is weaker than this profile's."""
        if self.isolation and ISOLATIONS.index(asked) < ISOLATIONS.index(self.isolation):
            raise IsolationTooWeak(asked, self.name, self.isolation)

    def check_network(self, asked: NetworkMode, own: NetworkMode) -> None:
        """Raise NetworkExceeded for more than this profile allows; `own` is the isolation's."""
        most = self.network_most
        if most is None:
            least = self.network.mode if self.network else own
            most = max(NetworkMode.EGRESS, least, key=NETWORKS.index)
        if NETWORKS.index(asked) > NETWORKS.index(most):
            raise NetworkExceeded(asked, self.name, most)


def named(profiles: Mapping[str, Profile], name: str) -> Profile:
    """Return a profile by its name, `default` for none; raises ProfileUnknown."""
    found = profiles.get(name or DEFAULT_PROFILE)
    if found is None:
        raise ProfileUnknown(name, sorted(profiles))
    return found
