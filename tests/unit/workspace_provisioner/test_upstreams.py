"""Upstreams' tips: as fresh as asked for, one fetch for many, and never silently stale."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest

from chassis.errors import FairleadError
from tests.fakes.clock import FakeClock
from workspace_provisioner.errors import HostFull, PackTooLarge, SnapshotIncomplete, UploadIdle
from workspace_provisioner.origin_ports import Sighting, Talk
from workspace_provisioner.origins import (
    Origin,
    OriginFailed,
    OriginFault,
    checked_upstream,
    with_origins,
)
from workspace_provisioner.sources import (
    Changes,
    ObjectFormat,
    ProjectKey,
    Source,
    Tip,
    Upstream,
    checked_source,
)
from workspace_provisioner.upstreams import OriginFetch, Upstreams
from workspace_provisioner.workspaces import Snapshot

LOCAL, FIRST, SECOND = "a" * 40, "b" * 40, "c" * 40
URL = "https://git.example.com/project.git"


class World:
    """Origins, stores and what was seen, in memory."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.tip = FIRST
        self.fault: OriginFault | None = None
        self.refusal: FairleadError | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked = asyncio.Event()
        self.told = asyncio.Event()
        self.talks: list[str] = []
        self.fetched: list[str] = []
        self.whole = {LOCAL}
        self.has_store = True
        self.seen: dict[tuple[ProjectKey, str, str], Sighting] = {}

    def talk(
        self, tenant: str, origin: Origin, object_format: ObjectFormat
    ) -> AbstractAsyncContextManager[Talk]:
        return self._talk(tenant, origin)

    @asynccontextmanager
    async def _talk(self, tenant: str, origin: Origin) -> AsyncIterator[Talk]:
        self.talks.append(f"{tenant} {origin.text}")
        told = self.tip
        self.asked.set()
        await self.gate.wait()
        if self.fault is not None:
            raise OriginFailed(self.fault, "as the test wants it")
        yield _Talk(told)

    async def holds(self, key: ProjectKey) -> bool:
        return self.has_store

    async def knows(self, key: ProjectKey, commit: str) -> bool:
        return commit in self.whole

    async def spaced(self, key: ProjectKey) -> tuple[str, ...]:
        return tuple(self.whole)

    async def receive(
        self, source: Source, tips: tuple[Tip, ...], chunks: AsyncIterator[bytes]
    ) -> Snapshot:
        if self.refusal is not None:
            raise self.refusal
        size = sum([len(chunk) async for chunk in chunks])
        self.fetched.append(source.commit)
        self.whole.add(source.commit)
        now = self.clock.now()
        return Snapshot("snp_x", source.key, "", source.commit, "", tips, now, size)

    async def get(self, key: ProjectKey, upstream: Upstream) -> Sighting | None:
        return self.seen.get((key, upstream.url, upstream.branch))

    async def put(self, key: ProjectKey, upstream: Upstream, sighting: Sighting) -> None:
        self.seen[key, upstream.url, upstream.branch] = sighting
        self.told.set()


@dataclass(slots=True)
class _Talk:
    told: str
    having: list[str] = field(default_factory=list)

    async def tip(self, branch: str) -> str:
        return self.told

    async def pack(self, commit: str, having: Sequence[str]) -> AsyncIterator[bytes]:
        yield b"PACK"


def upstreams(world: World, *, wait: float = 30.0, fetch: float = 60.0) -> Upstreams:
    return Upstreams(
        fetch=OriginFetch(origins=world, stores=world, ancestry=world, intake=world),
        stores=world,
        sightings=world,
        clock=world.clock,
        wait_seconds=wait,
        fetch_seconds=fetch,
    )


def source(*, max_age: timedelta | None = None, tenant: str = "ada") -> Source:
    plain = checked_source(
        tenant=tenant, project="p", object_format="", commit=LOCAL, branch="main", digest="",
        changes=None,
    )  # fmt: skip
    wanted = checked_upstream(URL, "main", max_age)
    return with_origins(plain, upstream=wanted, submodules=False, origin="")


@pytest.mark.asyncio
async def test_without_an_upstream_the_wanted_commit_is_never_replaced() -> None:
    world = World()
    plain = replace(source(), upstream=None)
    assert await upstreams(world).resolve(plain) == (plain, None)
    assert world.talks == []


