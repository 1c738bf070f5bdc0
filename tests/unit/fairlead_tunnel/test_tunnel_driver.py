"""When a driver sends, and what its ports are told: the other side is a tunnel without I/O."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from fairlead_tunnel.frames import Content
from fairlead_tunnel.outbox import Batch
from fairlead_tunnel.records import MAX_BATCH_BYTES
from fairlead_tunnel.tunnel import CHANNEL_WINDOW, Side, Tunnel
from fairlead_tunnel.tunnel_driver import CROWD_SECONDS, TunnelDriver

pytestmark = pytest.mark.asyncio


@dataclass
class Carrier:
    """Keeps what is sent."""

    can_send: bool = True
    takes_last: bool = False
    most_bytes: int = MAX_BATCH_BYTES
    sent: list[bytes] = field(default_factory=list)

    def send(self, batch: Batch) -> None:
        """Keep it."""
        self.sent.append(b"".join(batch.pieces))

    def close(self) -> None:
        """End nothing."""

    def abort(self) -> None:
        """End nothing."""


@dataclass
class PortFake:
    """Counts how often it may read on; what it gets is consumed at once."""

    driver: TunnelDriver
    channel: int
    goes: int = 0
    answer: bytes = b""

    def write(self, content: Content) -> None:
        """Consume it, and read the answer."""
        self.driver.port_consumed(self.channel, len(content))
        if self.answer:
            self.driver.port_read(self.channel, self.answer)

    def go_on(self) -> None:
        """Count."""
        self.goes += 1

    def finish(self) -> None:
        """End nothing."""

    def close(self) -> None:
        """End nothing."""

    def abort(self) -> None:
        """End nothing."""


class Client:
    """A client's driver with one carrier, a clock of its own and a gateway's tunnel."""

    def __init__(self) -> None:
        self.now = 0.0
        self.driver = TunnelDriver(
            tunnel=Tunnel(side=Side.CLIENT), user=self, clock=lambda: self.now
        )
        self.carrier = Carrier()
        self.driver.attach(1, self.carrier)
        self.gateway = Tunnel(side=Side.GATEWAY)

    def wanted(self, channel: int, target: str) -> None:
        """Never comes."""

    def accepted(self, channel: int) -> None:
        """Note nothing."""

    def ended(self, channel: int, reason: str, message: str) -> None:
        """Note nothing."""

    def over(self, reason: str, message: str) -> None:
        """Note nothing."""

    def pass_on(self) -> None:
        """Give the gateway what was sent, and the driver what the gateway says to it."""
        sent, self.carrier.sent = self.carrier.sent, []
        for batch in sent:
            self.gateway.receive(batch, 0.0)
        if batch_back := self.gateway.take_batch(
            carrier=1, most=MAX_BATCH_BYTES, now=1.0, answer=True
        ):
            self.driver.take(b"".join(batch_back.pieces))


async def turn() -> None:
    """Let the loop have its turn."""
    await asyncio.sleep(0)


async def test_what_is_read_alone_leaves_at_once() -> None:
    it = Client()
    channel = it.driver.open("port:80", hold_seconds=1.0)
    await turn()
    assert not it.carrier.sent
    assert it.driver.port_read(channel, b"first")
    assert len(it.carrier.sent) == 1
    it.now += CROWD_SECONDS * 1.5
    assert it.driver.port_read(channel, b"second")
    assert len(it.carrier.sent) == 2


async def test_what_is_read_soon_after_a_batch_left_leaves_together() -> None:
    it = Client()
    channels = [it.driver.open("port:80", hold_seconds=1.0) for _ in range(10)]
    await turn()
    for channel in channels:
        assert it.driver.port_read(channel, b"bytes")
    assert len(it.carrier.sent) == 1
    await turn()
    assert len(it.carrier.sent) == 2


async def test_what_a_batch_causes_leaves_together() -> None:
    it = Client()
    channels = [it.driver.open("port:80") for _ in range(10)]
    for channel in channels:
        it.driver.connect(channel, PortFake(it.driver, channel, answer=b"answer"))
    await turn()
    it.now += 1.0
    batch, it.carrier.sent = it.carrier.sent[0], []
    it.gateway.receive(batch, 0.0)
    for channel in channels:
        it.gateway.write(channel, b"question")
    back = it.gateway.take_batch(carrier=1, most=MAX_BATCH_BYTES, now=0.0)
    assert back is not None
    it.driver.take(b"".join(back.pieces))
    assert not it.carrier.sent
    await turn()
    assert len(it.carrier.sent) == 1


async def test_a_batch_that_needs_no_answer_now_is_answered_in_time() -> None:
    it = Client()
    channel = it.driver.open("port:80")
    it.driver.connect(channel, PortFake(it.driver, channel))
    await turn()
    it.pass_on()
    await turn()
    it.carrier.sent.clear()
    it.gateway.write(channel, b"some")
    back = it.gateway.take_batch(carrier=1, most=MAX_BATCH_BYTES, now=0.0)
    assert back is not None
    it.driver.take(b"".join(back.pieces))
    await turn()
    assert not it.carrier.sent
    assert it.driver._timer is not None


async def test_a_port_whose_bytes_left_before_its_target_was_there_reads_on() -> None:
    it = Client()
    channel = it.driver.open("port:80")
    await turn()
    piece = bytes(MAX_BATCH_BYTES)
    while it.driver.port_read(channel, piece):
        it.now += 1.0
    for _ in range(CHANNEL_WINDOW // MAX_BATCH_BYTES):
        it.carrier.can_send = True
        await turn()
        it.pass_on()
    port = PortFake(it.driver, channel)
    assert it.driver.connect(channel, port)
    assert port.goes == 1


async def test_a_port_that_still_waits_when_its_target_is_there_reads_on_later() -> None:
    it = Client()
    channel = it.driver.open("port:80")
    it.carrier.can_send = False
    while it.driver.port_read(channel, bytes(MAX_BATCH_BYTES)):
        pass
    port = PortFake(it.driver, channel)
    it.driver.connect(channel, port)
    assert port.goes == 0
    it.carrier.can_send = True
    it.driver.flush_soon()
    for _ in range(CHANNEL_WINDOW // MAX_BATCH_BYTES):
        await turn()
        it.pass_on()
    assert port.goes == 1
