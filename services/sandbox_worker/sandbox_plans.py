"""Makes of what a caller asks for, a profile and what this host can, what a sandbox will have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chassis.allow_list import parse_allow_list
from chassis.limits import check_name
from fairlead_limits.table import ISOLATION, PROFILE
from sandbox_worker.errors import (
    IsolationUnavailable,
    IsolationUnknown,
    NetworkInvalid,
    NetworkUnavailable,
)
from sandbox_worker.held_sandbox import SandboxOrder, check_limits, lease_seconds
from sandbox_worker.ports import Isolation
from sandbox_worker.profile import Profile, named
from sandbox_worker.sandbox import (
    ISOLATIONS,
    Limits,
    NetworkMode,
    NetworkPolicy,
    Sandbox,
    Wall,
)


@dataclass(frozen=True, slots=True)
class SandboxPlan:
    """What a sandbox will have."""

    isolation: Isolation
    profile: str
    limits: Limits
    network: NetworkPolicy
    lease: float


class SandboxPlans:
    """The isolations and the profiles of this host."""

    def __init__(
        self, *, isolations: Mapping[str, Isolation], profiles: Mapping[str, Profile]
    ) -> None:
        self._isolations = isolations
        self._profiles = profiles

    @property
    def isolations(self) -> Sequence[Isolation]:
        """The isolations of this host, weakest first."""
        return [self._isolations[name] for name in ISOLATIONS if name in self._isolations]

    @property
    def names(self) -> Sequence[str]:
        """Their names, weakest first."""
        return [each.name for each in self.isolations]

    @property
    def walls(self) -> Mapping[str, Sequence[Wall]]:
        """The walls that the sandboxes of each isolation have here."""
        return {each.name: each.walls for each in self.isolations}

    @property
    def profiles(self) -> Sequence[str]:
        """The names of the profiles."""
        return sorted(self._profiles)

    def plan(self, order: SandboxOrder) -> SandboxPlan:
        """Return what a sandbox will have.

        Raises LimitBroken, ProfileUnknown, LimitExceeded, IsolationUnknown, IsolationTooWeak,
        IsolationUnavailable, NetworkExceeded, NetworkInvalid, NetworkUnavailable and
        AllowEntryInvalid.
        """
        check_limits(order.limits)
        if order.profile:
            check_name(PROFILE, order.profile)
        if order.isolation:
            check_name(ISOLATION, order.isolation)
        profile = named(self._profiles, order.profile)
        isolation = self._chosen(order.isolation, profile)
        return SandboxPlan(
            isolation=isolation,
            profile=profile.name,
            limits=profile.tightened(order.limits),
            network=_network(order.network or profile.network, isolation, profile),
            lease=lease_seconds(order.lease, profile.lease_seconds),
        )

    def check_network(self, sandbox: Sandbox, asked: NetworkPolicy) -> None:
        """Raise what `plan` raises about networks when a sandbox cannot change to this one.

        Its first process is on the host's network or on its own, for as long as it lives.
        """
        host = NetworkMode.HOST
        isolation = self._isolations[sandbox.isolation]
        named(self._profiles, sandbox.profile).check_network(asked.mode, isolation.networks[0])
        available = [
            mode for mode in isolation.networks if (mode is host) is (sandbox.network.mode is host)
        ]
        _check(asked, sandbox.isolation, available)

    def _chosen(self, asked: str, profile: Profile) -> Isolation:
        name = asked or profile.isolation
        if not name:
            return self.isolations[-1]
        if name not in ISOLATIONS:
            raise IsolationUnknown(name, ISOLATIONS)
        profile.check_isolation(name)
        if name not in self._isolations:
            raise IsolationUnavailable(name, self.names)
        return self._isolations[name]


def _network(asked: NetworkPolicy | None, isolation: Isolation, profile: Profile) -> NetworkPolicy:
    network = asked or NetworkPolicy(isolation.networks[0])
    profile.check_network(network.mode, isolation.networks[0])
    _check(network, isolation.name, isolation.networks)
    return network


def _check(network: NetworkPolicy, isolation: str, available: Sequence[NetworkMode]) -> None:
    if network.allow and network.mode is not NetworkMode.EGRESS:
        raise NetworkInvalid
    parse_allow_list(network.allow)
    if network.mode not in available:
        raise NetworkUnavailable(network.mode, isolation, available)
