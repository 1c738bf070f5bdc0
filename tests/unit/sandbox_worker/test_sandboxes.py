"""Sandboxes by key: made once, released for good, ended with their lease."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from chassis.errors import FairleadError
from chassis.ids import random_id
from sandbox_worker.execution import ExitReason
from sandbox_worker.held_sandbox import SandboxOrder
from sandbox_worker.network.networks import Networks
from sandbox_worker.ports import Enclosure, SandboxRecord
from sandbox_worker.profile import Profile
from sandbox_worker.sandbox import (
    Fence,
    Limits,
    NetworkMode,
    NetworkPolicy,
    Sandbox,
    SandboxState,
)
from sandbox_worker.sandbox_plans import SandboxPlans
from sandbox_worker.sandboxes import Sandboxes
from tests.eventually import eventually
from tests.fakes.clock import FakeClock
from tests.fakes.egress_doors import ListedDoors
from tests.fakes.isolation import ScriptedIsolation
from tests.fakes.sandbox_stores import ListedTrees, MemoryRecords

pytestmark = pytest.mark.asyncio

_WORKSPACE = random_id("wsp")


class Bench:
    """Sandboxes on fakes."""

    def __init__(self, *records: SandboxRecord, most: int = 5) -> None:
        self.clock = FakeClock()
        self.records = MemoryRecords(*records)
        self.isolation = ScriptedIsolation(home=Path("/"))
        self.sandboxes = Sandboxes(
            host_id="hst",
            id_key=b"k" * 32,
            epoch=7,
            plans=SandboxPlans(
                isolations={"process": self.isolation}, profiles={"default": Profile()}
            ),
            networks=Networks(doors=ListedDoors()),
            records=self.records,
            trees=ListedTrees(trees={_WORKSPACE: Path("/tree"), "other": Path("/other")}),
            clock=self.clock,
            most=most,
            tombstone_seconds=3600,
        )

    async def create(
        self, key: str = "one", lease: float = 0, order: SandboxOrder | None = None
    ) -> Sandbox:
        order = order or SandboxOrder(lease=lease)
        return await self.sandboxes.create(tenant="t", key=key, order=order)

    async def reason(self, key: str = "one") -> str:
        with pytest.raises(FairleadError) as caught:
            await self.create(key)
        return caught.value.reason


async def test_two_creates_at_once_make_one() -> None:
    bench = Bench()
    bench.isolation.hold.clear()
    creating = [asyncio.create_task(bench.create()) for _ in range(3)]
    await asyncio.sleep(0)
    creating[0].cancel()
    await asyncio.wait([creating[0]])
    bench.isolation.hold.set()
    second, third = await creating[1], await creating[2]
    assert second == third
    assert second.state is SandboxState.PROVISIONED
    assert second.limits == Limits(open_files=4096, processes=4096)
    assert len(bench.isolation.enclosures) == 1
    assert list(bench.records.records) == [second.sandbox_id]


async def test_a_failed_create_can_be_tried_again() -> None:
    bench = Bench()
    bench.isolation.fault = True
    assert await bench.reason() == "isolation_failed"
    assert bench.records.records == {}
    assert bench.sandboxes.count == 0
    bench.isolation.fault = False
    assert (await bench.create()).state is SandboxState.PROVISIONED


async def test_a_disk_that_takes_no_record_makes_no_sandbox() -> None:
    bench = Bench()
    bench.records.fault = True
    assert await bench.reason() == "storage_unavailable"
    assert bench.isolation.enclosures == {}


async def test_a_release_while_it_is_made_wins() -> None:
    bench = Bench()
    bench.isolation.hold.clear()
    creating = asyncio.create_task(bench.create())
    await asyncio.sleep(0.01)
    releasing = asyncio.create_task(bench.sandboxes.release(tenant="t", key="one"))
    await asyncio.sleep(0.01)
    assert not releasing.done()
    bench.isolation.hold.set()
    assert await releasing
    with pytest.raises(FairleadError) as caught:
        await creating
    assert caught.value.reason == "sandbox_released"
    assert bench.sandboxes.count == 0
    (enclosure,) = bench.isolation.enclosures.values()
    await enclosure.gone()
    assert await bench.reason() == "sandbox_released"


async def test_a_release_while_the_create_fails_still_wins() -> None:
    bench = Bench()
    bench.isolation.hold.clear()
    bench.isolation.fault = True
    creating = asyncio.create_task(bench.create())
    await asyncio.sleep(0.01)
    releasing = asyncio.create_task(bench.sandboxes.release(tenant="t", key="one"))
    await asyncio.sleep(0.01)
    bench.isolation.hold.set()
    assert await releasing
    with pytest.raises(FairleadError):
        await creating
    assert bench.sandboxes.count == 0
    assert await bench.reason() == "sandbox_released"


async def test_a_release_before_the_create_uses_the_key_up() -> None:
    bench = Bench()
    assert not await bench.sandboxes.release(tenant="t", key="one")
    assert not await bench.sandboxes.release(tenant="t", sandbox_id=random_id("sbx"))
    assert await bench.reason() == "sandbox_released"
    assert len(bench.records.records) == 1


async def test_two_releases_at_once() -> None:
    bench = Bench()
    sandbox = await bench.create()
    outcomes = await asyncio.gather(
        *(bench.sandboxes.release(tenant="t", sandbox_id=sandbox.sandbox_id) for _ in range(3))
    )
    assert sorted(outcomes) == [False, False, True]


async def test_a_release_works_on_a_full_disk() -> None:
    bench = Bench()
    sandbox = await bench.create()
    bench.records.fault = True
    assert await bench.sandboxes.release(tenant="t", sandbox_id=sandbox.sandbox_id)
    assert await bench.reason() == "sandbox_released"


async def test_a_release_waits_for_occupants_and_cancels_visitors() -> None:
    bench = Bench()
    sandbox = await bench.create()
    held, _ = bench.sandboxes.enter("t", sandbox.sandbox_id)
    leave = asyncio.Event()
    occupant = asyncio.create_task(leave.wait())
    held.occupy(occupant)
    inside = asyncio.Event()

    async def visit() -> None:
        with bench.sandboxes.visit("t", sandbox.sandbox_id):
            inside.set()
            await asyncio.sleep(3600)

    visitor = asyncio.create_task(visit())
    await inside.wait()
    releasing = asyncio.create_task(
        bench.sandboxes.release(tenant="t", sandbox_id=sandbox.sandbox_id)
    )
    await asyncio.sleep(0.01)
    assert visitor.cancelled()
    assert held.ending is ExitReason.RELEASED
    assert not releasing.done()
    leave.set()
    assert await releasing


async def test_a_lost_enclosure_ends_its_sandbox() -> None:
    bench = Bench()
    sandbox = await bench.create()
    held, _ = bench.sandboxes.enter("t", sandbox.sandbox_id)
    bench.isolation.enclosures[sandbox.sandbox_id].lose()
    await bench.sandboxes.close()
    assert held.ending is ExitReason.HOST_LOST
    assert bench.records.records[sandbox.sandbox_id].released_at is not None


async def test_one_that_is_lost_while_it_is_made_is_told_as_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    prepare = Networks.prepare

    async def lost(
        networks: Networks, sandbox_id: str, enclosure: Enclosure, policy: NetworkPolicy
    ) -> None:
        bench.isolation.enclosures[sandbox_id].lose()
        await prepare(networks, sandbox_id, enclosure, policy)

    monkeypatch.setattr(Networks, "prepare", lost)
    assert await bench.reason() == "sandbox_lost"
    await bench.sandboxes.close()
    assert await bench.reason() == "sandbox_released"


async def test_leases_end_unless_they_are_renewed() -> None:
    bench = Bench()
    short, renewed = await bench.create("short", 60), await bench.create("renewed", 60)
    bench.clock.advance(30)
    await bench.sandboxes.renew(tenant="t", sandbox_id=renewed.sandbox_id, lease=60)
    bench.clock.advance(40)
    await bench.sandboxes.release_expired()
    with pytest.raises(FairleadError):
        bench.sandboxes.enter("t", short.sandbox_id)
    bench.sandboxes.enter("t", renewed.sandbox_id)
    await bench.sandboxes.close()


async def test_old_tombstones_are_forgotten() -> None:
    bench = Bench()
    await bench.sandboxes.release(tenant="t", key="one")
    bench.clock.advance(3599)
    await bench.sandboxes.release_expired()
    assert await bench.reason() == "sandbox_released"
    bench.clock.advance(2)
    await bench.sandboxes.release_expired()
    assert bench.records.records == {}
    assert (await bench.create()).state is SandboxState.PROVISIONED


async def test_an_earlier_life_is_over() -> None:
    first = Bench()
    sandbox = await first.create()
    second = Bench(*first.records.records.values())
    await second.sandboxes.recover()
    assert second.isolation.cleaned
    assert await second.reason() == "sandbox_released"
    assert second.records.records[sandbox.sandbox_id].released_at is not None
    third = Bench(*second.records.records.values())
    await third.sandboxes.recover()
    assert await third.reason() == "sandbox_released"


async def test_binding() -> None:
    bench = Bench()
    sandbox = await bench.create()
    for _ in range(2):
        bound = await bench.sandboxes.bind(
            tenant="t", sandbox_id=sandbox.sandbox_id, workspace_id=_WORKSPACE
        )
        assert bound.workspace_id == _WORKSPACE
    for workspace_id, reason in (("other", "sandbox_bound"), ("none", "workspace_not_found")):
        with pytest.raises(FairleadError) as caught:
            await bench.sandboxes.bind(
                tenant="t", sandbox_id=sandbox.sandbox_id, workspace_id=workspace_id
            )
        assert caught.value.reason == reason


async def test_two_binds_at_once_bind_one() -> None:
    bench = Bench()
    sandbox = await bench.create()
    outcomes = await asyncio.gather(
        *(
            bench.sandboxes.bind(
                tenant="t", sandbox_id=sandbox.sandbox_id, workspace_id=workspace_id
            )
            for workspace_id in (_WORKSPACE, "other")
        ),
        return_exceptions=True,
    )
    assert sum(isinstance(outcome, Sandbox) for outcome in outcomes) == 1


async def test_a_full_and_a_draining_host() -> None:
    bench = Bench(most=1)
    sandbox = await bench.create()
    assert await bench.reason("two") == "host_full"
    assert (await bench.create()) == sandbox
    bench.sandboxes.drain()
    assert (await bench.create()) == sandbox
    await bench.sandboxes.release(tenant="t", sandbox_id=sandbox.sandbox_id)
    assert await bench.reason("two") == "worker_draining"


@pytest.mark.parametrize(
    ("tenant", "key", "limits", "lease", "reason"),
    [
        ("", "k", Limits(), 0, "argument_invalid"),
        ("t", "", Limits(), 0, "idempotency_key_invalid"),
        ("t", "k", Limits(open_files=3), 0, "limit_invalid"),
        ("t", "k", Limits(memory_bytes=-1), 0, "limit_invalid"),
        ("t", "k", Limits(), -1, "lease_invalid"),
    ],
)
async def test_requests_that_cannot_be(
    tenant: str, key: str, limits: Limits, lease: float, reason: str
) -> None:
    bench = Bench()
    order = SandboxOrder(limits=limits, lease=lease)
    with pytest.raises(FairleadError) as caught:
        await bench.sandboxes.create(tenant=tenant, key=key, order=order)
    assert caught.value.reason == reason
    assert bench.sandboxes.count == 0


async def test_pages() -> None:
    bench = Bench()
    made = sorted([(await bench.create(f"k{number}")).sandbox_id for number in range(5)])
    first, token = bench.sandboxes.page(tenant="", size=3, after="")
    rest, end = bench.sandboxes.page(tenant="t", size=3, after=token)
    assert [each.sandbox_id for each in first + rest] == made
    assert end == ""
    assert bench.sandboxes.page(tenant="other", size=0, after="") == ([], "")
    with pytest.raises(FairleadError):
        bench.sandboxes.page(tenant="t", size=1001, after="")


async def test_a_sandbox_says_what_it_has() -> None:
    bench = Bench()
    sandbox = await bench.create()
    assert sandbox.profile == "default"
    assert sandbox.walls == bench.isolation.walls
    assert sandbox.network == NetworkPolicy(NetworkMode.HOST)
    assert sandbox.fence == Fence(7, 1)
    assert bench.records.records[sandbox.sandbox_id].fence == sandbox.fence


async def test_a_key_means_one_order() -> None:
    bench = Bench()
    await bench.create("one", order=SandboxOrder(lease=60))
    with pytest.raises(FairleadError) as caught:
        await bench.create("one", order=SandboxOrder(lease=61))
    assert caught.value.reason == "idempotency_conflict"


async def test_a_create_with_a_workspace_is_bound_or_leaves_nothing() -> None:
    bench = Bench()
    sandbox = await bench.create(order=SandboxOrder(workspace_id=_WORKSPACE))
    assert sandbox.workspace_id == _WORKSPACE
    with pytest.raises(FairleadError) as caught:
        await bench.create("two", order=SandboxOrder(workspace_id="none"))
    assert caught.value.reason == "workspace_not_found"
    assert list(bench.records.records) == [sandbox.sandbox_id]
    assert list(bench.isolation.enclosures) == [sandbox.sandbox_id]
    assert bench.sandboxes.count == 1


async def test_each_renewal_has_a_later_fence() -> None:
    bench = Bench()
    sandbox = await bench.create()
    enclosure = bench.isolation.enclosures[sandbox.sandbox_id]
    renewed = await bench.sandboxes.renew(tenant="t", sandbox_id=sandbox.sandbox_id, lease=60)
    assert renewed.fence > sandbox.fence
    assert enclosure.fence == renewed.fence
    assert 60 < enclosure.held_for < 70
    enclosure.fence = Fence(8)  # A later life of this host's worker.
    with pytest.raises(FairleadError) as caught:
        await bench.sandboxes.renew(tenant="t", sandbox_id=sandbox.sandbox_id, lease=600)
    assert caught.value.reason == "fence_stale"
    kept = bench.sandboxes.get(tenant="t", sandbox_id=sandbox.sandbox_id)
    assert kept.expires_at == renewed.expires_at


async def test_a_lease_that_is_over_cannot_be_used_before_it_is_swept() -> None:
    bench = Bench()
    sandbox = await bench.create(lease=60)
    bench.clock.advance(60)
    with pytest.raises(FairleadError) as caught:
        await bench.sandboxes.renew(tenant="t", sandbox_id=sandbox.sandbox_id, lease=60)
    assert caught.value.reason == "sandbox_not_found"


async def test_a_sandbox_that_ends_itself_with_its_lease_is_released() -> None:
    bench = Bench()
    sandbox = await bench.create(lease=60)
    held, _ = bench.sandboxes.enter("t", sandbox.sandbox_id)
    bench.clock.advance(62)
    bench.isolation.enclosures[sandbox.sandbox_id].lose()

    async def ending() -> ExitReason | None:
        return held.ending

    assert await eventually(ending) is ExitReason.RELEASED
    await bench.sandboxes.close()
