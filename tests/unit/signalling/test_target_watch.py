"""Sessions whose launch or sandbox is gone, and nobody has said so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from chassis.errors import Unavailable
from signalling.association import Association, Unwant
from signalling.close_reason import CloseReason
from signalling.session import Session
from signalling.session_event import SessionState
from signalling.target_watch import TargetWatch
from tests.fakes.session_house import GATEWAY, HELD, House, make_house

pytestmark = pytest.mark.asyncio


class TargetsFake:
    """Says what is in `gone`; `before` happens while it is asked, `away` says that nobody knows."""

    def __init__(self) -> None:
        self.gone: set[str] = set()
        self.asked: list[str] = []
        self.away = False
        self.before: Callable[[], Awaitable[object]] | None = None

    async def is_gone(self, tenant: str, launch_id: str) -> bool:
        self.asked.append(launch_id)
        if self.before is not None:
            await self.before()
        if self.away:
            raise Unavailable("Away.", reason="host_away")
        return launch_id in self.gone


@pytest.fixture
def house() -> House:
    return make_house()


@pytest.fixture
def targets() -> TargetsFake:
    return TargetsFake()


@pytest.fixture
def watch(house: House, targets: TargetsFake) -> TargetWatch:
    return TargetWatch(book=house.book, targets=targets)


async def connected(house: House, association: Association) -> Session:
    session = await house.answered(association)
    await house.desk.take_change(GATEWAY, session.session_id, connected=True, reason="")
    return session


async def test_sessions_to_what_is_gone_are_closed_and_their_gateway_told(
    house: House, targets: TargetsFake, watch: TargetWatch
) -> None:
    association, _ = await house.connect()
    both = [await connected(house, association) for _ in range(2)]
    await watch.look()
    targets.gone = {HELD.launch_id}
    await watch.look()
    assert await house.state(both[0]) == (SessionState.CONNECTED, None)
    await watch.look()
    for session in both:
        assert await house.state(session) == (SessionState.CLOSED, CloseReason.LAUNCH_ENDED)
        assert await association.next_order() == Unwant(session.session_id)
    await watch.look()
    assert targets.asked == [HELD.launch_id] * 3


async def test_what_comes_back_or_cannot_be_asked_for_keeps_its_sessions(
    house: House, targets: TargetsFake, watch: TargetWatch
) -> None:
    association, _ = await house.connect()
    session = await connected(house, association)
    for gone, away in (
        ({HELD.launch_id}, False),
        (set(), False),
        ({HELD.launch_id}, False),
        ({HELD.launch_id}, True),
        ({HELD.launch_id}, False),
    ):
        targets.gone, targets.away = gone, away
        await watch.look()
        assert await house.state(session) == (SessionState.CONNECTED, None)


async def test_sessions_that_are_not_connected_are_left_to_their_time(
    house: House, targets: TargetsFake, watch: TargetWatch
) -> None:
    association, _ = await house.connect()
    session = await house.answered(association)
    targets.gone = {HELD.launch_id}
    await watch.look()
    await watch.look()
    assert targets.asked == []
    assert await house.state(session) == (SessionState.ANSWERED, None)


async def test_a_session_that_is_closed_during_a_look_keeps_its_reason(
    house: House, targets: TargetsFake, watch: TargetWatch
) -> None:
    association, _ = await house.connect()
    one, other = [await connected(house, association) for _ in range(2)]
    targets.gone = {HELD.launch_id}
    await watch.look()
    targets.before = lambda: house.broker.close("default", one.session_id)
    await watch.look()
    assert await house.state(one) == (SessionState.CLOSED, CloseReason.REQUESTED)
    assert await house.state(other) == (SessionState.CLOSED, CloseReason.LAUNCH_ENDED)


async def test_a_store_that_is_away_ends_no_session(
    house: House, targets: TargetsFake, watch: TargetWatch
) -> None:
    association, _ = await house.connect()
    session = await connected(house, association)
    targets.gone = {HELD.launch_id}
    await watch.look()
    house.store.raising = Unavailable("Away.", reason="redis_unavailable")
    with pytest.raises(Unavailable):
        await watch.look()
    house.store.raising = None
    assert await house.state(session) == (SessionState.CONNECTED, None)
    await watch.look()
    assert await house.state(session) == (SessionState.CLOSED, CloseReason.LAUNCH_ENDED)
