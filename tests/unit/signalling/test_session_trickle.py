"""Candidates, restarts and watches: what comes while something else is under way."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from datetime import timedelta

import pytest

from chassis.errors import Unavailable
from chassis.limits import LimitBroken
from signalling.association import Association, Give, Unwant, Want
from signalling.close_reason import CloseReason
from signalling.ice_servers import RelayUnavailable
from signalling.session import Session
from signalling.session_errors import (
    CandidatesGap,
    CursorAhead,
    ModeConflict,
    ModeUnsupported,
    OfferConflict,
    OfferRefused,
    RestartUnsupported,
    SessionClosed,
    SessionNotFound,
)
from signalling.session_event import SessionState
from signalling.session_name import SessionNameRefused
from signalling.session_ports import Happened, Subscribed
from tests.fakes.session_house import GATEWAY, HELD, House, make_house, until
from tests.fakes.sessions import ANSWER, OFFER, candidate

pytestmark = pytest.mark.asyncio

EIGHT = tuple(candidate(number) for number in range(8))
RESTART = OFFER.replace("abcd", "efgh")
NAME = "-_" + "A" * 20


class Away(Unavailable):
    """The store is away."""

    def __init__(self) -> None:
        super().__init__("Away.", reason="redis_unavailable")


@pytest.fixture
def house() -> House:
    return make_house()


async def given(house: House, association: Association) -> list[Give]:
    """Return what a gateway was given so far."""
    house.switchboard.unwant(GATEWAY, "ses_sentinel")
    orders = []
    while (order := await association.next_order()) != Unwant("ses_sentinel"):
        assert isinstance(order, Give)
        orders.append(order)
    return orders


def joined(orders: list[Give]) -> list[str]:
    """Return the candidates of the orders as a gateway counts them."""
    candidates: list[str] = []
    for order in orders:
        assert order.first == len(candidates)
        candidates.extend(order.candidates)
    return candidates


async def test_eight_buffered_candidates_are_one_order(house: House) -> None:
    association, _ = await house.connect(can_trickle=True)
    session_id = await house.trickling(association)
    assert await house.add(session_id, *EIGHT) == ["accepted"] * 8
    assert await house.add(session_id, candidate(8), ended=True) == ["accepted"]
    assert await given(house, association) == [
        Give(session_id, 1, 0, EIGHT, ended=False),
        Give(session_id, 1, 8, (candidate(8),), ended=True),
    ]


async def test_candidates_that_overtake_the_offer_come_with_it(house: House) -> None:
    association, _ = await house.connect(can_trickle=True)
    opened = await house.broker.open("default", HELD.launch_id, "trickle", None)
    await house.add(opened.session_id, *EIGHT)
    offering = asyncio.create_task(house.broker.offer("default", opened.session_id, OFFER))
    order = await association.next_order()
    assert isinstance(order, Want)
    assert order.session.client_candidates == EIGHT
    await house.desk.take_answer(GATEWAY, opened.session_id, ANSWER)
    await offering
    assert await given(house, association) == []


async def test_candidates_that_come_while_others_are_saved_arrive_once(house: House) -> None:
    association, _ = await house.connect(can_trickle=True)
    session_id = await house.trickling(association)
    late: list[asyncio.Task[list[str]]] = []

    async def interrupt(session: Session) -> None:
        house.store.before_save = None
        late.append(asyncio.create_task(house.add(session_id, candidate(8))))
        late.append(asyncio.create_task(house.add(session_id, *EIGHT[4:], candidate(9))))
        await asyncio.sleep(0)
        await asyncio.gather(*late)

    house.store.before_save = interrupt
    assert set(await house.add(session_id, *EIGHT)) <= {"accepted", "duplicate"}
    arrived = joined(await given(house, association))
    assert sorted(arrived) == sorted((*EIGHT, candidate(8), candidate(9)))


@pytest.mark.parametrize("is_saved", [False, True])
async def test_a_flush_that_failed_is_sent_again(house: House, is_saved: bool) -> None:
    association, _ = await house.connect(can_trickle=True)
    session_id = await house.trickling(association)

    async def fail(session: Session) -> None:
        house.store.before_save = None
        if is_saved:  # and the answer is lost
            assert await house.store.save(session, ttl_seconds=60)
        raise Away

    house.store.before_save = fail
    with pytest.raises(Away):
        await house.add(session_id, *EIGHT)
    await house.add(session_id, *EIGHT)
    assert joined(await given(house, association)) == list(EIGHT)
    assert await house.add(session_id, *EIGHT) == ["duplicate"] * 8


async def test_a_gateway_that_comes_back_gets_all_and_then_what_is_new(house: House) -> None:
    association, _ = await house.connect(can_trickle=True)
    session_id = await house.trickling(association)
    await house.add(session_id, *EIGHT[:3])
    await house.switchboard.disconnect(association)
    await house.add(session_id, *EIGHT[3:])
    association, wanted = await house.connect(held=(session_id,), can_trickle=True)
    assert wanted == [session_id]
    session = house.book.known(session_id)
    assert session is not None
    assert session.client_candidates == EIGHT
    await house.add(session_id, candidate(8))
    assert await given(house, association) == [Give(session_id, 1, 8, (candidate(8),), False)]


async def test_candidates_that_come_while_a_gateway_comes_back_arrive_once(house: House) -> None:
    association, _ = await house.connect(can_trickle=True)
    session_id = await house.trickling(association)
    await house.switchboard.disconnect(association)
    connecting = asyncio.create_task(house.connect(held=(session_id,), can_trickle=True))
    adding = asyncio.create_task(house.add(session_id, *EIGHT))
    association, _ = await connecting
    await adding
    orders = await given(house, association)
    in_welcome = orders[0].first if orders else 8
    assert in_welcome + sum(len(order.candidates) for order in orders) == 8


async def test_nothing_is_given_after_connected(house: House) -> None:
    association, _ = await house.connect(can_trickle=True)
    session_id = await house.trickling(association)
    await house.desk.take_change(GATEWAY, session_id, connected=True, reason="")
    assert await house.add(session_id, *EIGHT, ended=True) == ["late"] * 8
    await house.desk.take_candidates(
        GATEWAY, session_id, EIGHT, round_number=1, first=0, ended=False
    )
    session = await house.broker.get("default", session_id)
    assert session.gateway_candidates == ()
    assert await given(house, association) == []


async def test_a_close_wins_over_a_candidate_that_is_being_saved(house: House) -> None:
    association, _ = await house.connect(can_trickle=True)
    session_id = await house.trickling(association)

    async def close(session: Session) -> None:
        house.store.before_save = None
        await house.broker.close("default", session_id)

    house.store.before_save = close
    with pytest.raises(SessionClosed):
        await house.add(session_id, *EIGHT)
    assert await association.next_order() == Unwant(session_id)
    assert await given(house, association) == []
    assert house.book.live() == ()


async def test_too_many_and_none_that_trickle(house: House) -> None:
    association, _ = await house.connect()
    with pytest.raises(ModeUnsupported):
        await house.broker.open("default", HELD.launch_id, "trickle", None)
    session = await house.answered(association)
    with pytest.raises(ModeConflict):
        await house.add(session.session_id, *EIGHT)
    with pytest.raises(RestartUnsupported):
        await house.broker.restart("default", session.session_id, RESTART)
    with pytest.raises(RestartUnsupported):
        await house.broker.restart("default", session.session_id, "")
    with pytest.raises(LimitBroken):
        await house.add(session.session_id, *(candidate(number) for number in range(65)))
    with pytest.raises(RelayUnavailable):
        await house.broker.open("default", HELD.launch_id, "complete", None, policy="relay")


async def test_an_answer_of_the_old_round_changes_nothing_in_the_new_one(house: House) -> None:
    association, _ = await house.connect(can_trickle=True)
    session_id = await house.trickling(association)
    await house.desk.take_change(GATEWAY, session_id, connected=True, reason="")
    restarting = asyncio.create_task(house.broker.restart("default", session_id, RESTART))
    order = await association.next_order()
    assert isinstance(order, Want)
    assert (order.session.round, order.session.offer) == (2, RESTART)
    await house.desk.take_answer(GATEWAY, session_id, "v=0 late", round_number=1)
    assert await house.add(session_id, *EIGHT, round_number=1) == ["stale"] * 8
    assert await house.add(session_id, *EIGHT, round_number=2) == ["accepted"] * 8
    await house.desk.take_answer(GATEWAY, session_id, "v=0 fresh", round_number=2)
    assert (await restarting).answer == "v=0 fresh"
    again = await house.broker.restart("default", session_id, RESTART)
    assert (again.round, again.answer, again.state) == (2, "v=0 fresh", SessionState.CONNECTED)
    with pytest.raises(OfferConflict):
        await house.broker.restart("default", session_id, OFFER)
    assert await given(house, association) == [Give(session_id, 2, 0, EIGHT, False)]


async def test_both_asking_for_a_restart_make_one_round(house: House) -> None:
    association, _ = await house.connect(can_trickle=True)
    session_id = await house.trickling(association)
    async with aclosing(house.watch(session_id)) as watching:
        await house.desk.take_wish(GATEWAY, session_id, 1)
        await house.desk.take_wish(GATEWAY, session_id, 1)
        assert (await until(watching, "restart_wanted")).event.round == 1
    restarting = asyncio.create_task(house.broker.restart("default", session_id, RESTART))
    await association.next_order()
    await house.desk.take_wish(GATEWAY, session_id, 1)
    await house.desk.take_answer(GATEWAY, session_id, ANSWER, round_number=2)
    session = await restarting
    await house.desk.take_wish(GATEWAY, session_id, 1)
    session = await house.broker.get("default", session_id)
    assert session.round == 2
    assert "restart_wanted" not in [event.kind for event in session.events]


async def test_a_refused_restart_leaves_the_path_that_is_up(house: House) -> None:
    association, _ = await house.connect(can_trickle=True)
    session_id = await house.trickling(association)
    await house.desk.take_change(GATEWAY, session_id, connected=True, reason="")
    restarting = asyncio.create_task(house.broker.restart("default", session_id, RESTART))
    await association.next_order()
    await house.desk.take_refusal(GATEWAY, session_id, "no socket", round_number=2)
    with pytest.raises(OfferRefused, match="no socket"):
        await restarting
    assert (await house.broker.get("default", session_id)).state is SessionState.CONNECTED
    third = RESTART.replace("efgh", "ijkl")
    restarting = asyncio.create_task(house.broker.restart("default", session_id, third))
    await association.next_order()
    await house.desk.take_answer(GATEWAY, session_id, ANSWER, round_number=3)
    assert (await restarting).round == 3


async def test_a_gap_in_a_gateways_candidates_is_refused(house: House) -> None:
    association, _ = await house.connect(can_trickle=True)
    session_id = await house.trickling(association)
    take = house.desk.take_candidates
    await take(GATEWAY, session_id, EIGHT[:2], round_number=1, first=0, ended=False)
    with pytest.raises(CandidatesGap):
        await take(GATEWAY, session_id, EIGHT[3:], round_number=1, first=3, ended=False)
    await take(GATEWAY, session_id, EIGHT, round_number=1, first=0, ended=True)
    session = await house.broker.get("default", session_id)
    assert session.gateway_candidates == EIGHT


async def test_a_watcher_sees_everything_once_and_the_end_last(house: House) -> None:
    association, _ = await house.connect(can_trickle=True)
    opened = await house.broker.open("default", HELD.launch_id, "trickle", None)
    session_id = opened.session_id
    watching = house.watch(session_id)
    assert await anext(watching) == Subscribed(opened, 0)
    told: list[tuple[int, str]] = []

    async def follow() -> None:
        async for watched in watching:
            assert isinstance(watched, Happened)
            told.append((watched.event.sequence, watched.event.kind.value))

    following = asyncio.create_task(follow())
    offering = asyncio.create_task(house.broker.offer("default", session_id, OFFER))
    await association.next_order()
    await house.desk.take_candidates(
        GATEWAY, session_id, EIGHT, round_number=1, first=0, ended=True
    )
    await house.desk.take_answer(GATEWAY, session_id, ANSWER)
    await offering
    await house.desk.take_change(GATEWAY, session_id, connected=True, reason="")
    await asyncio.sleep(0)
    await house.desk.take_change(GATEWAY, session_id, connected=False, reason="tunnel_closed")
    await following
    kinds = ["state", "candidates", "answer", "state", "state", "closed"]
    assert told == list(enumerate(kinds, start=1))
    # What is over is told again to who comes back, whatever was seen.
    for cursor, expected in ((0, ["state", "state", "state", "closed"]), (6, ["closed"])):
        seen = [watched async for watched in house.watch(session_id, cursor)]
        assert isinstance(seen[0], Subscribed)
        assert [one.event.kind.value for one in seen[1:] if isinstance(one, Happened)] == expected
    with pytest.raises(CursorAhead):
        await anext(house.watch(session_id, 7))
    with pytest.raises(SessionNotFound):
        await anext(house.broker.watch("another", session_id, 0))


async def test_a_watcher_that_leaves_is_forgotten(house: House) -> None:
    await house.connect(can_trickle=True)
    opened = await house.broker.open("default", HELD.launch_id, "trickle", None)
    async with aclosing(house.watch(opened.session_id)) as watching:
        await anext(watching)
    await house.broker.close("default", opened.session_id)
    with pytest.raises(StopAsyncIteration):
        await anext(watching)


async def test_an_offer_that_was_saved_unheard_is_one_offer(house: House) -> None:
    association, _ = await house.connect(can_trickle=True)
    opened = await house.broker.open("default", HELD.launch_id, "trickle", None)

    async def fail(session: Session) -> None:
        house.store.before_save = None
        assert await house.store.save(session, ttl_seconds=60)
        raise Away

    house.store.before_save = fail
    with pytest.raises(Away):
        await house.broker.offer("default", opened.session_id, OFFER)
    offering = asyncio.create_task(house.broker.offer("default", opened.session_id, OFFER))
    assert isinstance(await association.next_order(), Want)
    await house.desk.take_answer(GATEWAY, opened.session_id, ANSWER)
    assert (await offering).answer == ANSWER
    assert await given(house, association) == []


async def test_a_conversation_is_one_session_in_every_spelling(house: House) -> None:
    await house.connect(can_trickle=True)
    opened = await house.broker.open(
        "default", HELD.launch_id, "trickle", None, conversation_id=NAME
    )
    for spelling in (NAME, NAME.replace("-", "+").replace("_", "/") + "=="):
        again = await house.broker.open(
            "default", HELD.launch_id, "trickle", None, conversation_id=spelling
        )
        assert again == opened
        assert await house.broker.get("default", spelling) == opened
        with pytest.raises(SessionNotFound):
            await house.broker.get("another", spelling)
        assert await house.add(spelling, *EIGHT[:1]) in (["accepted"], ["duplicate"])
        opened = await house.broker.get("default", opened.session_id)
    for refused in ("short", opened.session_id):
        with pytest.raises(SessionNameRefused):
            await house.broker.open(
                "default", HELD.launch_id, "trickle", None, conversation_id=refused
            )


async def test_a_session_has_so_long_to_connect(house: House) -> None:
    association, _ = await house.connect(can_trickle=True)
    session_id = await house.trickling(association)
    session = await house.broker.get("default", session_id)
    assert session.expires_at == house.clock.now() + timedelta(seconds=24)
    house.clock.advance(24)
    house.switchboard.heard(association, sessions=1, channels=0, draining=False)
    await house.switchboard.patrol()
    assert await house.state(session) == (SessionState.CLOSED, CloseReason.EXPIRED)
    assert await association.next_order() == Unwant(session_id)


async def test_connected_sessions_go_on_while_the_store_is_away(house: House) -> None:
    association, _ = await house.connect(can_trickle=True)
    session_id = await house.trickling(association)
    await house.desk.take_change(GATEWAY, session_id, connected=True, reason="")
    house.store.raising = Away()
    with pytest.raises(Away):
        await house.broker.open("default", HELD.launch_id, "trickle", None)
    for _ in range(12):
        house.clock.advance(10)
        house.switchboard.heard(association, sessions=1, channels=1, draining=False)
        await house.desk.keep_connected(GATEWAY)
        with suppress(Away):
            await house.switchboard.patrol()
    house.store.raising = None
    await house.switchboard.patrol()
    await house.desk.keep_connected(GATEWAY)
    house.clock.advance(50)
    house.switchboard.heard(association, sessions=1, channels=1, draining=False)
    await house.switchboard.patrol()
    session = await house.broker.get("default", session_id)
    assert session.state is SessionState.CONNECTED
    assert await given(house, association) == []
