"""A driver whose pump fails: everything ends with a reason, and nothing is asked for in vain."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from fairlead_tunnel.outbox import Batch
from fairlead_tunnel.pumped_driver import PumpedDriver
from fairlead_tunnel.tunnel import Side, TunnelFull

pytestmark = pytest.mark.asyncio


@dataclass
class FailingTunnel:
    """Has one channel, and then fails whatever it is asked for."""

    has_failed: bool = False
    channels: int = 1
    bytes_read: int = 0
    bytes_written: int = 0

    def take(self, batch: bytes) -> None:
        """Do nothing."""

    def first_batch(self, carrier: int, most: int, *, restate: bool = False) -> bytes:
        """Fail."""
        raise RuntimeError("the pump has failed")

    def attach(
        self,
        carrier: int,
        connection: socket.socket,
        *,
        suite: int,
        send: bytes,
        receive: bytes,
        received: bytes,
        unsent: bytes,
        is_websocket: bool,
    ) -> None:
        """Drop it."""
        connection.close()

    def retire(self, carrier: int) -> None:
        """Do nothing."""

    def attach_foreign(self, carrier: int) -> None:
        """Do nothing."""

    def take_batch(self, carrier: int, most: int) -> bytes | None:
        """Fail."""
        raise RuntimeError("the pump has failed")

    def detach(self, carrier: int, *, heard: bool = False, reached: bool = True) -> None:
        """Do nothing."""

    def listen(self, listener: socket.socket, target: str, *, hold_seconds: float) -> int:
        """Drop it."""
        listener.close()
        return 1

    def listen_socks(
        self, listener: socket.socket, credentials: tuple[bytes, bytes] | None, *, seconds: float
    ) -> int:
        """Drop it."""
        listener.close()
        return 1

    def stop_listening(self, listener: int) -> None:
        """Fail."""
        raise RuntimeError("the pump has failed")

    def open(self, target: str, *, hold_seconds: float) -> int | None:
        """Give a number until it fails."""
        if self.has_failed:
            raise RuntimeError("the pump has failed")
        return 7

    def connect(self, channel: int, connection: socket.socket, early: bytes, reply: bytes) -> None:
        """Drop it."""
        connection.close()

    def dial(
        self, channel: int, addresses: Sequence[str], port: int, *, seconds: float, spent: float
    ) -> None:
        """Do nothing."""

    def refuse(self, channel: int, reason: str, message: str) -> None:
        """Do nothing."""

    def recall(self) -> None:
        """Do nothing."""

    def look(self, carrier: int) -> tuple[int, int] | None:
        """Fail."""
        raise RuntimeError("the pump has failed")

    def ping(self) -> None:
        """Do nothing."""

    def close(self, reason: str, message: str) -> None:
        """Do nothing."""


@dataclass
class FailingPump:
    """Makes such a tunnel."""

    made: FailingTunnel = field(default_factory=FailingTunnel)
    most_channels: int = 0

    def tunnel(self, *, is_client: bool, user: PumpedDriver, most_channels: int) -> FailingTunnel:
        """Return it."""
        self.most_channels = most_channels
        return self.made


@dataclass
class Told:
    """Keeps what it is told."""

    said: list[tuple[str, ...]] = field(default_factory=list)

    def wanted(self, channel: int, target: str) -> None:
        """Keep it."""
        self.said.append(("wanted", target))

    def accepted(self, channel: int) -> None:
        """Keep it."""
        self.said.append(("accepted",))

    def dialled(self, channel: int, target: str, error: int, seconds: float) -> None:
        """Keep it."""
        self.said.append(("dialled", target))

    def given_back(
        self, channel: int, connection: socket.socket, early: bytes, reason: str, message: str
    ) -> None:
        """Keep it."""
        connection.close()
        self.said.append(("given_back", reason))

    def ended(self, channel: int, reason: str, message: str) -> None:
        """Keep it."""
        self.said.append(("ended", str(channel), reason))

    def over(self, reason: str, message: str) -> None:
        """Keep it."""
        self.said.append(("over", reason))


class Carrier:
    """A carrier that stays in Python, and can always send."""

    can_send = True
    takes_last = False
    most_bytes = 4096

    def __init__(self) -> None:
        self.ends: list[str] = []

    def send(self, batch: Batch) -> None:
        """Nothing is ever sent."""
        raise AssertionError

    def close(self) -> None:
        """Keep it."""
        self.ends.append("close")

    def abort(self) -> None:
        """Keep it."""
        self.ends.append("abort")


async def test_a_pump_that_fails_ends_channels_carriers_and_the_tunnel() -> None:
    pump, user, carrier = FailingPump(), Told(), Carrier()
    driver = PumpedDriver(pump=pump, side=Side.CLIENT, user=user, most_channels=3)
    driver.attach(1, carrier)
    channel = driver.open("any")
    pump.made.has_failed = True
    with pytest.raises(TunnelFull):
        driver.open("another")
    assert driver.hello_batch(2, 4096) == b""
    driver.failed("A fault.")
    assert user.said == [("ended", str(channel), "client_failed"), ("over", "client_failed")]
    assert carrier.ends == ["close"]
    assert driver.is_over
    assert pump.most_channels == 3


async def test_a_gateway_whose_pump_fails_tells_its_side_of_it() -> None:
    pump, user = FailingPump(), Told()
    driver = PumpedDriver(pump=pump, side=Side.GATEWAY, user=user)
    driver.wanted(1, "port:8080")
    driver.failed("A fault.")
    assert user.said[1:] == [("ended", "1", "gateway_failed"), ("over", "gateway_failed")]


async def test_what_the_pump_dials_has_ended_when_it_fails() -> None:
    pump, user = FailingPump(), Told()
    driver = PumpedDriver(pump=pump, side=Side.GATEWAY, user=user)
    for channel in (1, 2):
        driver.wanted(channel, "tcp:127.0.0.1:80")
        driver.dial(channel, ["127.0.0.1"], 80, seconds=1)
    driver.ended(1, "", "")
    driver.failed("A fault.")
    assert user.said[2:] == [
        ("ended", "1", ""),
        ("ended", "2", "gateway_failed"),
        ("over", "gateway_failed"),
    ]


async def test_a_tunnel_that_had_ended_before_is_not_told_again() -> None:
    pump, user = FailingPump(), Told()
    driver = PumpedDriver(pump=pump, side=Side.GATEWAY, user=user)
    driver.over("drained", "The gateway stops.")
    driver.failed("A fault.")
    assert user.said == [("over", "drained")]