@pytest.mark.asyncio
async def test_an_origin_that_advanced_gives_its_tip() -> None:
    world = World()
    found = upstreams(world)
    resolved, freshness = await found.resolve(source())
    assert resolved == replace(source(), commit=FIRST)
    assert freshness is not None
    assert (freshness.branch, freshness.as_of, freshness.fallback, freshness.reason) == (
        "main", world.clock.now(), False, "",
    )  # fmt: skip
    world.tip = SECOND
    world.clock.advance(31)
    resolved, _ = await found.resolve(source())
    assert resolved.commit == SECOND
    assert world.fetched == [FIRST, SECOND]


@pytest.mark.asyncio
async def test_what_is_known_is_used_up_to_its_age() -> None:
    world = World()
    found = upstreams(world)
    await found.resolve(source())
    told_at = world.clock.now()
    world.tip = SECOND
    world.clock.advance(10)
    resolved, freshness = await found.resolve(source())
    assert resolved.commit == FIRST
    assert freshness is not None
    assert freshness.as_of == told_at
    assert len(world.talks) == 1
    # Asked for something younger, it asks again.
    resolved, _ = await found.resolve(source(max_age=timedelta(seconds=9)))
    assert resolved.commit == SECOND


@pytest.mark.asyncio
async def test_a_project_in_use_is_refreshed_beside_its_launches() -> None:
    world = World()
    found = upstreams(world)
    await found.resolve(source())
    world.tip = SECOND
    world.clock.advance(20)
    world.gate.clear()
    resolved, _ = await found.resolve(source())  # not held up by the gate
    assert resolved.commit == FIRST
    world.asked.clear()
    await world.asked.wait()
    world.gate.set()
    world.clock.advance(11)
    resolved, _ = await found.resolve(source())
    assert resolved.commit == SECOND
    assert len(world.talks) == 2


@pytest.mark.asyncio
async def test_a_known_tip_that_the_store_lost_is_fetched_again() -> None:
    world = World()
    found = upstreams(world)
    await found.resolve(source())
    world.whole.discard(FIRST)
    resolved, _ = await found.resolve(source())
    assert resolved.commit == FIRST
    assert world.fetched == [FIRST, FIRST]


@pytest.mark.asyncio
async def test_concurrent_launches_share_one_fetch() -> None:
    world = World()
    found = upstreams(world)
    world.gate.clear()
    async with asyncio.TaskGroup() as launches:
        running = [launches.create_task(found.resolve(source())) for _ in range(20)]
        other = launches.create_task(found.resolve(source(tenant="eve")))
        await world.asked.wait()
        world.gate.set()
    assert {task.result()[0].commit for task in running} == {FIRST}
    assert other.result()[0].commit == FIRST
    assert sorted(world.talks) == [f"ada {URL}", f"eve {URL}"]  # never another tenant's


@pytest.mark.asyncio
async def test_a_fetch_that_asked_before_the_launch_is_too_old_for_no_age_at_all() -> None:
    world = World()
    found = upstreams(world)
    world.gate.clear()
    async with asyncio.TaskGroup() as launches:
        early = launches.create_task(found.resolve(source()))
        await world.asked.wait()
        world.tip = SECOND
        world.clock.advance(1)
        late = launches.create_task(found.resolve(source(max_age=timedelta())))
        await asyncio.sleep(0)
        world.gate.set()
    assert early.result()[0].commit == FIRST
    assert late.result()[0].commit == SECOND


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "fault",
    [
        OriginFault.UNREACHABLE,
        OriginFault.DENIED,
        OriginFault.UNAUTHORIZED,
        OriginFault.REDIRECTED,
        OriginFault.BRANCH_MISSING,
        OriginFault.MALFORMED,
    ],
)
async def test_a_fallback_is_told_with_its_reason(fault: OriginFault) -> None:
    world = World()
    found = upstreams(world)
    await found.resolve(source())
    told_at = world.clock.now()
    world.clock.advance(60)
    world.fault = fault
    resolved, freshness = await found.resolve(source())
    assert resolved == source()  # the client's own commit, not an old tip
    assert freshness is not None
    assert (freshness.fallback, freshness.reason, freshness.as_of) == (True, fault, told_at)


