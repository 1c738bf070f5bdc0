"""Which of several ways to a gateway is taken: the first that goes, better ones ahead."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from fairlead_tunnel.carriers import TunnelTicket
from fairlead_tunnel.driver_sides import CarrierDriver
from fairlead_tunnel.handshake import AttachRefused
from fairlead_tunnel.ways import AttachedCarrier, Kind, WaysFailed, reach_first

pytestmark = pytest.mark.asyncio


@dataclass
class OneWay:
    """A way that goes when `goes` is set; it keeps what became of it."""

    kind: Kind
    name: str = "way"
    goes: asyncio.Event = field(default_factory=asyncio.Event)
    fault: Exception | None = None
    tried: asyncio.Event = field(default_factory=asyncio.Event)
    is_left: bool = False
    is_dropped: bool = False

    async def reach(self) -> OneWay:
        """Go there."""
        self.tried.set()
        if self.fault is not None:
            raise self.fault
        try:
            await self.goes.wait()
        except asyncio.CancelledError:
            self.is_left = True
            raise
        return self

    async def attach(self, *, ticket: TunnelTicket, driver: CarrierDriver) -> AttachedCarrier:
        """Never asked to."""
        raise AssertionError

    def drop(self) -> None:
        """Note it."""
        self.is_dropped = True


def going(kind: Kind) -> OneWay:
    """Return a way that goes at once."""
    way = OneWay(kind)
    way.goes.set()
    return way


def failing(kind: Kind, name: str) -> OneWay:
    """Return a way that does not go."""
    return OneWay(kind, name, fault=OSError("closed"))


async def test_the_best_kind_is_tried_first_and_alone() -> None:
    best, worse = going(Kind.TCP), going(Kind.POLLS)
    assert await reach_first([worse, best], head_start=60) == (best, best)
    assert not worse.tried.is_set()


async def test_one_that_does_not_answer_is_not_waited_for() -> None:
    dead, refused, goes = OneWay(Kind.TCP), failing(Kind.WEBSOCKET, "b"), going(Kind.REQUESTS)
    assert await reach_first([dead, refused, goes], head_start=0) == (goes, goes)
    assert dead.is_left
    assert refused.tried.is_set()


async def test_the_next_kind_is_tried_at_once_when_all_before_have_failed() -> None:
    ways = [failing(Kind.TCP, "a"), failing(Kind.TCP, "b"), going(Kind.POLLS)]
    assert await reach_first(ways, head_start=3600) == (ways[2], ways[2])


async def test_those_of_one_kind_are_tried_together() -> None:
    dead, goes = OneWay(Kind.WEBSOCKET), going(Kind.WEBSOCKET)
    assert await reach_first([dead, goes], head_start=3600) == (goes, goes)
    assert dead.is_left


async def test_a_way_that_went_too_is_dropped() -> None:
    best, other = going(Kind.TCP), going(Kind.TCP)
    assert await reach_first([best, other]) == (best, best)
    assert (best.is_dropped, other.is_dropped) == (False, True)


async def test_all_that_was_tried_is_told_when_nothing_goes() -> None:
    with pytest.raises(WaysFailed) as failed:
        await reach_first([failing(Kind.TCP, "a"), failing(Kind.POLLS, "b")])
    assert str(failed.value) == "a: closed; b: closed"
    with pytest.raises(WaysFailed):
        await reach_first([])


async def test_who_waits_no_more_leaves_what_was_tried() -> None:
    dead = OneWay(Kind.TCP)
    reaching = asyncio.ensure_future(reach_first([dead]))
    await dead.tried.wait()
    reaching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reaching
    assert dead.is_left


async def test_one_that_has_failed_is_tried_again_while_a_slow_one_is_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fairlead_tunnel.ways.AGAIN_SECONDS", 0)
    back, slow = failing(Kind.TCP, "a"), OneWay(Kind.DATA_CHANNEL)
    reaching = asyncio.ensure_future(reach_first([back, slow]))
    await slow.tried.wait()
    back.fault = None
    back.goes.set()
    assert await reaching == (back, back)
    assert slow.is_left


async def test_what_refuses_for_good_ends_the_search() -> None:
    slow = OneWay(Kind.DATA_CHANNEL)
    never = OneWay(Kind.DATA_CHANNEL, fault=AttachRefused("tunnel_unknown", "It is closed."))
    with pytest.raises(AttachRefused):
        await reach_first([slow, never])
    assert slow.is_left
