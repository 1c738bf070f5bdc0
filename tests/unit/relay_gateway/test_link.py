"""The line to signalling: dialling, dialling again, and asking for ports meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from chassis.errors import FairleadError, Unavailable
from relay_gateway.line import Line
from relay_gateway.link import Link
from relay_gateway.message import (
    Changed,
    Heartbeat,
    PortGranted,
    PortWanted,
    Refusal,
    SessionUnwanted,
    Welcome,
)
from relay_gateway.switchboard import Switchboard
from tests.fakes.clock import FakeClock
from tests.fakes.gateway_ports import CarrierFake, ConversationFake, SignallingFake
from tests.unit.relay_gateway.test_switchboard import wanted

WELCOME = Welcome([], 1.0)
BROKEN = Unavailable("Broken.", reason="signalling_unavailable")
TICKET = bytes(range(32))


async def turns(count: int = 12) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class Room:
    """A link over scripted conversations; `delays` are the bounds that its back-off asked for."""

    def __init__(self, *conversations: ConversationFake) -> None:
        self.signalling = SignallingFake(*conversations)
        self.line = Line(traceparent=lambda: "00-trace", grant_seconds=0.2)
        self.delays: list[tuple[float, float]] = []
        self.board = Switchboard(
            carrier=CarrierFake(), line=self.line, clock=FakeClock(), capacity=9
        )
        self.link = Link(
            gateway_id="gtw_a",
            capacity=9,
            workers_address="unix:/relay",
            signalling=self.signalling,
            line=self.line,
            switchboard=self.board,
            jitter=self.jitter,
        )

    def jitter(self, least: float, most: float) -> float:
        self.delays.append((least, most))
        if len(self.delays) >= 12:
            raise EndOfTest
        return 0.0


class EndOfTest(Exception):
    """Enough was seen."""


@pytest.mark.asyncio
async def test_the_delay_doubles_up_to_five_seconds() -> None:
    it = Room()
    with pytest.raises(EndOfTest):
        await it.link.run()
    most = [bound for _, bound in it.delays]
    assert most[:7] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0]
    assert set(most[6:]) == {5.0}
    assert {least for least, _ in it.delays} == {0.1}


@pytest.mark.asyncio
@pytest.mark.parametrize("first", [None, BROKEN, SessionUnwanted("ses_a")])
async def test_without_a_welcome_the_line_stays_down(first: SessionUnwanted | None) -> None:
    it = Room(ConversationFake(first))
    with pytest.raises(EndOfTest):
        await it.link.run()
    assert not it.line.is_up
    assert it.delays[0] == (0.1, 0.1)
    assert it.delays[1] == (0.1, 0.2)


@pytest.mark.asyncio
async def test_a_welcome_starts_the_delays_anew_and_hello_states_what_is_held() -> None:
    first, second = ConversationFake(WELCOME), ConversationFake(WELCOME)
    it = Room(first, second)
    async with it.board:
        running = asyncio.create_task(it.link.run())
        await turns()
        assert it.line.is_up
        assert first.told[0] == Heartbeat(0, 0, False)
        first.queue.put_nowait(wanted("ses_a"))
        await turns()
        assert it.board.session_ids == ["ses_a"]
        first.queue.put_nowait(BROKEN)
        await turns(30)
        assert it.delays == [(0.1, 0.1)]
        assert list(it.signalling.hellos[1].session_ids) == ["ses_a"]
        assert list(it.signalling.hellos[1].ended) == []
        assert it.signalling.hellos[1].workers_address == "unix:/relay"
        await turns(30)
        assert it.board.session_ids == []
        second.queue.put_nowait(wanted("ses_b"))
        await turns()
        second.queue.put_nowait(SessionUnwanted("ses_b"))
        await turns(30)
        assert it.board.session_ids == []
        assert Changed("ses_b", False, "requested") in it.board.ended
        running.cancel()
        await asyncio.wait((running,))
    assert not it.line.is_up


@pytest.mark.asyncio
async def test_a_stop_says_what_is_left_and_dials_no_more() -> None:
    only = ConversationFake(WELCOME)
    it = Room(only)
    async with it.board:
        running = asyncio.create_task(it.link.run())
        await turns()
        await it.link.stop()
        await asyncio.wait((running,), timeout=1)
        assert running.done()
        assert running.exception() is None
    assert it.signalling.dials == 1
    assert it.delays == []


@pytest.mark.asyncio
async def test_a_port_is_asked_for_and_granted() -> None:
    line, said = Line(traceparent=lambda: "00-trace"), ConversationFake()
    line.connect(said)
    asking = asyncio.create_task(line.ask_port("ses_a", 80, TICKET))
    await turns()
    (asked,) = said.told
    assert asked == PortWanted(1, "ses_a", 80, "00-trace", TICKET)
    line.granted(PortGranted(7))
    line.granted(PortGranted(1))
    line.granted(PortGranted(1))
    await asking


@pytest.mark.asyncio
async def test_a_refusal_keeps_its_reason() -> None:
    line, said = Line(traceparent=lambda: ""), ConversationFake()
    line.connect(said)
    asking = asyncio.create_task(line.ask_port("ses_a", 80, TICKET))
    await turns()
    line.granted(PortGranted(1, Refusal("launch_not_held", "It has ended.")))
    with pytest.raises(FairleadError, match="It has ended") as caught:
        await asking
    assert caught.value.reason == "launch_not_held"


@pytest.mark.asyncio
async def test_a_port_is_asked_for_again_when_the_line_comes_back() -> None:
    line, first, second = Line(traceparent=lambda: ""), ConversationFake(), ConversationFake()
    line.connect(first)
    asking = asyncio.create_task(line.ask_port("ses_a", 80, TICKET))
    await turns()
    line.disconnect()
    await turns()
    assert not asking.done()
    line.connect(second)
    await turns()
    (asked,) = second.told
    assert isinstance(asked, PortWanted)
    line.granted(PortGranted(asked.request_id))
    await asking


@pytest.mark.asyncio
async def test_a_port_is_not_waited_for_for_ever() -> None:
    line = Line(traceparent=lambda: "", grant_seconds=0.01)
    with pytest.raises(FairleadError) as caught:
        await line.ask_port("ses_a", 80, TICKET)
    assert caught.value.reason == "port_timeout"
