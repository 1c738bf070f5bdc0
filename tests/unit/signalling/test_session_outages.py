"""What happens to sessions while the store, or the line to their gateway, is away."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from chassis.errors import Unavailable
from signalling.association import Association
from signalling.close_reason import CloseReason
from signalling.session_event import SessionState
from tests.fakes.session_house import GATEWAY, HELD, House, make_house

pytestmark = pytest.mark.asyncio


class Away(Unavailable):
    """The store is away."""

    def __init__(self) -> None:
        super().__init__("Away.", reason="redis_unavailable")


@pytest.fixture
def house() -> House:
    return make_house()


async def test_a_session_that_connects_while_the_store_is_away_goes_on(house: House) -> None:
    association, _ = await house.connect()
    session = await house.answered(association)
    opened = await house.broker.open("default", HELD.launch_id, "complete", None)
    house.store.raising = Away()
    with pytest.raises(Away):
        await house.desk.take_change(GATEWAY, session.session_id, connected=True, reason="")
    await house.switchboard.disconnect(association)
    for _ in range(8):
        house.clock.advance(10)
        with suppress(Away):
            await house.switchboard.patrol()
        with suppress(Away):
            await house.connect(held=(session.session_id,))
    house.store.raising = None
    await house.switchboard.patrol()
    assert await house.state(session) == (SessionState.ANSWERED, None)
    _, wanted = await house.connect(held=(session.session_id,))
    assert wanted == [session.session_id]
    await house.desk.take_change(GATEWAY, session.session_id, connected=True, reason="")
    assert await house.state(session) == (SessionState.CONNECTED, None)
    assert await house.state(opened) == (SessionState.CLOSED, CloseReason.EXPIRED)


async def patrol(house: House, association: Association) -> None:
    association.heard_at = house.clock.monotonic()  # its heartbeat waits for the store as well
    await house.switchboard.patrol()


async def beat(house: House, association: Association) -> bool:
    house.switchboard.heard(association, sessions=1, channels=1, draining=False)
    return await house.switchboard.renew(association)


@pytest.mark.parametrize("notice", [patrol, beat], ids=["patrol", "heartbeat"])
@pytest.mark.parametrize("times", [8, 400])
async def test_a_connected_session_outlives_a_store_that_only_the_directory_misses(
    house: House, notice: Callable[[House, Association], Awaitable[object]], times: int
) -> None:
    association, _ = await house.connect()
    session = await house.answered(association)
    await house.desk.take_change(GATEWAY, session.session_id, connected=True, reason="")
    house.directory.raising = house.store.raising = Away()
    for _ in range(times):
        house.clock.advance(9)
        with suppress(Away):
            assert not await notice(house, association)
    house.directory.raising = house.store.raising = None
    house.clock.advance(9)
    association.heard_at = house.clock.monotonic()
    await house.switchboard.patrol()
    assert await house.state(session) == (SessionState.CONNECTED, None)
    assert await beat(house, association)
    await house.desk.keep_connected(GATEWAY)
    house.clock.advance(59)
    association.heard_at = house.clock.monotonic()
    await house.switchboard.patrol()
    assert await house.state(session) == (SessionState.CONNECTED, None)
    house.clock.advance(2)
    await house.switchboard.patrol()
    assert await house.state(session) == (SessionState.CLOSED, CloseReason.EXPIRED)


async def test_a_session_that_never_connected_is_not_kept_for_ever(house: House) -> None:
    association, _ = await house.connect()
    session = await house.answered(association)
    house.store.raising = Away()
    with pytest.raises(Away):
        await house.broker.open("default", HELD.launch_id, "complete", None)
    house.store.raising = None
    house.clock.advance(61)
    house.switchboard.heard(association, sessions=1, channels=0, draining=False)
    await house.switchboard.patrol()
    assert await house.state(session) == (SessionState.CLOSED, CloseReason.EXPIRED)


async def test_an_end_that_was_missed_keeps_its_reason(house: House) -> None:
    association, _ = await house.connect()
    told, forgotten = await house.answered(association), await house.answered(association)
    await house.switchboard.disconnect(association)
    await house.connect(
        ended={told.session_id: CloseReason.PEER_CLOSED, "ses_other": CloseReason.ERROR}
    )
    assert await house.state(told) == (SessionState.CLOSED, CloseReason.PEER_CLOSED)
    assert await house.state(forgotten) == (SessionState.CLOSED, CloseReason.GATEWAY_LOST)
