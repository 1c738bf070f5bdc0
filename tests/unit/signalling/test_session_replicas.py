"""Two replicas over one store: a client at one, its gateway at the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager

import pytest

from signalling.association import Association, Give, Order, Unwant, Want
from signalling.close_reason import CloseReason
from signalling.gateway import Gateway, GatewayUnavailable
from signalling.launch_errors import LaunchNotHeld
from signalling.session import Session
from signalling.session_event import SessionState
from signalling.session_ports import Subscribed
from tests.fakes.session_house import GATEWAY, HELD, House, make_house, until
from tests.fakes.sessions import ANSWER, OFFER, TERMS, candidate

pytestmark = pytest.mark.asyncio

RESTART = OFFER.replace("abcd", "efgh")


@asynccontextmanager
async def replicas() -> AsyncIterator[tuple[House, House]]:
    """Run two replicas that follow each other."""
    one = make_house()
    two = make_house(one)
    following = [
        asyncio.create_task(house.switchboard.follow(house.store.changes)) for house in (one, two)
    ]
    try:
        yield one, two
    finally:
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)


async def next_order(association: Association) -> Order | None:
    async with asyncio.timeout(60):
        return await association.next_order()


async def offered(client: House, gateway: House, association: Association) -> str:
    """Negotiate a session of mode trickle across the replicas."""
    session = await client.broker.open("default", HELD.launch_id, "trickle", None)
    offering = asyncio.create_task(client.broker.offer("default", session.session_id, OFFER))
    order = await next_order(association)
    assert isinstance(order, Want)
    await gateway.desk.take_answer(GATEWAY, session.session_id, ANSWER)
    assert (await offering).answer == ANSWER
    return session.session_id


async def test_everything_passes_from_one_replica_to_the_other() -> None:
    async with replicas() as (client, gateway):
        association, _ = await gateway.connect(can_trickle=True)
        session_id = await offered(client, gateway, association)
        async with aclosing(client.watch(session_id)) as watching:
            await client.add(session_id, candidate(1), candidate(2))
            texts = (candidate(1), candidate(2))
            assert await next_order(association) == Give(session_id, 1, 0, texts, False)
            await gateway.desk.take_candidates(
                GATEWAY, session_id, [candidate(9)], round_number=1, first=0, ended=True
            )
            assert (await until(watching, "candidates")).event.ended
            await gateway.desk.take_change(GATEWAY, session_id, connected=True, reason="")
            await gateway.desk.take_wish(GATEWAY, session_id, 1)
            await until(watching, "restart_wanted")
            restarting = asyncio.create_task(client.broker.restart("default", session_id, RESTART))
            assert isinstance(await next_order(association), Want)
            await gateway.desk.take_answer(GATEWAY, session_id, "v=0 fresh", round_number=2)
            assert (await restarting).answer == "v=0 fresh"
            await client.broker.close("default", session_id)
            assert await next_order(association) == Unwant(session_id)
            assert (await until(watching, "closed")).session.close_reason is CloseReason.REQUESTED
        assert client.book.live() == gateway.book.live() == ()


async def test_a_watcher_goes_on_at_the_other_replica() -> None:
    async with replicas() as (client, gateway):
        association, _ = await gateway.connect(can_trickle=True)
        session_id = await offered(client, gateway, association)
        async with aclosing(client.watch(session_id)) as watching:
            cursor = (await until(watching, "answer")).event.sequence
        async with aclosing(gateway.watch(session_id, cursor)) as watching:
            assert isinstance(await anext(watching), Subscribed)
            assert (await until(watching, "state")).event.sequence == cursor + 1


async def test_notices_that_were_lost_are_made_up_for() -> None:
    async with replicas() as (client, gateway):
        association, _ = await gateway.connect(can_trickle=True)
        session_id = await offered(client, gateway, association)
        client.store.is_deaf = gateway.store.is_deaf = True
        async with aclosing(client.watch(session_id)) as watching:
            await anext(watching)
            await gateway.desk.take_candidates(
                GATEWAY, session_id, [candidate(9)], round_number=1, first=0, ended=True
            )
            await client.add(session_id, candidate(1))
            client.store.hear_again()
            assert (await until(watching, "candidates")).session.gateway_ended
            gateway.store.hear_again()
            give = Give(session_id, 1, 0, (candidate(1),), False)
            assert await next_order(association) == give


async def test_a_gateway_that_moves_to_the_other_replica_is_told_everything() -> None:
    async with replicas() as (client, gateway):
        association, _ = await gateway.connect(can_trickle=True)
        session_id = await offered(client, gateway, association)
        await gateway.desk.take_change(GATEWAY, session_id, connected=True, reason="")
        await gateway.switchboard.disconnect(association)
        moved, wanted = await client.connect(held=(session_id,), can_trickle=True)
        assert wanted == [session_id]
        for house in (client, gateway):
            house.clock.advance(8)
            client.switchboard.heard(moved, sessions=1, channels=0, draining=False)
            await house.switchboard.patrol()
        session = await gateway.broker.get("default", session_id)
        assert session.state is SessionState.CONNECTED
        await gateway.broker.close("default", session_id)
        assert await next_order(moved) == Unwant(session_id)


async def test_a_replica_that_is_lost_with_its_gateway_leaves_no_session_open() -> None:
    async with replicas() as (client, gateway):
        association, _ = await gateway.connect(can_trickle=True)
        session_id = await offered(client, gateway, association)
        async with aclosing(client.watch(session_id)) as watching:
            await anext(watching)
            await gateway.directory.remove(GATEWAY)  # its lease runs out
            await client.switchboard.patrol()
            client.clock.advance(15)
            await client.switchboard.patrol()
            ended = await until(watching, "closed")
        assert ended.session.close_reason is CloseReason.GATEWAY_LOST


async def test_a_copy_that_is_old_changes_nothing_wrongly() -> None:
    one = make_house()
    two = make_house(one)  # neither hears of the other
    await one.connect(can_trickle=True)
    opened = await one.broker.open("default", HELD.launch_id, "trickle", None)
    await two.broker.add_candidates("default", opened.session_id, [candidate(1)], ended=False)
    await one.broker.add_candidates("default", opened.session_id, [candidate(2)], ended=False)
    kept: Session = await two.broker.get("default", opened.session_id)
    assert kept.client_candidates == (candidate(1), candidate(2))
    await two.broker.close("default", opened.session_id)
    await one.broker.close("default", opened.session_id)
    assert (await one.broker.get("default", opened.session_id)).version == kept.version + 1


async def test_a_launch_that_ends_at_the_other_replica_meanwhile_leaves_no_session() -> None:
    async with replicas() as (client, gateway):
        await gateway.connect(can_trickle=True, tunnel=TERMS)
        await client.switchboard.patrol()

        async def ending(session: Session) -> None:
            """Between the look at the launch and the record of its session."""
            client.store.before_save = None
            await gateway.broker.close_launch(HELD.launch_id)

        for mode in ("trickle", "complete", "tunnel"):
            client.store.before_save = ending
            with pytest.raises(LaunchNotHeld):
                await client.broker.open("default", HELD.launch_id, mode, None)
        client.store.before_save = ending
        with pytest.raises(LaunchNotHeld):
            await client.broker.answer("default", HELD.launch_id, OFFER)
        assert client.book.live() == gateway.book.live() == ()
        assert await client.broker.list("default", 0, "") == ([], "")


async def test_a_gateway_that_went_away_after_a_look_is_not_chosen() -> None:
    house = make_house()
    association, _ = await house.connect()
    await house.switchboard.patrol()
    assert await house.switchboard.choose() == GATEWAY
    await house.switchboard.disconnect(association)
    with pytest.raises(GatewayUnavailable):
        await house.switchboard.choose()


async def test_a_gateway_that_goes_away_during_a_look_is_not_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    house = make_house()
    association, _ = await house.connect()
    found = await house.directory.list()

    async def looking() -> Sequence[Gateway]:
        await house.switchboard.disconnect(association)
        return found

    monkeypatch.setattr(house.directory, "list", looking)
    await house.switchboard.patrol()
    monkeypatch.undo()
    with pytest.raises(GatewayUnavailable):
        await house.switchboard.choose()


async def test_a_silent_gateway_is_not_chosen_before_it_is_given_up() -> None:
    house = make_house()
    association, _ = await house.connect()
    house.clock.advance(15)
    with pytest.raises(GatewayUnavailable):
        await house.switchboard.choose()
    assert house.switchboard.connected() == (GATEWAY,)
    house.switchboard.heard(association, sessions=0, channels=0, draining=False)
    assert await house.switchboard.choose() == GATEWAY


async def test_a_renewal_that_comes_after_the_end_of_its_stream_leaves_no_gateway(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = make_house()
    house = make_house(client)
    association, _ = await house.connect()
    put, has_ended = house.directory.put, asyncio.Event()

    async def slow(gateway: Gateway) -> None:
        await has_ended.wait()
        await put(gateway)

    monkeypatch.setattr(house.directory, "put", slow)
    renewing = asyncio.create_task(house.switchboard.renew(association))
    await asyncio.sleep(0)
    await house.switchboard.disconnect(association)
    has_ended.set()
    await renewing
    with pytest.raises(GatewayUnavailable):
        await client.switchboard.choose()
