"""What a sandbox will have: asked for, from a profile, or refused."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from chassis.errors import FairleadError
from sandbox_worker.held_sandbox import SandboxOrder
from sandbox_worker.profile import Profile
from sandbox_worker.sandbox import Limits, NetworkMode, NetworkPolicy, Sandbox, SandboxState
from sandbox_worker.sandbox_plans import SandboxPlans
from tests.fakes.isolation import ScriptedIsolation

_SMALL = Profile(
    name="small", limits=Limits(open_files=256, memory_bytes=1 << 30), lease_seconds=90
)


class _Walled(ScriptedIsolation):
    name = "walled"
    networks = (NetworkMode.NONE, NetworkMode.EGRESS, NetworkMode.HOST)


class _Process(ScriptedIsolation):
    networks = (NetworkMode.HOST,)


def _plans(*profiles: Profile) -> SandboxPlans:
    named = {profile.name: profile for profile in (Profile(), *profiles)}
    return SandboxPlans(isolations={"process": ScriptedIsolation(home=Path("/"))}, profiles=named)


def sandbox_with(network: NetworkPolicy, *, profile: str) -> Sandbox:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return Sandbox(
        sandbox_id="sbx_x",
        tenant="t",
        state=SandboxState.PROVISIONED,
        isolation="walled",
        limits=Limits(),
        host_id="hst_x",
        workspace_id="",
        created_at=now,
        expires_at=now,
        profile=profile,
        network=network,
    )


def _both(*profiles: Profile) -> SandboxPlans:
    """Plans of a host that offers processes beside walls."""
    named = {profile.name: profile for profile in (Profile(), *profiles)}
    home = Path("/")
    isolations = {"process": _Process(home=home), "walled": _Walled(home=home)}
    return SandboxPlans(isolations=isolations, profiles=named)


def test_a_profile_gives_what_is_not_asked_for() -> None:
    plan = _plans(_SMALL).plan(
        SandboxOrder(profile="small", limits=Limits(open_files=128, processes=9))
    )
    assert plan.limits == Limits(open_files=128, memory_bytes=1 << 30, processes=9)
    assert plan.lease == 90


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        (SandboxOrder(profile="large"), "profile_unknown"),
        (SandboxOrder(profile="small", limits=Limits(open_files=257)), "limit_exceeded"),
        (SandboxOrder(network=NetworkPolicy(NetworkMode.NONE)), "network_unavailable"),
        (SandboxOrder(network=NetworkPolicy(NetworkMode.HOST, ("a",))), "network_invalid"),
        (SandboxOrder(isolation="walled"), "isolation_unavailable"),
        (SandboxOrder(isolation="cage"), "isolation_unknown"),
        (SandboxOrder(limits=Limits(wall_seconds=-1)), "limit_invalid"),
        (SandboxOrder(limits=Limits(wall_seconds=float("nan"))), "limit_invalid"),
    ],
)
def test_what_cannot_be_had_is_refused(order: SandboxOrder, reason: str) -> None:
    with pytest.raises(FairleadError) as caught:
        _plans(_SMALL).plan(order)
    assert caught.value.reason == reason
    assert caught.value.remedy


def test_a_profiles_isolation_is_a_floor() -> None:
    plans = _both(Profile(name="strict", isolation="walled"), Profile("loose", isolation="process"))
    with pytest.raises(FairleadError) as caught:
        plans.plan(SandboxOrder(profile="strict", isolation="process"))
    assert (caught.value.reason, caught.value.kind) == ("isolation_too_weak", "permission_denied")
    assert "strict" in caught.value.message
    assert "walled" in caught.value.remedy
    assert plans.plan(SandboxOrder(profile="strict")).isolation.name == "walled"
    assert plans.plan(SandboxOrder(profile="loose")).isolation.name == "process"
    stronger = SandboxOrder(profile="loose", isolation="walled")
    assert plans.plan(stronger).isolation.name == "walled"
    # Without a floor the host's best is given, and what it offers may be asked for.
    assert plans.plan(SandboxOrder()).isolation.name == "walled"
    assert plans.plan(SandboxOrder(isolation="process")).isolation.name == "process"


def test_a_floor_above_what_the_host_offers_is_kept() -> None:
    plans = _plans(Profile(name="strict", isolation="walled"))
    for isolation, reason in (("", "isolation_unavailable"), ("process", "isolation_too_weak")):
        with pytest.raises(FairleadError) as caught:
            plans.plan(SandboxOrder(profile="strict", isolation=isolation))
        assert caught.value.reason == reason


_EGRESS = NetworkPolicy(NetworkMode.EGRESS, ("pypi.org",))
_HOST = NetworkPolicy(NetworkMode.HOST)


@pytest.mark.parametrize(
    ("profile", "most"),
    [
        (Profile(), NetworkMode.EGRESS),
        (Profile("p", network_most=NetworkMode.NONE), NetworkMode.NONE),
        (Profile("p", network_most=NetworkMode.HOST), NetworkMode.HOST),
        # A profile's own network is within its ceiling where it names no other.
        (Profile("p", network=_HOST), NetworkMode.HOST),
        (Profile("p", network=NetworkPolicy(NetworkMode.NONE)), NetworkMode.EGRESS),
    ],
)
def test_a_profiles_network_has_a_ceiling(profile: Profile, most: NetworkMode) -> None:
    plans = _both(profile)
    made = plans.plan(SandboxOrder(profile=profile.name, isolation="walled"))
    sandbox = sandbox_with(made.network, profile=profile.name)
    order = [NetworkMode.NONE, NetworkMode.EGRESS, NetworkMode.HOST]
    for mode in order:
        asked = NetworkPolicy(mode)
        wanted = SandboxOrder(profile=profile.name, isolation="walled", network=asked)
        if order.index(mode) <= order.index(most):
            assert plans.plan(wanted).network == asked
            continue
        with pytest.raises(FairleadError) as caught:
            plans.plan(wanted)
        assert (caught.value.reason, caught.value.kind) == ("network_exceeded", "permission_denied")
        assert caught.value.fields["most"] == most
        with pytest.raises(FairleadError) as caught:
            plans.check_network(sandbox, asked)
        assert caught.value.reason == "network_exceeded"


def test_processes_share_the_hosts_network_unless_a_profile_forbids_it() -> None:
    strict = Profile("strict", network_most=NetworkMode.EGRESS)
    plans = _both(strict)
    assert plans.plan(SandboxOrder(isolation="process")).network == _HOST
    with pytest.raises(FairleadError) as caught:
        plans.plan(SandboxOrder(profile="strict", isolation="process"))
    assert caught.value.reason == "network_exceeded"
