"""Channels to hosts, with a dialler that a test holds up: everything ends once, and ends both."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from chassis.errors import FairleadError
from fairlead_tunnel.byte_channel import PROTOCOL, Side
from fairlead_tunnel.carriers import TunnelDesk
from fairlead_tunnel.peer_connection import PeerPlan
from fairlead_tunnel.pump import Pump
from relay_gateway.ports import Stream
from relay_gateway.session import PortTimeout, WantedSession
from relay_gateway.target_rules import DialTimeout
from relay_gateway.webrtc_association import MOST_WAITING, WebrtcAssociation
from tests.fakes.message_port import Wire
from tests.fakes.peer_core import PeerConnectionFake, PeerCoreFake

pytestmark = pytest.mark.asyncio

LABEL = "tcp:db.internal:5432"


class DiallerFake:
    """Connects to `wire` once it `may_dial`; raises `error` when that is set."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.wire = Wire()
        self.reader: asyncio.StreamReader | None = None
        self.error: FairleadError | None = None
        self.may_dial = asyncio.Event()
        self.heeds_cancel = True

    async def dial(self, session: WantedSession, host: str, port: int) -> Stream:
        self.asked.append((host, port))
        try:
            await self.may_dial.wait()
        except asyncio.CancelledError:
            if self.heeds_cancel:
                raise
        if self.error is not None:
            raise self.error
        self.reader, writer = self.wire.connect()
        return self.reader, writer


