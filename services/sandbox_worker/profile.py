"""Profiles: named sets of isolation, limits, network and lease that sandboxes are made with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from fairlead_limits.table import DEFAULT_LEASE_SECONDS
from sandbox_worker.errors import LimitExceeded, ProfileUnknown
from sandbox_worker.sandbox import (
    DEFAULT_LIMITS,
    DEFAULT_PROFILE,
    Limits,
    NetworkPolicy,
)


@dataclass(frozen=True, slots=True)
class Profile:
    """What a sandbox gets unless it asks for something else.

    An empty `isolation` means the host's best, no `network` the isolation's own. `limits` are also
    the most that may be asked for; 0 among them allows anything.
    """

    name: str = DEFAULT_PROFILE
    isolation: str = ""
    limits: Limits = DEFAULT_LIMITS
    network: NetworkPolicy | None = None
    lease_seconds: float = DEFAULT_LEASE_SECONDS

    def tightened(self, asked: Limits) -> Limits:
        """Return these limits with what is asked in their place; raises LimitExceeded."""
        for each in fields(Limits):
            wanted, most = getattr(asked, each.name), getattr(self.limits, each.name)
            if most and wanted > most:
                raise LimitExceeded(each.name, self.name, most)
        return asked.over(self.limits)


def named(profiles: Mapping[str, Profile], name: str) -> Profile:
    """Return a profile by its name, `default` for none; raises ProfileUnknown."""
    found = profiles.get(name or DEFAULT_PROFILE)
    if found is None:
        raise ProfileUnknown(name, sorted(profiles))
    return found
