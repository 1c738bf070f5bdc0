"""What a driver tells its ports: the other side is a tunnel without I/O."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from fairlead_tunnel.frames import Content
from fairlead_tunnel.outbox import Batch
from fairlead_tunnel.records import MAX_BATCH_BYTES
from fairlead_tunnel.tunnel import CHANNEL_WINDOW, Side, Tunnel
from fairlead_tunnel.tunnel_driver import TunnelDriver

pytestmark = pytest.mark.asyncio


@dataclass
class Carrier:
    """Keeps what is sent."""

    can_send: bool = True
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

    def write(self, content: Content) -> None:
        """Consume it."""
        self.driver.port_consumed(self.channel, len(content))

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
    """A client's driver with one carrier and a gateway's tunnel."""

    def __init__(self) -> None:
        self.driver = TunnelDriver(tunnel=Tunnel(side=Side.CLIENT), user=self)
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


async def test_a_port_whose_bytes_left_before_its_target_was_there_reads_on() -> None:
    it = Client()
    channel = it.driver.open("port:80")
    await turn()
    piece = bytes(MAX_BATCH_BYTES)
    while it.driver.port_read(channel, piece):
        pass
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
