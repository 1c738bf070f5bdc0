"""The two ends of a tunnel on the thread of the native pump, where it is built."""

from __future__ import annotations

import importlib.util
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING

from fairlead_tunnel.pumped_driver import PumpedDriver
from fairlead_tunnel.tunnel import MOST_CHANNELS, Side
from tests.contract.tunnel.tunnel_world import ClientEnd, GatewayEnd, World, world
from tests.eventually import SECONDS

if TYPE_CHECKING:
    from fairlead_native import Pump

MakeWorld = Callable[[], AbstractAsyncContextManager[World]]
PYTHON = "python-python"
NATIVE = (
    ("native-native", "native-python", "python-native")
    if importlib.util.find_spec("fairlead_native")
    else ()
)
"""Which end runs on what, the client first."""


class _PumpedEnd:
    """What both ends on a pump keep."""

    def __init__(self, pump: Pump, side: Side, most_channels: int = MOST_CHANNELS) -> None:
        self.accepts: list[int] = []
        self.endings: list[tuple[int, str]] = []
        self.wants: list[str] = []
        self.dials: list[tuple[str, int]] = []
        self.given: list[tuple[int, bytes, str]] = []
        self.connections: list[socket.socket] = []
        self.over_reason = ""
        self.driver = PumpedDriver(pump=pump, side=side, user=self, most_channels=most_channels)

    @property
    def left(self) -> int:
        """How many channels have not ended."""
        return self.driver.channels

    @property
    def written(self) -> int:
        """How many bytes were read for channels."""
        return self.driver.bytes_read

    @property
    def came(self) -> int:
        """How many bytes were written for channels."""
        return self.driver.bytes_written

    def wanted(self, channel: int, target: str) -> None:
        """Dial."""
        self.wants.append(target)
        host, _, port = target.rpartition(":")
        self.driver.dial(channel, (host,), int(port), seconds=SECONDS)

    def dialled(self, channel: int, target: str, error: int, seconds: float) -> None:
        """Keep it, and refuse what was not reached."""
        self.dials.append((target, error))
        if error:
            self.driver.refuse(channel, "dial_refused", "Nothing listens there.")

    def given_back(
        self, channel: int, connection: socket.socket, early: bytes, reason: str, message: str
    ) -> None:
        """Keep it."""
        self.given.append((channel, early, reason))
        self.connections.append(connection)

    def accepted(self, channel: int) -> None:
        """Keep it."""
        self.accepts.append(channel)

    def ended(self, channel: int, reason: str, message: str) -> None:
        """Keep it."""
        self.endings.append((channel, reason))

    def over(self, reason: str, message: str) -> None:
        """Keep it."""
        self.over_reason = reason


class PumpedGatewayEnd(_PumpedEnd):
    """Dials what a client wants on loopback."""

    def __init__(self, pump: Pump) -> None:
        super().__init__(pump, Side.GATEWAY)


class PumpedClientEnd(_PumpedEnd):
    """Leads local connections to targets."""

    def __init__(self, pump: Pump, most_channels: int = MOST_CHANNELS) -> None:
        super().__init__(pump, Side.CLIENT, most_channels)
        self.hold_seconds = 0.001

    async def listen(self, plug: socket.socket, target: str) -> None:
        """Lead the connections of a socket to a target."""
        self.driver.listen(plug, target, hold_seconds=self.hold_seconds)


def world_of(kind: str) -> MakeWorld:
    """Return what makes a world with such ends."""
    client, gateway = kind.split("-")

    @asynccontextmanager
    async def made() -> AsyncIterator[World]:
        from fairlead_native import Pump

        pumps = [Pump(), Pump()]
        try:
            async with world(
                (lambda: PumpedClientEnd(pumps[0])) if client == "native" else ClientEnd,
                (lambda: PumpedGatewayEnd(pumps[1])) if gateway == "native" else GatewayEnd,
            ) as it:
                yield it
        finally:
            for pump in pumps:
                pump.close()

    return world if kind == PYTHON else made
