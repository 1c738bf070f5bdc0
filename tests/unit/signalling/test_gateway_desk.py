"""Sessions from the gateway's side: ports, terminals, ends and lost streams."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import NoReturn

import pytest

from chassis.errors import Unavailable
from signalling.association import OUTBOX_ORDERS, Unwant
from signalling.close_reason import CloseReason
from signalling.gateway_desk import PortInvalid
from signalling.launch_errors import ExecutionNotFound
from signalling.session_errors import (
    SessionClosed,
    SessionNotFound,
)
from signalling.session_event import SessionState
from tests.fakes.session_house import GATEWAY, HELD, OTHER_GATEWAY, House, make_house
from tests.fakes.sessions import (
    ANSWER,
    MEETING,
    OFFER,
    candidate,
)

pytestmark = pytest.mark.asyncio


@pytest.fixture
def house() -> House:
    return make_house()


async def test_a_port_is_opened_only_through_the_sessions_own_gateway(house: House) -> None:
    association, _ = await house.connect()
    session = await house.answered(association)
    await house.desk.open_port(GATEWAY, session.session_id, 8080, MEETING)
    assert house.launches.opened == [(HELD.launch_id, 8080, MEETING)]
    with pytest.raises(SessionNotFound):
        await house.desk.open_port(OTHER_GATEWAY, session.session_id, 8080, MEETING)
    with pytest.raises(PortInvalid):
        await house.desk.open_port(GATEWAY, session.session_id, 0, MEETING)
    await house.broker.close("default", session.session_id)
    with pytest.raises(SessionClosed):
        await house.desk.open_port(GATEWAY, session.session_id, 8080, MEETING)


async def test_a_connected_session_takes_ports_also_while_the_store_is_away(house: House) -> None:
    association, _ = await house.connect()
    answered, connected = [await house.answered(association) for _ in range(2)]
    await house.desk.take_change(GATEWAY, connected.session_id, connected=True, reason="")
    house.store.raising = Unavailable("Away.", reason="redis_unavailable")
    await house.desk.open_port(GATEWAY, connected.session_id, 8080, MEETING)
    assert house.launches.opened == [(HELD.launch_id, 8080, MEETING)]
    for gateway_id, session_id, error in (
        (GATEWAY, answered.session_id, Unavailable),
        (GATEWAY, "ses_unknown", Unavailable),
        (OTHER_GATEWAY, connected.session_id, SessionNotFound),
    ):
        with pytest.raises(error):
            await house.desk.open_port(gateway_id, session_id, 8080, MEETING)
    house.store.raising = None
    await house.broker.close("default", connected.session_id)
    house.store.raising = Unavailable("Away.", reason="redis_unavailable")
    with pytest.raises(Unavailable):
        await house.desk.open_port(GATEWAY, connected.session_id, 8080, MEETING)


async def test_a_port_of_a_connected_session_does_not_wait_for_a_store_that_hangs(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    association, _ = await house.connect()
    session = await house.answered(association)
    await house.desk.take_change(GATEWAY, session.session_id, connected=True, reason="")

    async def hang(session_id: str) -> NoReturn:
        raise AssertionError("the store was asked")

    monkeypatch.setattr(house.store, "get", hang)
    await house.desk.open_port(GATEWAY, session.session_id, 8080, MEETING)
    assert house.launches.opened == [(HELD.launch_id, 8080, MEETING)]


async def test_a_terminal_is_opened_as_a_port_is(house: House) -> None:
    association, _ = await house.connect()
    session = await house.answered(association)
    to_terminal = replace(MEETING, execution_id="exe_" + "a" * 26)
    await house.desk.open_port(GATEWAY, session.session_id, 0, to_terminal)
    assert house.launches.opened == [(HELD.launch_id, 0, to_terminal)]
    with pytest.raises(ExecutionNotFound):
        await house.desk.open_port(
            GATEWAY, session.session_id, 0, replace(MEETING, execution_id="../exe")
        )
    await house.broker.close("default", session.session_id)
    with pytest.raises(SessionClosed):
        await house.desk.open_port(GATEWAY, session.session_id, 0, to_terminal)


async def test_a_gateway_that_comes_back_keeps_what_it_holds(house: House) -> None:
    association, _ = await house.connect()
    kept = await house.answered(association)
    lost = await house.answered(association)
    waiting = await house.broker.open("default", HELD.launch_id, "complete", None)
    await house.switchboard.disconnect(association)
    _, wanted = await house.connect(held=(kept.session_id, "ses_unknown"))
    assert sorted(wanted) == sorted([kept.session_id, waiting.session_id])
    assert await house.state(lost) == (SessionState.CLOSED, CloseReason.GATEWAY_LOST)
    assert (await house.state(kept))[0] is SessionState.ANSWERED


async def test_a_second_stream_replaces_the_first(house: House) -> None:
    first, _ = await house.connect()
    second, _ = await house.connect()
    assert await first.next_order() is None
    assert first.end_reason == "replaced"
    await house.switchboard.disconnect(first)
    assert [gateway.gateway_id for gateway in await house.switchboard.gateways()] == [GATEWAY]
    session = await house.answered(second)
    assert session.state is SessionState.ANSWERED


async def test_the_sessions_of_a_silent_gateway_wait_and_then_are_lost(house: House) -> None:
    association, _ = await house.connect()
    session = await house.answered(association)
    await house.desk.take_change(GATEWAY, session.session_id, connected=True, reason="")
    house.clock.advance(14)
    house.switchboard.heard(association, sessions=1, channels=0, draining=False)
    await house.desk.keep_connected(GATEWAY)
    house.clock.advance(16)
    await house.switchboard.patrol()
    assert association.end_reason == "silent"
    assert await house.switchboard.gateways() == []
    assert await house.state(session) == (SessionState.CONNECTED, None)
    house.clock.advance(14)
    await house.switchboard.patrol()
    assert await house.state(session) == (SessionState.CONNECTED, None)
    house.clock.advance(1)
    await house.switchboard.patrol()
    assert await house.state(session) == (SessionState.CLOSED, CloseReason.GATEWAY_LOST)


async def test_sessions_expire_unless_their_gateway_is_heard(house: House) -> None:
    association, _ = await house.connect()
    connected = await house.answered(association)
    idle = await house.broker.open("default", HELD.launch_id, "complete", None)
    await house.desk.take_change(GATEWAY, connected.session_id, connected=True, reason="")
    for _ in range(9):
        house.clock.advance(10)
        house.switchboard.heard(association, sessions=1, channels=0, draining=False)
        await house.desk.keep_connected(GATEWAY)
        await house.switchboard.patrol()
    assert await house.state(connected) == (SessionState.CONNECTED, None)
    assert await house.state(idle) == (SessionState.CLOSED, CloseReason.EXPIRED)
    house.switchboard.unwant(GATEWAY, "ses_sentinel")
    assert await association.next_order() == Unwant("ses_sentinel")  # it never had an offer


async def test_a_renewal_during_a_restart_makes_no_candidate_late(house: House) -> None:
    association, _ = await house.connect(can_trickle=True)
    session_id = await house.trickling(association)
    await house.desk.take_change(GATEWAY, session_id, connected=True, reason="")
    restarting = asyncio.create_task(
        house.broker.restart("default", session_id, OFFER.replace("abcd", "efgh"))
    )
    await association.next_order()
    await house.desk.take_answer(GATEWAY, session_id, ANSWER, round_number=2)
    await restarting
    before = await house.broker.get("default", session_id)
    house.clock.advance(40)
    await house.desk.keep_connected(GATEWAY)
    assert (await house.broker.get("default", session_id)).expires_at > before.expires_at
    assert await house.add(session_id, candidate(8), round_number=2) == ["accepted"]
    await house.desk.take_change(GATEWAY, session_id, connected=True, reason="")
    assert await house.add(session_id, candidate(9), round_number=2) == ["late"]


@pytest.mark.parametrize("reason", ["peer_closed", "connection_failed", "requested", "drained"])
async def test_a_gateway_tells_why_an_association_ended(house: House, reason: str) -> None:
    association, _ = await house.connect()
    session = await house.answered(association)
    await house.desk.take_change(GATEWAY, session.session_id, connected=False, reason=reason)
    assert await house.state(session) == (SessionState.CLOSED, CloseReason(reason))
    await house.desk.take_change(GATEWAY, session.session_id, connected=False, reason="x")
    assert (await house.state(session))[1] == CloseReason(reason)


async def test_a_late_answer_is_answered_with_an_order_to_close(house: House) -> None:
    association, _ = await house.connect()
    await house.desk.take_answer(GATEWAY, "ses_" + "z" * 26, ANSWER)
    assert await association.next_order() == Unwant("ses_" + "z" * 26)


async def test_a_store_that_lost_everything_gets_its_sessions_back(house: House) -> None:
    association, _ = await house.connect()
    session = await house.answered(association)
    house.store.forget()
    assert (await house.broker.get("default", session.session_id)).answer == ANSWER
    await house.desk.take_change(GATEWAY, session.session_id, connected=True, reason="")
    stored = await house.store.get(session.session_id)
    assert stored is not None
    assert stored.state is SessionState.CONNECTED


async def test_a_gateway_that_takes_no_orders_is_disconnected(house: House) -> None:
    association, _ = await house.connect()
    for number in range(OUTBOX_ORDERS + 1):
        house.switchboard.unwant(GATEWAY, f"ses_{number}")
    assert await association.next_order() is None
    assert association.end_reason == "too_slow"
