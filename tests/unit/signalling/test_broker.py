"""Sessions from the client's side, with fakes for all that they need."""

from __future__ import annotations

import asyncio

import pytest

from chassis.errors import DeadlineExceeded, FairleadError
from signalling.association import Unwant, Want
from signalling.close_reason import CloseReason
from signalling.gateway import GatewaysFull, GatewayUnavailable
from signalling.gateway_desk import SandboxNotReady
from signalling.launch_errors import LaunchNotFound, LaunchNotHeld
from signalling.session_errors import (
    GatewayBusy,
    GatewayGone,
    GatewayNotReady,
    ModeInvalid,
    ModeUnsupported,
    OfferConflict,
    OfferRefused,
    SessionClosed,
    SessionKeyConflict,
    SessionNotFound,
)
from signalling.session_event import SessionState
from tests.fakes.session_house import BARE, GATEWAY, HELD, OTHER_GATEWAY, House, make_house
from tests.fakes.sessions import (
    ANSWER,
    MEETING,
    OFFER,
)

pytestmark = pytest.mark.asyncio


@pytest.fixture
def house() -> House:
    return make_house()


async def test_an_offer_gets_the_gateways_answer(house: House) -> None:
    association, wanted = await house.connect()
    assert wanted == []
    session = await house.answered(association)
    assert session.answer == ANSWER
    assert session.state is SessionState.ANSWERED
    assert session.traceparent.startswith("00-")


async def test_the_same_offer_gets_the_same_answer_also_at_the_same_time(house: House) -> None:
    association, _ = await house.connect()
    session = await house.broker.open("default", HELD.launch_id, "complete", None)
    offers = [
        asyncio.create_task(house.broker.offer("default", session.session_id, OFFER))
        for _ in range(5)
    ]
    assert isinstance(await association.next_order(), Want)
    await house.desk.take_answer(GATEWAY, session.session_id, ANSWER)
    await house.desk.take_answer(GATEWAY, session.session_id, "v=0 another")
    assert {(await offer).answer for offer in offers} == {ANSWER}
    assert (await house.broker.offer("default", session.session_id, OFFER)).answer == ANSWER
    house.switchboard.unwant(GATEWAY, "ses_sentinel")
    assert await association.next_order() == Unwant("ses_sentinel")  # the offer was told once


async def test_an_offer_to_a_gateway_that_is_away_says_so_and_waits_for_it(house: House) -> None:
    association, _ = await house.connect()
    session = await house.broker.open("default", HELD.launch_id, "complete", None)
    await house.switchboard.disconnect(association)
    with pytest.raises(GatewayNotReady):
        await house.broker.offer("default", session.session_id, OFFER)
    _, wanted = await house.connect()
    assert wanted == [session.session_id]
    await house.desk.take_answer(GATEWAY, session.session_id, ANSWER)
    assert (await house.broker.offer("default", session.session_id, OFFER)).answer == ANSWER


async def test_who_waits_for_the_answer_of_a_lost_gateway_is_told_before_the_others(
    house: House,
) -> None:
    association, _ = await house.connect()
    answered = await house.answered(association)
    opened = await house.broker.open("default", HELD.launch_id, "complete", None)
    waiting = await house.broker.open("default", HELD.launch_id, "complete", None)
    with pytest.raises(DeadlineExceeded):
        await house.broker.offer("default", waiting.session_id, OFFER)
    await house.switchboard.disconnect(association)
    house.clock.advance(4)
    await house.switchboard.patrol()
    assert await house.state(waiting) == (SessionState.OFFERED, None)
    house.clock.advance(1)
    await house.switchboard.patrol()
    with pytest.raises(GatewayGone):
        await house.broker.offer("default", waiting.session_id, OFFER)
    assert await house.state(waiting) == (SessionState.CLOSED, CloseReason.GATEWAY_LOST)
    assert await house.state(answered) == (SessionState.ANSWERED, None)
    assert await house.state(opened) == (SessionState.OPENED, None)
    _, wanted = await house.connect(held=(answered.session_id,))
    assert sorted(wanted) == sorted([answered.session_id, opened.session_id])


async def test_another_offer_conflicts(house: House) -> None:
    association, _ = await house.connect()
    session = await house.answered(association)
    with pytest.raises(OfferConflict):
        await house.broker.offer("default", session.session_id, OFFER.replace("abcd", "efgh"))


