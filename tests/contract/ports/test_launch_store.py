"""The records, events and locations of launches: one suite for the fake and for Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

import pytest
from redis.asyncio import Redis

from chassis.errors import FairleadError
from chassis.ids import random_id
from chassis.redis_client import open_redis
from signalling.execution import Exit, ExitReason
from signalling.host import Host
from signalling.launch import (
    CancelReason,
    ControlEvent,
    Failure,
    Happening,
    Launch,
    LaunchCancelled,
    LaunchExited,
    LaunchFailed,
    LaunchProvisioned,
    LaunchState,
    OfferAnswered,
    SnapshotMissed,
    Step,
    StepChanged,
    StepState,
)
from signalling.launch_errors import CursorGone
from signalling.launch_record import ExecutionPlace, LaunchRecord
from signalling.ports import EventLog, LaunchStore, Locations, Saved
from signalling.redis_launches import RedisEvents, RedisLaunches, RedisLocations
from signalling.snapshot import MissReason
from tests.fakes.launch_store import FakeLaunchStore
from tests.redis_fixture import RedisServer

NOW = datetime(2026, 11, 21, 12, 0, 0, 123456, tzinfo=UTC)
EXIT = Exit(ExitReason.SIGNALLED, None, 9, 7, NOW)
Stores: TypeAlias = tuple[LaunchStore, EventLog, Locations]


@pytest.fixture(params=["fake", "redis"])
def stores(request: pytest.FixtureRequest) -> Stores:
    if request.param == "fake":
        fake = FakeLaunchStore()
        return fake, fake, fake
    redis: Redis = request.getfixturevalue("redis")
    return RedisLaunches(redis=redis), RedisEvents(redis=redis), RedisLocations(redis=redis)


def record(*, tenant: str = "default", at: datetime = NOW, **changes: object) -> LaunchRecord:
    launch = Launch(
        launch_id=random_id("lch"),
        state=LaunchState.REQUESTED,
        created_at=at,
        project="Grüße \U0001f44b",
        commit="c" * 40,
        branch="main",
        arguments=("printf", "\t%s\n", "ü"),
        keep=True,
        trace_id="f" * 32,
        expires_at=at + timedelta(hours=1),
        host_id="hst_x",
    )
    return LaunchRecord(
        tenant=tenant,
        owner="one",
        fingerprint="f",
        launch=replace(launch, **changes),  # type: ignore[arg-type]
        host=Host("hst_x", "unix:/w", "unix:/s", ("process", "walled")),
        lease=timedelta(seconds=90.5),
        has_command=True,
        has_channel=False,
        traceparent=f"00-{'f' * 32}-{'e' * 16}-01",
    )


def event(number: int, happening: Happening | None = None) -> ControlEvent:
    return ControlEvent(number, NOW, happening or StepChanged(Step.SANDBOX, StepState.STARTED))


@pytest.mark.asyncio
async def test_a_record_is_created_once(stores: Stores) -> None:
    store, _, _ = stores
    first = record()
    assert await store.create(first) is None
    assert await store.create(first) is None
    assert await store.create(replace(first, fingerprint="other")) == first
    assert await store.get("default", first.launch_id) == first
    assert await store.get("other", first.launch_id) is None
    assert await store.get("default", random_id("lch")) is None


@pytest.mark.asyncio
async def test_creating_at_once_lets_one_win(stores: Stores) -> None:
    store, _, _ = stores
    first = record()
    tries = [replace(first, fingerprint=str(number)) for number in range(10)]
    answers = await asyncio.gather(*(store.create(one) for one in tries))
    assert answers.count(None) == 1
    winner = tries[answers.index(None)]
    assert all(answer in (None, winner) for answer in answers)


@pytest.mark.asyncio
async def test_everything_of_a_launch_is_kept(stores: Stores) -> None:
    store, _, _ = stores
    first = record(
        state=LaunchState.FAILED,
        ended_at=NOW,
        released_at=NOW,
        expires_at=None,
        workspace_id="wsp",
        sandbox_id="sbx",
        isolation="process",
        session_id="ses",
        execution_id="exe",
        exit=EXIT,
        failure=Failure(Step.CHANNEL, "why", "A sentence.", "A remedy."),
    )
    assert await store.create(first) is None
    assert await store.get("default", first.launch_id) == first
    other = replace(
        first.next(), launch=replace(first.launch, failure=Failure(None, "why", "S."), exit=None)
    )
    assert await store.save(other, []) is Saved.DONE
    assert await store.get("default", first.launch_id) == other


@pytest.mark.asyncio
async def test_a_write_needs_the_version_before(stores: Stores) -> None:
    store, log, _ = stores
    first = record()
    assert await store.save(first.next(), [event(1)]) is Saved.MISSING
    assert await log.after(first.launch_id, 0, wait=0) == []
    await store.create(first)
    second = first.next()
    assert await store.save(second, [event(1)]) is Saved.DONE
    assert await store.save(replace(second, last_event=1), [event(1)]) is Saved.DONE
    assert await store.save(replace(second, owner="two"), [event(2)]) is Saved.CONFLICT
    assert await store.save(first, [event(2)]) is Saved.CONFLICT
    assert await store.save(second.next().next(), [event(2)]) is Saved.CONFLICT
    assert [one.number for one in await log.after(first.launch_id, 0, wait=0)] == [1]
    assert await store.get("default", first.launch_id) == replace(second, last_event=1)


@pytest.mark.asyncio
async def test_a_lost_record_is_restored_with_its_events(stores: Stores) -> None:
    store, log, locations = stores
    lost = replace(record(sandbox_id="sbx_" + "a" * 26, execution_id="exe_" + "a" * 26), version=7)
    await store.restore(lost, [event(1), event(2)])
    assert await store.get("default", lost.launch_id) == lost
    assert await store.owned("one") == [lost]
    await store.restore(lost, [event(1), event(2), event(3)])
    assert [one.number for one in await log.after(lost.launch_id, 0, wait=0)] == [1, 2, 3]
    place = ExecutionPlace("default", lost.host, lost.launch.sandbox_id)
    assert await locations.sandbox(lost.launch.sandbox_id) == place
    assert await locations.execution(lost.launch.execution_id) == place
    assert (await store.page("default", 10, ""))[0] == [lost]


@pytest.mark.asyncio
async def test_events_are_read_after_a_number(stores: Stores) -> None:
    store, log, _ = stores
    first = record()
    await store.create(first)
    happenings: list[Happening] = [
        StepChanged(Step.WORKSPACE, StepState.DONE, 0.25, None, "checkout"),
        StepChanged(Step.WORKSPACE, StepState.FAILED, 1, Failure(Step.WORKSPACE, "r", "m", "x")),
        SnapshotMissed(MissReason.UNKNOWN_COMMIT, ("a",), ("b", "c"), "token", NOW),
        OfferAnswered("ses", "v=0\r\n"),
        LaunchProvisioned(first.launch),
        LaunchExited(EXIT, None, discarded=True),
        LaunchExited(replace(EXIT, reason=ExitReason.EXITED, code=0, signal=None), 3, False),
        LaunchFailed(Failure(None, "r", "m")),
        LaunchCancelled(CancelReason.LEASE_EXPIRED),
    ]
    events = [event(number, one) for number, one in enumerate(happenings, start=1)]
    await store.save(first.next(), events[:4])
    await store.save(first.next().next(), events[4:])
    assert await log.after(first.launch_id, 0, wait=0) == events
    assert await log.after(first.launch_id, 6, wait=1) == events[6:]
    assert await log.after(first.launch_id, 99, wait=0) == []


@pytest.mark.asyncio
async def test_a_reader_waits_for_the_next_event(stores: Stores) -> None:
    store, log, _ = stores
    first = record()
    await store.create(first)
    waiting = asyncio.ensure_future(log.after(first.launch_id, 0, wait=60))
    while not waiting.done():
        await asyncio.sleep(0.01)
        if await store.save(first.next(), [event(1001)]) is Saved.DONE:
            break
    assert await waiting == [event(1001)]
    assert await log.after(first.launch_id, 1001, wait=0.01) == []


@pytest.mark.asyncio
async def test_launches_are_listed_newest_first(stores: Stores) -> None:
    store, _, _ = stores
    same = [record(at=NOW) for _ in range(4)]
    later = [record(at=NOW + timedelta(seconds=number)) for number in range(1, 4)]
    for one in [*same, *later, record(tenant="other")]:
        await store.create(one)
    expected = [*reversed(later), *sorted(same, key=lambda one: one.launch_id, reverse=True)]
    for size in (1, 2, 3, 7, 100):
        found: list[LaunchRecord] = []
        token = ""
        while True:
            page, token = await store.page("default", size, token)
            assert len(page) <= size
            found += page
            if not token:
                break
        assert found == expected
    assert await store.page("nobody", 10, "") == ([], "")
    with pytest.raises(FairleadError, match="page token"):
        await store.page("default", 10, "?")


@pytest.mark.asyncio
async def test_a_replica_finds_what_it_has_not_finished(stores: Stores) -> None:
    store, _, _ = stores
    running, done, other = record(), record(), replace(record(), owner="two")
    for one in (running, done, other):
        await store.create(one)
    finished = replace(done.launch, state=LaunchState.EXITED, released_at=NOW)
    await store.save(replace(done.next(), launch=finished), [])
    assert await store.owned("one") == [running]
    assert await store.owned("two") == [other]
    await store.discard(running)
    assert await store.owned("one") == []
    assert await store.get("default", running.launch_id) is None
    assert running not in (await store.page("default", 10, ""))[0]


@pytest.mark.asyncio
async def test_the_mark_of_a_replica_is_left_once(stores: Stores) -> None:
    store, _, _ = stores
    assert await store.claim("one")
    assert not await store.claim("one")
    assert await store.claim("two")


@pytest.mark.asyncio
async def test_executions_are_found(stores: Stores) -> None:
    _, _, locations = stores
    place = ExecutionPlace("default", record().host, "sbx_a")
    assert await locations.execution("exe_a") is None
    assert await locations.sandbox("sbx_a") is None
    await locations.put_execution("exe_a", place)
    assert await locations.execution("exe_a") == place


@pytest.mark.asyncio
async def test_events_that_were_trimmed_are_gone(redis: Redis) -> None:
    store, log = RedisLaunches(redis=redis), RedisEvents(redis=redis)
    first = record()
    await store.create(first)
    await store.save(first.next(), [event(number) for number in range(1, 10)])
    await redis.xtrim(f"fairlead:launch-events:{first.launch_id}", maxlen=3, approximate=False)
    with pytest.raises(CursorGone):
        await log.after(first.launch_id, 2, wait=0)
    for number in (6, 0):  # 0 is not a position: it asks for all that is kept
        assert len(await log.after(first.launch_id, number, wait=0)) == 3


@pytest.mark.asyncio
async def test_the_gap_that_a_recovery_leaves_is_no_loss(redis: Redis) -> None:
    store, log = RedisLaunches(redis=redis), RedisEvents(redis=redis)
    first = record()
    await store.create(first)
    await store.save(first.next(), [event(number) for number in range(1004, 1008)])
    for number in (0, 3, 1003):
        assert len(await log.after(first.launch_id, number, wait=0)) == 4


@pytest.mark.asyncio
async def test_a_listed_launch_whose_record_is_gone_is_left_out(redis: Redis) -> None:
    store = RedisLaunches(redis=redis)
    records = [record(at=NOW + timedelta(seconds=number)) for number in range(6)]
    for one in records:
        await store.create(one)
    for one in records[2:5]:
        await redis.delete(f"fairlead:launch:default:{one.launch_id}")
    page, token = await store.page("default", 2, "")
    assert page == [records[5], records[1]]
    assert (await store.page("default", 2, token))[0] == [records[0]]


@pytest.mark.asyncio
async def test_a_redis_that_is_away_is_said_to_be(own_redis: RedisServer) -> None:
    calls: list[Callable[[Redis], object]] = [
        lambda redis: RedisLaunches(redis=redis).create(record()),
        lambda redis: RedisLaunches(redis=redis).save(record(), []),
        lambda redis: RedisLaunches(redis=redis).get("default", "lch_x"),
        lambda redis: RedisLaunches(redis=redis).page("default", 5, ""),
        lambda redis: RedisLaunches(redis=redis).owned("one"),
        lambda redis: RedisLaunches(redis=redis).claim("one"),
        lambda redis: RedisLaunches(redis=redis).discard(record()),
        lambda redis: RedisEvents(redis=redis).after("lch_x", 0, wait=1),
        lambda redis: RedisLocations(redis=redis).sandbox("sbx_x"),
    ]
    own_redis.stop()
    async with open_redis(own_redis.url) as redis:
        for call in calls:
            with pytest.raises(FairleadError) as raised:
                await call(redis)  # type: ignore[misc]
            assert raised.value.reason == "redis_unavailable"
