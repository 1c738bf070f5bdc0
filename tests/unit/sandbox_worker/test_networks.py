"""Policies of sandboxes: what is refused, what changes, and what a release leaves."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from chassis.errors import FairleadError
from sandbox_worker.held_sandbox import SandboxOrder
from sandbox_worker.network.network_changes import NetworkChanges
from sandbox_worker.network.networks import Networks
from sandbox_worker.profile import Profile
from sandbox_worker.sandbox import NetworkMode, NetworkPolicy, Sandbox
from sandbox_worker.sandbox_plans import SandboxPlans
from sandbox_worker.sandboxes import Sandboxes
from tests.fakes.clock import FakeClock
from tests.fakes.egress_doors import ListedDoors
from tests.fakes.isolation import ScriptedEnclosure, ScriptedIsolation
from tests.fakes.sandbox_stores import ListedTrees, MemoryRecords

pytestmark = pytest.mark.asyncio

_NONE = NetworkPolicy(NetworkMode.NONE)
_HOST = NetworkPolicy(NetworkMode.HOST)


def egress(*allow: str) -> NetworkPolicy:
    return NetworkPolicy(NetworkMode.EGRESS, allow)


class WalledScript(ScriptedIsolation):
    """Scripted enclosures that say they have a loopback interface of their own."""

    networks: tuple[NetworkMode, ...] = (NetworkMode.NONE, NetworkMode.EGRESS, NetworkMode.HOST)


class Bench:
    """Policies on fakes."""

    def __init__(self, *networks: NetworkMode) -> None:
        self.isolation = WalledScript(home=Path("/"))
        if networks:
            self.isolation.networks = networks
        self.doors = ListedDoors()
        self.networks = Networks(doors=self.doors)
        plans = SandboxPlans(
            isolations={"process": self.isolation},
            profiles={"default": Profile(network_most=NetworkMode.HOST)},
        )
        self.sandboxes = Sandboxes(
            host_id="hst",
            id_key=b"k" * 32,
            epoch=7,
            plans=plans,
            networks=self.networks,
            records=MemoryRecords(),
            trees=ListedTrees(trees={}),
            clock=FakeClock(),
            most=5,
            tombstone_seconds=3600,
        )
        self.changes = NetworkChanges(sandboxes=self.sandboxes, plans=plans, networks=self.networks)

    async def create(self, network: NetworkPolicy | None = None) -> Sandbox:
        order = SandboxOrder(network=network)
        return await self.sandboxes.create(tenant="t", key="one", order=order)

    async def set(self, sandbox: Sandbox, policy: NetworkPolicy, tenant: str = "t") -> Sandbox:
        return await self.changes.set(tenant=tenant, sandbox_id=sandbox.sandbox_id, policy=policy)

    def enclosure(self, sandbox: Sandbox) -> ScriptedEnclosure:
        return self.isolation.enclosures[sandbox.sandbox_id]


async def reason(attempt: asyncio.Future[Sandbox] | object) -> str:
    with pytest.raises(FairleadError) as caught:
        await attempt  # type: ignore[misc]
    return caught.value.reason


async def test_a_sandbox_has_the_default_of_its_isolation() -> None:
    bench = Bench()
    sandbox = await bench.create()
    assert sandbox.network == _NONE
    assert bench.doors.lists == {}
    assert bench.enclosure(sandbox).listener is None


@pytest.mark.parametrize(
    ("available", "policy", "expected"),
    [
        ((NetworkMode.HOST,), egress("a.test"), "network_unavailable"),
        ((NetworkMode.HOST,), _NONE, "network_unavailable"),
        ((NetworkMode.NONE, NetworkMode.EGRESS), _HOST, "network_unavailable"),
        ((), egress("a b"), "allow_entry_invalid"),
        ((), egress(*["a.test"] * 257), "allow_list_too_long"),
        ((), NetworkPolicy(NetworkMode.NONE, ("a.test",)), "network_invalid"),
    ],
)
async def test_what_cannot_be_held_is_refused(
    available: tuple[NetworkMode, ...], policy: NetworkPolicy, expected: str
) -> None:
    bench = Bench(*available)
    assert await reason(bench.create(policy)) == expected
    assert bench.isolation.enclosures == {}
    if policy.mode is not NetworkMode.HOST:
        changing = Bench(*available)
        sandbox = await changing.create()
        assert await reason(changing.set(sandbox, policy)) == expected
        assert changing.changes.get(tenant="t", sandbox_id=sandbox.sandbox_id)[0] == sandbox


async def test_a_policy_is_in_the_answers_and_changes() -> None:
    bench = Bench()
    sandbox = await bench.create(egress("a.test"))
    assert sandbox.network == egress("a.test")
    first = bench.doors.lists[sandbox.sandbox_id]
    assert first is not None
    assert first.allows("a.test", 443)
    changed = await bench.set(sandbox, egress("b.test"))
    assert changed.network == egress("b.test")
    second = bench.doors.lists[sandbox.sandbox_id]
    assert second is not None
    assert not second.allows("a.test", 443)
    assert await bench.set(sandbox, _NONE) == bench.sandboxes.get(
        tenant="t", sandbox_id=sandbox.sandbox_id
    )
    assert bench.doors.lists == {sandbox.sandbox_id: None}
    await bench.sandboxes.close()


async def test_nobody_comes_to_the_hosts_network_or_leaves_it() -> None:
    walled, plain = Bench(), Bench()
    assert await reason(walled.set(await walled.create(), _HOST)) == "network_unavailable"
    on_host = await plain.create(_HOST)
    assert await reason(plain.set(on_host, egress("a.test"))) == "network_unavailable"
    assert await plain.set(on_host, _HOST) == on_host


async def test_foreign_sandboxes_are_not_found() -> None:
    bench = Bench()
    sandbox = await bench.create()
    assert await reason(bench.set(sandbox, egress("a.test"), tenant="u")) == "sandbox_not_found"
    with pytest.raises(FairleadError, match="no such sandbox"):
        bench.changes.get(tenant="u", sandbox_id=sandbox.sandbox_id)


async def test_two_changes_at_once_listen_once_and_the_later_one_holds() -> None:
    bench = Bench()
    sandbox = await bench.create()
    enclosure = bench.enclosure(sandbox)
    enclosure.listening.clear()
    first = asyncio.create_task(bench.set(sandbox, egress("a.test")))
    second = asyncio.create_task(bench.set(sandbox, egress("b.test")))
    await asyncio.sleep(0)
    enclosure.listening.set()
    assert (await first).network == egress("a.test")
    assert (await second).network == egress("b.test")
    allowed = bench.doors.lists[sandbox.sandbox_id]
    assert allowed is not None
    assert allowed.allows("b.test", 443)
    assert enclosure.listener is bench.doors.listeners[sandbox.sandbox_id]
    await bench.sandboxes.close()


async def test_a_release_while_a_change_is_under_way_leaves_no_door() -> None:
    bench = Bench()
    sandbox = await bench.create()
    enclosure = bench.enclosure(sandbox)
    enclosure.listening.clear()
    changing = asyncio.create_task(bench.set(sandbox, egress("a.test")))
    await asyncio.sleep(0)
    releasing = asyncio.create_task(
        bench.sandboxes.release(tenant="t", sandbox_id=sandbox.sandbox_id)
    )
    await asyncio.sleep(0)
    enclosure.listening.set()
    assert await reason(changing) == "sandbox_not_found"
    assert await releasing
    assert bench.doors.lists == {}
    assert enclosure.listener is not None
    assert enclosure.listener.fileno() == -1, "nobody holds the listener"


async def test_a_release_closes_the_door_and_no_change_comes_after() -> None:
    bench = Bench()
    sandbox = await bench.create(egress("a.test"))
    listener = bench.enclosure(sandbox).listener
    assert listener is not None
    assert await bench.sandboxes.release(tenant="t", sandbox_id=sandbox.sandbox_id)
    assert bench.doors.lists == {}
    assert listener.fileno() == -1
    assert await reason(bench.set(sandbox, egress("a.test"))) == "sandbox_not_found"


async def test_a_sandbox_that_is_lost_closes_its_door() -> None:
    bench = Bench()
    sandbox = await bench.create(egress("a.test"))
    bench.enclosure(sandbox).lose()
    await bench.sandboxes.close()
    assert bench.doors.lists == {}
