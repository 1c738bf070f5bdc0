"""What the session store and the gateway directory promise, for the fakes and for Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, replace

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from chassis.errors import Unavailable
from chassis.redis_client import open_redis
from signalling.close_reason import CloseReason
from signalling.gateway import Gateway
from signalling.ice_servers import IcePolicy
from signalling.launch_errors import LaunchNotHeld
from signalling.redis_sessions import RedisGateways, RedisSessions
from signalling.session import Session, SessionMode
from signalling.session_ports import GatewayDirectory, Notice, SessionStore
from tests.fakes.clock import START, FakeClock
from tests.fakes.sessions import (
    ANSWER,
    OFFER,
    TERMS,
    FakeGatewayDirectory,
    FakeSessionStore,
    candidate,
)
from tests.redis_fixture import RedisServer

pytestmark = pytest.mark.asyncio

ORIGIN = "rep_" + "a" * 26


@dataclass(frozen=True)
class Stores:
    sessions: SessionStore
    elsewhere: SessionStore
    """The same store as another replica has it."""
    gateways: GatewayDirectory


@pytest_asyncio.fixture(params=["fake", "redis"])
async def stores(request: pytest.FixtureRequest) -> AsyncIterator[Stores]:
    if request.param == "fake":
        fake = FakeSessionStore(FakeClock())
        yield Stores(fake, fake.replica(), FakeGatewayDirectory())
        return
    async with open_redis(request.getfixturevalue("redis_url")) as redis:
        await redis.flushall()
        yield Stores(
            RedisSessions(redis=redis, origin=ORIGIN),
            RedisSessions(redis=redis, origin="rep_" + "b" * 26),
            RedisGateways(redis=redis, lease_seconds=15),
        )


def opened(letter: str = "a") -> Session:
    return Session(
        session_id="ses_" + letter * 26,
        tenant="default",
        launch_id="lch_" + "a" * 26,
        gateway_id="gtw_" + "a" * 26,
        created_at=START,
        expires_at=START,
    )


async def test_what_is_saved_is_read_again(stores: Stores) -> None:
    session = opened()
    assert await stores.sessions.get(session.session_id) is None
    assert await stores.sessions.save(session, ttl_seconds=60)
    assert await stores.sessions.get(session.session_id) == session
    offered = session.with_offer(OFFER, expires_at=START, traceparent="00-trace")
    assert await stores.sessions.save(offered, ttl_seconds=60)
    answered = offered.with_answer(ANSWER)
    assert await stores.sessions.save(answered, ttl_seconds=60)
    assert await stores.sessions.get(session.session_id) == answered
    closed = answered.closed(CloseReason.OFFER_FAILED, "a sentence")
    assert await stores.sessions.save(closed, ttl_seconds=60)
    assert await stores.sessions.get(session.session_id) == closed


async def test_only_the_successor_is_written(stores: Stores) -> None:
    session = opened()
    offered = session.with_offer(OFFER, expires_at=START)
    assert not await stores.sessions.save(offered, ttl_seconds=60)
    assert await stores.sessions.save(session, ttl_seconds=60)
    other = replace(session, tenant="other")
    assert not await stores.sessions.save(other, ttl_seconds=60)
    assert await stores.sessions.save(offered, ttl_seconds=60)
    assert not await stores.sessions.save(
        session.with_offer("another", expires_at=START), ttl_seconds=60
    )
    assert await stores.sessions.get(session.session_id) == offered


async def test_writing_the_same_again_succeeds(stores: Stores) -> None:
    session = opened()
    assert await stores.sessions.save(session, ttl_seconds=60)
    assert await stores.sessions.save(session, ttl_seconds=60)


async def test_of_many_writers_one_wins(stores: Stores) -> None:
    session = opened()
    await stores.sessions.save(session, ttl_seconds=60)
    written = await asyncio.gather(
        *(
            stores.sessions.save(
                session.with_offer(f"offer {number}", expires_at=START), ttl_seconds=60
            )
            for number in range(10)
        )
    )
    assert written.count(True) == 1


async def test_a_lost_record_is_written_only_when_that_is_asked_for(stores: Stores) -> None:
    offered = opened().with_offer(OFFER, expires_at=START)
    assert not await stores.sessions.save(offered, ttl_seconds=60)
    assert await stores.sessions.save(offered, ttl_seconds=60, restore=True)
    assert await stores.sessions.get(offered.session_id) == offered
    stale = replace(opened(), version=7)
    assert not await stores.sessions.save(stale, ttl_seconds=60, restore=True)


async def test_open_sessions_are_found_by_gateway_and_launch(stores: Stores) -> None:
    one, two = opened("a"), opened("b")
    elsewhere = replace(opened("c"), gateway_id="gtw_" + "z" * 26, launch_id="lch_" + "z" * 26)
    for session in (two, one, elsewhere):
        await stores.sessions.save(session, ttl_seconds=60)
    assert list(await stores.sessions.of_gateway(one.gateway_id)) == [one, two]
    assert list(await stores.sessions.of_launch(one.launch_id)) == [one, two]
    await stores.sessions.save(one.closed(CloseReason.REQUESTED), ttl_seconds=60)
    assert list(await stores.sessions.of_gateway(one.gateway_id)) == [two]
    assert list(await stores.sessions.of_launch(one.launch_id)) == [two]
    assert list(await stores.sessions.of_launch("lch_unknown")) == []


async def test_no_session_is_opened_of_a_launch_that_has_ended(stores: Stores) -> None:
    before, after = opened("a"), opened("b")
    assert await stores.sessions.save(before, ttl_seconds=60)
    await stores.elsewhere.end_launch(before.launch_id, remembered_seconds=60)
    with pytest.raises(LaunchNotHeld):
        await stores.sessions.save(after, ttl_seconds=60)
    assert await stores.sessions.get(after.session_id) is None
    closed = before.closed(CloseReason.LAUNCH_ENDED)
    assert await stores.sessions.save(closed, ttl_seconds=60)
    elsewhere = replace(after, launch_id="lch_" + "z" * 26)
    assert await stores.sessions.save(elsewhere, ttl_seconds=60)


async def test_a_tenants_sessions_are_listed_page_by_page(stores: Stores) -> None:
    mine = [opened(letter) for letter in "abcd"]
    for session in (*reversed(mine), replace(opened("e"), tenant="other")):
        await stores.sessions.save(session, ttl_seconds=60)
    first, following = await stores.sessions.of_tenant("default", after="", size=3)
    assert list(first) == mine[:3]
    assert following == mine[2].session_id
    assert await stores.sessions.of_tenant("default", after=following, size=3) == (mine[3:], "")
    await stores.sessions.save(mine[1].closed(CloseReason.REQUESTED), ttl_seconds=60)
    listed, _ = await stores.sessions.of_tenant("default", after="", size=3)
    assert list(listed) == [mine[0], mine[2], mine[3]]
    assert await stores.sessions.of_tenant("nobody", after="", size=3) == ([], "")


async def test_a_list_that_was_lost_with_its_records_is_made_again(redis: Redis) -> None:
    store = RedisSessions(redis=redis, origin=ORIGIN)
    await store.save(opened(), ttl_seconds=60)
    await redis.flushall()
    offered = opened().with_offer(OFFER, expires_at=START)
    await store.save(offered, ttl_seconds=60, restore=True)
    assert await store.of_tenant("default", after="", size=9) == ([offered], "")
    await store.save(offered.closed(CloseReason.REQUESTED), ttl_seconds=60)
    assert await redis.exists("fairlead:tenant-sessions:default") == 0


async def test_what_expired_without_a_word_leaves_the_list(redis: Redis) -> None:
    store = RedisSessions(redis=redis, origin=ORIGIN)
    for letter in "ab":
        await store.save(opened(letter), ttl_seconds=60)
    await redis.delete(f"fairlead:session:{opened('a').session_id}")
    assert await store.of_tenant("default", after="", size=9) == ([opened("b")], "")
    index = "fairlead:tenant-sessions:default"
    assert await redis.zrange(index, 0, -1) == [opened("b").session_id]


async def test_many_are_read_at_once(stores: Stores) -> None:
    one, two = opened("a"), opened("b")
    for session in (one, two):
        await stores.sessions.save(session, ttl_seconds=60)
    ids = [one.session_id, "ses_unknown", two.session_id]
    assert list(await stores.sessions.get_many(ids)) == [one, two]
    assert list(await stores.sessions.get_many([])) == []


async def test_a_record_with_everything_in_it_is_read_again(stores: Stores) -> None:
    session = replace(opened(), mode=SessionMode.TRICKLE, ice_policy=IcePolicy.RELAY)
    session, _ = session.with_candidates(0, [candidate(1)], ended=True)
    await stores.sessions.save(replace(session, version=1), ttl_seconds=60)
    session = replace(session, version=1).with_offer(OFFER, expires_at=START)
    session = session.with_found(1, 0, [candidate(2)], ended=True).with_answer(ANSWER)
    session = session.connected(expires_at=START).restarted("another", expires_at=START)
    session = replace(session.refused("no", round_number=2).restart_wanted(2), version=2)
    assert await stores.sessions.save(session, ttl_seconds=60)
    assert await stores.sessions.get(session.session_id) == session


async def test_other_replicas_are_told_of_changes(stores: Stores) -> None:
    session = opened()
    async with aclosing(stores.elsewhere.changes()) as changes:
        assert await anext(changes) is None  # what happened before is not known
        await stores.elsewhere.save(session, ttl_seconds=60)  # its own are not told
        await stores.sessions.save(session.with_offer(OFFER, expires_at=START), ttl_seconds=60)
        told = await anext(changes)
    assert told is not None
    assert list(told) == [Notice(session.session_id, session.gateway_id)]


async def test_a_subscription_that_broke_is_made_anew(redis: Redis) -> None:
    store = RedisSessions(redis=redis, origin=ORIGIN)
    elsewhere = RedisSessions(redis=redis, origin="rep_" + "b" * 26)
    async with aclosing(store.changes()) as changes:
        assert await anext(changes) is None
        await redis.client_kill_filter(_type="pubsub")
        assert await anext(changes) is None
        await elsewhere.save(opened(), ttl_seconds=60)
        assert await anext(changes) == [Notice(opened().session_id, opened().gateway_id)]


async def test_gateways_are_listed_until_they_are_removed(stores: Stores) -> None:
    one = Gateway(
        "gtw_" + "a" * 26,
        START,
        capacity=4,
        sessions=1,
        channels=2,
        draining=True,
        can_trickle=True,
        tunnel=TERMS,
    )
    two = Gateway("gtw_" + "b" * 26, START)
    for gateway in (two, one, one):
        await stores.gateways.put(gateway)
    assert list(await stores.gateways.list()) == [one, two]
    await stores.gateways.remove(one.gateway_id)
    await stores.gateways.remove(one.gateway_id)
    assert list(await stores.gateways.list()) == [two]


async def test_redis_forgets_after_the_time_to_live(redis: Redis) -> None:
    store = RedisSessions(redis=redis, origin=ORIGIN)
    session = opened()
    await store.save(session, ttl_seconds=30)
    for key in (
        f"fairlead:session:{session.session_id}",
        f"fairlead:gateway-sessions:{session.gateway_id}",
        f"fairlead:launch-sessions:{session.launch_id}",
    ):
        assert 29_000 < await redis.pttl(key) <= 30_000
    await RedisGateways(redis=redis, lease_seconds=15).put(Gateway("gtw_" + "a" * 26, START))
    assert 14_000 < await redis.pttl("fairlead:gateway:gtw_" + "a" * 26) <= 15_000


async def test_a_gateway_whose_lease_ran_out_leaves_the_index(redis: Redis) -> None:
    gateways = RedisGateways(redis=redis, lease_seconds=15)
    one = Gateway("gtw_" + "a" * 26, START)
    await gateways.put(one)
    await redis.delete(f"fairlead:gateway:{one.gateway_id}")
    assert list(await gateways.list()) == []
    assert await redis.exists("fairlead:gateways") == 0


async def test_a_redis_that_is_away_is_a_typed_error(own_redis: RedisServer) -> None:
    async with open_redis(own_redis.url) as redis:
        own_redis.stop()
        with pytest.raises(Unavailable) as caught:
            await RedisSessions(redis=redis, origin=ORIGIN).get("ses_" + "a" * 26)
        assert caught.value.reason == "redis_unavailable"
        with pytest.raises(Unavailable):
            await RedisGateways(redis=redis, lease_seconds=15).list()
