"""Opening a channel: signalling's answer and the worker's connection, in every order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest

from chassis.errors import FairleadError
from relay_gateway.line import Line
from relay_gateway.message import PortGranted, PortWanted, Refusal
from relay_gateway.opener import Opener
from relay_gateway.ports import Stream
from relay_gateway.session import WantedSession
from relay_gateway.worker_door import ExpectedStream
from tests.fakes.gateway_ports import ConversationFake
from tests.fakes.message_port import Wire

pytestmark = pytest.mark.asyncio

SESSION = WantedSession("ses_a", "v=0", datetime.now(UTC))
TICKET = bytes(range(32))


class WorkersFake:
    """A door that one worker may come to."""

    def __init__(self) -> None:
        self.expected: ExpectedStream | None = None

    @contextmanager
    def expect(self) -> Iterator[ExpectedStream]:
        self.expected = ExpectedStream(ticket=TICKET)
        try:
            yield self.expected
        finally:
            self.expected.give_up()
            self.expected = None


class Room:
    """An opening under way."""

    def __init__(self, port: int = 80, execution_id: str = "") -> None:
        self.line = Line(traceparent=lambda: "")
        self.said = ConversationFake()
        self.line.connect(self.said)
        self.workers = WorkersFake()
        self.wire = Wire()
        opener = Opener(line=self.line, workers=self.workers, arrival_seconds=0.01)
        self.opening = asyncio.create_task(opener.open(SESSION, port, execution_id))

    async def turns(self) -> None:
        for _ in range(12):
            await asyncio.sleep(0)

    def arrive(self) -> Stream:
        assert self.workers.expected is not None
        stream = self.wire.connect()
        self.workers.expected.bring(stream)
        return stream


async def test_the_ticket_is_sent_and_the_connection_awaited() -> None:
    it = Room()
    await it.turns()
    assert it.said.told == [PortWanted(1, "ses_a", 80, "", TICKET)]
    it.line.granted(PortGranted(1))
    await asyncio.sleep(0)
    stream = it.arrive()
    assert await it.opening == stream
    assert not it.wire.is_closed
    assert it.workers.expected is None
    stream[1].close()


async def test_a_terminal_is_asked_for_by_its_execution() -> None:
    it = Room(0, "exe_a")
    await it.turns()
    assert it.said.told == [PortWanted(1, "ses_a", 0, "", TICKET, "exe_a")]
    stream = it.arrive()
    assert await it.opening == stream
    stream[1].close()


async def test_a_connection_needs_no_answer_when_the_line_is_lost() -> None:
    it = Room()
    await it.turns()
    it.line.disconnect()
    await it.turns()
    stream = it.arrive()
    assert await it.opening == stream
    assert not it.wire.is_closed
    stream[1].close()


async def test_a_refusal_keeps_its_reason() -> None:
    it = Room()
    await it.turns()
    it.line.granted(PortGranted(1, Refusal("port_refused", "Nothing listens.")))
    with pytest.raises(FairleadError) as caught:
        await it.opening
    assert caught.value.reason == "port_refused"
    assert it.workers.expected is None


async def test_a_worker_that_does_not_come_is_not_waited_for_for_ever() -> None:
    it = Room()
    await it.turns()
    it.line.granted(PortGranted(1))
    with pytest.raises(FairleadError) as caught:
        await it.opening
    assert caught.value.reason == "port_timeout"
    assert it.workers.expected is None


async def test_a_connection_that_comes_while_its_client_leaves_is_dropped() -> None:
    it = Room()
    await it.turns()
    it.arrive()
    it.opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await it.opening
    assert it.wire.is_aborted