@pytest.mark.asyncio
async def test_an_origin_that_never_told_anything() -> None:
    world = World()
    world.fault = OriginFault.UNREACHABLE
    _, freshness = await upstreams(world).resolve(source())
    assert freshness is not None
    assert (freshness.fallback, freshness.as_of) == (True, None)


@pytest.mark.asyncio
async def test_a_hanging_origin_costs_a_launch_its_limit_and_the_fetch_goes_on() -> None:
    world = World()
    found = upstreams(world, wait=0.01)
    world.gate.clear()
    resolved, freshness = await found.resolve(source())
    assert resolved.commit == LOCAL
    assert freshness is not None
    assert (freshness.fallback, freshness.reason) == (True, "origin_timeout")
    world.gate.set()
    await world.told.wait()
    resolved, _ = await found.resolve(source())
    assert resolved.commit == FIRST
    assert len(world.talks) == 1  # it was the first launch's fetch


@pytest.mark.asyncio
async def test_a_fetch_ends_at_its_own_limit() -> None:
    world = World()
    world.gate.clear()
    _, freshness = await upstreams(world, fetch=0.01).resolve(source())
    assert freshness is not None
    assert freshness.reason == "origin_timeout"


@pytest.mark.asyncio
async def test_a_deleted_branch_is_not_served_from_memory() -> None:
    world = World()
    found = upstreams(world)
    await found.resolve(source())
    world.fault = OriginFault.BRANCH_MISSING
    world.clock.advance(1)
    _, freshness = await found.resolve(source(max_age=timedelta()))
    assert freshness is not None
    assert freshness.reason == "origin_branch_missing"
    # Within the age of what was known before: still not served.
    resolved, freshness = await found.resolve(source())
    assert resolved.commit == LOCAL
    assert freshness is not None
    assert freshness.fallback


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("refusal", "reason"),
    [
        (UploadIdle(seconds=1), "origin_timeout"),
        (PackTooLarge(limit=1), "origin_malformed"),
        (SnapshotIncomplete("x"), "origin_commit_missing"),
    ],
)
async def test_what_the_host_does_not_take_in_is_a_fallback_too(
    refusal: FairleadError, reason: str
) -> None:
    world = World()
    world.refusal = refusal
    resolved, freshness = await upstreams(world).resolve(source())
    assert resolved.commit == LOCAL
    assert freshness is not None
    assert (freshness.fallback, freshness.reason) == (True, reason)


@pytest.mark.asyncio
async def test_a_full_host_says_so() -> None:
    world = World()
    world.refusal = HostFull("its disk is nearly full")
    with pytest.raises(HostFull):
        await upstreams(world).resolve(source())


@pytest.mark.asyncio
async def test_a_host_without_the_project_asks_for_an_upload_first() -> None:
    world = World()
    world.has_store = False
    resolved, freshness = await upstreams(world).resolve(source())
    assert resolved.commit == LOCAL
    assert freshness is not None
    assert (freshness.fallback, freshness.reason) == (True, "no_base")
    assert world.talks == []


@pytest.mark.asyncio
async def test_a_tenant_whose_origins_hang_uses_up_its_own_share_only() -> None:
    world = World()
    found = upstreams(world, wait=0.01)
    world.gate.clear()
    for number in range(9):
        wanted = checked_upstream(f"{URL}{number}", "main", None)
        _, freshness = await found.resolve(replace(source(), upstream=wanted))
        assert freshness is not None
        assert freshness.reason == "origin_timeout"
    assert len(world.talks) == 8
    await found.resolve(source(tenant="eve"))
    assert len(world.talks) == 9
    await found.close()


@pytest.mark.asyncio
async def test_closing_stops_the_fetches() -> None:
    world = World()
    found = upstreams(world)
    world.gate.clear()
    launch = asyncio.ensure_future(found.resolve(source()))
    await world.asked.wait()
    await found.close()
    with pytest.raises(asyncio.CancelledError):
        await launch
    assert world.fetched == []


def test_changes_do_not_go_with_an_upstream() -> None:
    plain = replace(source(), upstream=None, changes=Changes("d" * 40, b""))
    with pytest.raises(FairleadError) as raised:
        with_origins(plain, upstream=source().upstream, submodules=False, origin="")
    assert raised.value.reason == "changes_invalid"
