"""What goes through local connections, counted, and kept for as long as it may be needed again."""

from __future__ import annotations

import asyncio
from typing import Final

from fairlead_tunnel.frames import Content
from fairlead_tunnel.tunnel_driver import TunnelDriver

MOST_KEPT: Final = 64 * 1024
"""So many bytes of a connection are kept until its target is there."""


class Traffic:
    """What goes through: connections that are there, and bytes in each direction."""

    def __init__(self) -> None:
        self.connections = 0
        self.sent = 0
        self.received = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def begin(self) -> None:
        """Note a connection."""
        self.connections += 1
        self._idle.clear()

    def end(self) -> None:
        """Note that one is gone."""
        self.connections -= 1
        if not self.connections:
            self._idle.set()

    async def wait_idle(self) -> None:
        """Wait until there is no connection."""
        await self._idle.wait()


class Meter:
    """Counts the bytes of a port on their way to the tunnel's driver and back, and keeps the first
    ones until the target is there: a gateway that takes nothing new has passed none of them on.
    """

    def __init__(self, *, driver: TunnelDriver, traffic: Traffic) -> None:
        self._driver = driver
        self._traffic = traffic
        self._kept: list[Content] | None = []
        self._kept_bytes = 0
        self.has_finished = False

    def take_kept(self) -> bytes | None:
        """Return what was read so far, once; None where that is more than is kept, or passed on."""
        kept, self._kept = self._kept, None
        return None if kept is None else b"".join(kept)

    def port_read(self, channel: int, content: Content) -> bool:
        """Send what was read; say whether more may be read now."""
        self._traffic.sent += len(content)
        if self._kept is not None:
            self._keep(content)
        return self._driver.port_read(channel, content)

    def port_finished(self, channel: int) -> None:
        """Note that nothing more will be read."""
        self.has_finished = True
        self._driver.port_finished(channel)

    def port_consumed(self, channel: int, count: int) -> None:
        """Note that bytes have left."""
        self._traffic.received += count
        self._driver.port_consumed(channel, count)

    def port_lost(self, channel: int, error: Exception | None) -> None:
        """Note that the connection is gone."""
        self._driver.port_lost(channel, error)

    def _keep(self, content: Content) -> None:
        self._kept_bytes += len(content)
        if self._kept is not None and self._kept_bytes <= MOST_KEPT:
            self._kept.append(content)
        else:
            self._kept = None
