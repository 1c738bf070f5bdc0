"""What a sandbox will have: asked for, from a profile, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from chassis.errors import FairleadError
from sandbox_worker.held_sandbox import SandboxOrder
from sandbox_worker.profile import Profile
from sandbox_worker.sandbox import Limits, NetworkMode, NetworkPolicy
from sandbox_worker.sandbox_plans import SandboxPlans
from tests.fakes.isolation import ScriptedIsolation

_SMALL = Profile(
    name="small", limits=Limits(open_files=256, memory_bytes=1 << 30), lease_seconds=90
)


def _plans(*profiles: Profile) -> SandboxPlans:
    named = {profile.name: profile for profile in (Profile(), *profiles)}
    return SandboxPlans(isolations={"process": ScriptedIsolation(home=Path("/"))}, profiles=named)


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