class NoOpener:
    """A sandbox that brings nothing; keeps what was asked of it."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, str]] = []

    async def open(self, session: WantedSession, port: int, execution_id: str = "") -> Stream:
        self.asked.append((port, execution_id))
        raise PortTimeout


class Room:
    """A client and a gateway that are connected."""

    def __init__(self) -> None:
        core = PeerCoreFake()
        self.dialler = DiallerFake()
        self.opener = NoOpener()
        self.client: PeerConnectionFake = core.connect(PeerPlan())
        self.client.listen(lambda event: None)
        self.is_draining = False
        self.association = WebrtcAssociation(
            connection=core.connect(PeerPlan()),
            can_restart=False,
            session=WantedSession("ses_a", "v=0", datetime.now(UTC)),
            opener=self.opener,
            dialler=self.dialler,
            desk=self.desk,
            channel_limit=2,
            is_draining=lambda: self.is_draining,
            take=lambda happening: None,
        )

    def desk(self) -> TunnelDesk:
        raise AssertionError

    async def connect(self) -> None:
        await self.association.negotiate(await self.client.offer())
        await self.client.accept(self.association.answer)
        await turns()

    def open(self, label: str = LABEL) -> Pump:
        return Pump(port=self.client.open_channel(label, PROTOCOL), side=Side.OPENER)


async def connected() -> Room:
    it = Room()
    await it.connect()
    return it


async def turns(count: int = 30) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def reason_of(pump: Pump) -> str:
    async with asyncio.timeout(5):
        return (await pump.wait_ended()).reason


async def test_bytes_go_both_ways_and_an_end_of_one_leaves_the_other() -> None:
    it = await connected()
    it.dialler.may_dial.set()
    near = Wire()
    reader, writer = near.connect()
    carrying = asyncio.create_task(it.open().carry(reader, writer))
    reader.feed_data(b"question")
    reader.feed_eof()
    await turns()
    assert it.dialler.asked == [("db.internal", 5432)]
    assert bytes(it.dialler.wire.written) == b"question"
    assert it.dialler.wire.has_ended
    assert it.association.channels == 1
    assert it.dialler.reader is not None
    it.dialler.reader.feed_data(b"answer")
    it.dialler.reader.feed_eof()
    assert (await carrying).reason == ""
    await turns()
    assert bytes(near.written) == b"answer"
    assert not it.dialler.wire.is_aborted
    assert it.association.channels == 0
    await it.association.close()


async def test_what_stands_in_the_way_is_a_reset_at_once() -> None:
    it = await connected()
    it.dialler.error = DialTimeout("db.internal", 5432)
    it.dialler.may_dial.set()
    assert await reason_of(it.open()) == "dial_timeout"
    await turns()
    assert it.association.channels == 0
    assert await reason_of(it.open("tcp:a b:80")) == "channel_unknown"
    await it.association.close()


async def test_what_is_in_the_sandbox_is_not_dialled() -> None:
    it = await connected()
    execution_id = "exe_" + "a" * 26
    for label in ("tcp:80", f"terminal:{execution_id}"):
        assert await reason_of(it.open(label)) == "port_timeout"
    assert it.opener.asked == [(80, ""), (0, execution_id)]
    assert it.dialler.asked == []
    await it.association.close()


@pytest.mark.parametrize("heeds_cancel", [True, False])
async def test_a_session_that_closes_while_it_is_dialled_leaves_nothing(
    heeds_cancel: bool,
) -> None:
    it = await connected()
    it.dialler.heeds_cancel = heeds_cancel
    pump = it.open()
    await turns()
    await it.association.close()
    assert await reason_of(pump) == "session_closed"
    assert it.association.channels == 0
    assert it.dialler.wire.is_aborted is not heeds_cancel


async def test_a_client_that_gives_up_while_it_is_dialled_leaves_nothing() -> None:
    it = await connected()
    pump = it.open()
    await turns()
    pump.refuse("connection_reset", "Gone.")
    await turns()
    assert it.association.channels == 0
    assert it.dialler.reader is None
    await it.association.close()


async def test_a_session_that_closes_cuts_the_connection() -> None:
    it = await connected()
    it.dialler.may_dial.set()
    pump = it.open()
    await turns()
    assert it.association.channels == 1
    await it.association.close()
    assert it.dialler.wire.is_aborted
    assert await reason_of(pump) == "session_closed"


async def test_a_drain_lets_the_open_channel_finish_and_takes_no_other() -> None:
    it = await connected()
    it.dialler.may_dial.set()
    near = Wire()
    reader, writer = near.connect()
    carrying = asyncio.create_task(it.open().carry(reader, writer))
    await turns()
    it.is_draining = True
    assert await reason_of(it.open()) == "gateway_draining"
    reader.feed_data(b"still here")
    reader.feed_eof()
    await turns()
    assert bytes(it.dialler.wire.written) == b"still here"
    assert it.dialler.reader is not None
    it.dialler.reader.feed_eof()
    assert (await carrying).reason == ""
    await it.association.close()


async def test_a_channel_beyond_the_limit_waits_until_another_has_ended() -> None:
    it = await connected()
    pumps = [it.open() for _ in range(3)]
    await turns()
    assert it.association.channels == 3
    assert len(it.dialler.asked) == 2
    pumps[0].refuse("connection_reset", "The client leaves.")
    await turns()
    assert it.association.channels == 2
    assert len(it.dialler.asked) == 3
    await it.association.close()


async def test_more_channels_wait_than_may_be_and_are_refused() -> None:
    it = await connected()
    waiting = [it.open() for _ in range(2 + MOST_WAITING)]
    assert await reason_of(it.open()) == "channel_limit"
    assert it.association.channels == len(waiting)
    await it.association.close()


async def test_a_host_that_reads_nothing_stalls_only_its_own_channel() -> None:
    it = await connected()
    it.dialler.may_dial.set()
    slow_near, slow = Wire(), it.open()
    slow_reader, slow_writer = slow_near.connect()
    carrying = asyncio.create_task(slow.carry(slow_reader, slow_writer))
    await turns()
    stalled = it.dialler.wire
    stalled.stall()
    slow_reader.feed_data(bytes(4_000_000))
    await turns(2000)
    # No more than the credit of one channel leaves the client.
    assert len(stalled.written) <= 1024 * 1024
    it.dialler.wire = Wire()
    near = Wire()
    reader, writer = near.connect()
    other = asyncio.create_task(it.open().carry(reader, writer))
    reader.feed_data(b"quick")
    await turns()
    assert bytes(it.dialler.wire.written) == b"quick"
    stalled.go_on()
    slow_reader.feed_eof()
    async with asyncio.timeout(20):
        while not stalled.has_ended:  # noqa: ASYNC110 - a turn of the loop, no time
            await asyncio.sleep(0)
    assert len(stalled.written) == 4_000_000
    await it.association.close()
    await asyncio.wait((carrying, other))