async def test_a_silent_gateway_times_out_and_the_same_offer_may_come_again(house: House) -> None:
    association, _ = await house.connect()
    session = await house.broker.open("default", HELD.launch_id, "complete", None)
    with pytest.raises(DeadlineExceeded) as caught:
        await house.broker.offer("default", session.session_id, OFFER)
    assert caught.value.reason == "gateway_timeout"
    await house.desk.take_answer(GATEWAY, session.session_id, ANSWER)
    assert (await house.broker.offer("default", session.session_id, OFFER)).answer == ANSWER
    assert isinstance(await association.next_order(), Want)


async def test_a_refused_offer_closes_the_session_and_says_why(house: House) -> None:
    association, _ = await house.connect()
    session = await house.broker.open("default", HELD.launch_id, "complete", None)
    offering = asyncio.create_task(house.broker.offer("default", session.session_id, OFFER))
    await association.next_order()
    await house.desk.take_refusal(GATEWAY, session.session_id, "no candidate fits")
    with pytest.raises(OfferRefused, match="no candidate fits"):
        await offering
    assert await house.state(session) == (SessionState.CLOSED, CloseReason.OFFER_FAILED)
    with pytest.raises(SessionClosed):
        await house.broker.offer("default", session.session_id, OFFER)


@pytest.mark.parametrize(
    ("reason", "error", "close_reason"),
    [
        ("gateway_draining", GatewayGone, CloseReason.DRAINED),
        ("gateway_full", GatewayBusy, CloseReason.GATEWAY_BUSY),
        ("sdp_invalid", OfferRefused, CloseReason.OFFER_FAILED),
    ],
)
async def test_a_gateway_that_takes_no_offer_is_another_error_than_a_bad_offer(
    house: House, reason: str, error: type[FairleadError], close_reason: CloseReason
) -> None:
    association, _ = await house.connect()
    session = await house.broker.open("default", HELD.launch_id, "complete", None)
    offering = asyncio.create_task(house.broker.offer("default", session.session_id, OFFER))
    await association.next_order()
    await house.desk.take_refusal(GATEWAY, session.session_id, "A sentence.", reason=reason)
    with pytest.raises(error):
        await offering
    assert await house.state(session) == (SessionState.CLOSED, close_reason)


async def test_sessions_go_to_the_least_loaded_gateway_that_takes_them(house: House) -> None:
    with pytest.raises(GatewayUnavailable):
        await house.broker.open("default", HELD.launch_id, "complete", None)
    one, _ = await house.connect(GATEWAY, capacity=2)
    two, _ = await house.connect(OTHER_GATEWAY, capacity=2)
    chosen = [
        (await house.broker.open("default", HELD.launch_id, "complete", None)).gateway_id
        for _ in range(4)
    ]
    assert sorted(chosen) == [GATEWAY, GATEWAY, OTHER_GATEWAY, OTHER_GATEWAY]
    with pytest.raises(GatewaysFull):
        await house.broker.open("default", HELD.launch_id, "complete", None)
    for association in (one, two):
        house.switchboard.heard(association, sessions=2, channels=0, draining=True)
    with pytest.raises(GatewayUnavailable):
        await house.broker.open("default", HELD.launch_id, "complete", None)


async def test_a_session_beside_another_one_has_its_launch_and_its_gateway(house: House) -> None:
    await house.connect(GATEWAY, capacity=4)
    first = await house.broker.open("default", HELD.launch_id, "complete", None)
    other, _ = await house.connect(OTHER_GATEWAY, capacity=4)
    for _ in range(2):
        beside = await house.broker.open("default", first.session_id, "complete", "key")
        assert (beside.launch_id, beside.gateway_id) == (HELD.launch_id, GATEWAY)
    with pytest.raises(ModeUnsupported):
        await house.broker.open("default", first.session_id, "trickle", None)
    elsewhere = await house.broker.open("default", HELD.launch_id, "complete", None)
    assert elsewhere.gateway_id == OTHER_GATEWAY
    with pytest.raises(SessionKeyConflict):
        await house.broker.open("default", elsewhere.session_id, "complete", "key")
    await house.switchboard.disconnect(other)
    with pytest.raises(GatewayUnavailable):
        await house.broker.open("default", elsewhere.session_id, "complete", None)
    with pytest.raises(SessionNotFound):
        await house.broker.open("another", first.session_id, "complete", None)
    await house.broker.close("default", first.session_id)
    with pytest.raises(SessionNotFound):
        await house.broker.open("default", first.session_id, "complete", None)


async def test_a_key_gives_the_same_session_and_not_for_another_launch(house: House) -> None:
    await house.connect()
    first = await house.broker.open("default", HELD.launch_id, "complete", "key")
    again = await house.broker.open("default", HELD.launch_id, "complete", "key")
    assert again == first
    with pytest.raises(SessionKeyConflict):
        await house.broker.open("default", BARE.launch_id, "complete", "key")
    with pytest.raises(SessionNotFound):
        await house.broker.get("another", first.session_id)


@pytest.mark.parametrize(
    ("launch_id", "mode", "error"),
    [
        ("lch_unknown", "complete", LaunchNotFound),
        (BARE.launch_id, "complete", LaunchNotHeld),
        (HELD.launch_id, "trickle", ModeUnsupported),
        (HELD.launch_id, "fast", ModeInvalid),
        (HELD.launch_id, "", ModeInvalid),
    ],
)
async def test_what_cannot_be_opened(
    house: House, launch_id: str, mode: str, error: type[FairleadError]
) -> None:
    await house.connect()
    with pytest.raises(error):
        await house.broker.open("default", launch_id, mode, None)


async def test_closing_tells_the_gateway_once(house: House) -> None:
    association, _ = await house.connect()
    session = await house.answered(association)
    await asyncio.gather(
        *(house.broker.close("default", session.session_id) for _ in range(3)),
        house.broker.close_launch(HELD.launch_id),
    )
    assert await association.next_order() == Unwant(session.session_id)
    house.switchboard.unwant(GATEWAY, "ses_sentinel")
    assert await association.next_order() == Unwant("ses_sentinel")


async def test_sessions_are_listed_by_tenant_until_they_are_closed_or_late(house: House) -> None:
    association, _ = await house.connect()
    connected = await house.answered(association)
    await house.desk.take_change(GATEWAY, connected.session_id, connected=True, reason="")
    late = await house.broker.open("default", HELD.launch_id, "complete", None)
    found, following = await house.broker.list("default", 1, "")
    more, last = await house.broker.list("default", 1, following)
    ids = [session.session_id for session in (*found, *more)]
    assert ids == sorted([connected.session_id, late.session_id])
    assert last == ""
    assert await house.broker.list("other", 0, "") == ([], "")
    house.clock.advance(40)
    await house.desk.keep_connected(GATEWAY)
    house.clock.advance(40)
    found, _ = await house.broker.list("default", 0, "")
    assert [session.session_id for session in found] == [connected.session_id]
    with pytest.raises(FairleadError, match="page size"):
        await house.broker.list("default", 101, "")
    with pytest.raises(FairleadError, match="page token"):
        await house.broker.list("default", 0, "x")


async def test_an_administrator_closes_whosever_it_is_and_says_why(house: House) -> None:
    association, _ = await house.connect()
    session = await house.answered(association)
    with pytest.raises(SessionNotFound):
        await house.broker.close("other", session.session_id)
    closed = await house.broker.close_as_admin("other", session.session_id, "x" * 1000)
    assert closed.close_reason is CloseReason.ADMIN_CLOSED
    assert closed.close_detail == "x" * 300
    assert await association.next_order() == Unwant(session.session_id)
    assert await house.broker.close_as_admin("other", session.session_id, "again") == closed
    with pytest.raises(SessionNotFound):
        await house.broker.close_as_admin("other", "ses_" + "z" * 26, "")


async def test_the_session_of_a_launch_may_come_before_its_sandbox(house: House) -> None:
    association, _ = await house.connect()
    answering = asyncio.create_task(house.broker.answer("default", BARE.launch_id, OFFER))
    order = await association.next_order()
    assert isinstance(order, Want)
    session_id = order.session.session_id
    await house.desk.take_answer(GATEWAY, session_id, ANSWER)
    assert await answering == (session_id, ANSWER)
    assert await house.broker.answer("default", BARE.launch_id, OFFER) == (session_id, ANSWER)
    with pytest.raises(SandboxNotReady):
        await house.desk.open_port(GATEWAY, session_id, 8080, MEETING)
    await house.broker.close_launch(BARE.launch_id)
    assert await association.next_order() == Unwant(session_id)
    with pytest.raises(LaunchNotHeld):
        await house.broker.answer("default", BARE.launch_id, OFFER)


async def test_a_launch_that_ends_while_its_session_is_being_opened_leaves_none(
    house: House,
) -> None:
    await house.connect()
    answering = asyncio.create_task(house.broker.answer("default", BARE.launch_id, OFFER))
    await asyncio.sleep(0)
    await house.broker.close_launch(BARE.launch_id)
    with pytest.raises((SessionClosed, LaunchNotHeld)):
        await answering
    assert house.book.live() == ()


async def test_a_session_that_is_opened_while_its_launch_ends_is_closed(house: House) -> None:
    await house.connect()
    opening = asyncio.create_task(house.broker.open("default", HELD.launch_id, "complete", None))
    await house.book.end_launch(HELD.launch_id)
    with pytest.raises(LaunchNotHeld):
        await opening
    assert house.book.live() == ()
