"""What goes through local connections, counted, and kept for as long as it may be needed again."""

from __future__ import annotations

import asyncio
from typing import Final

from fairlead_tunnel.frames import Content
from fairlead_tunnel.pumped_driver import PumpedDriver
from fairlead_tunnel.tunnel_driver import TunnelDriver

_LOOK_SECONDS: Final = 0.01


class Traffic:
    """What goes through: connections that are there, and bytes in each direction.

    What the event loop moves is noted here; a pump counts what it moves itself.
    """

    def __init__(self) -> None:
        self._connections = 0
        self._sent = 0
        self._received = 0
        self._pumped: dict[PumpedDriver, None] = {}

    @property
    def connections(self) -> int:
        """How many connections there are."""
        return self._connections + sum(each.channels for each in self._pumped)

    @property
    def sent(self) -> int:
        """How many bytes were read from connections."""
        return self._sent + sum(each.bytes_read for each in self._pumped)

    @property
    def received(self) -> int:
        """How many bytes were written to connections."""
        return self._received + sum(each.bytes_written for each in self._pumped)

    def begin(self) -> None:
        """Note a connection of the event loop."""
        self._connections += 1

    def end(self) -> None:
        """Note that one is gone, or that a pump has it."""
        self._connections -= 1

    def note(self, *, sent: int = 0, received: int = 0) -> None:
        """Note bytes that the event loop has moved."""
        self._sent += sent
        self._received += received

    def include(self, pumped: PumpedDriver) -> None:
        """Count what a tunnel moves on a pump, too; again changes nothing."""
        for over in [each for each in self._pumped if each.is_over and not each.channels]:
            self.note(sent=over.bytes_read, received=over.bytes_written)
            del self._pumped[over]
        self._pumped[pumped] = None

    async def wait_idle(self) -> None:
        """Wait until there is no connection."""
        while self.connections:  # noqa: ASYNC110 - a pump tells nobody
            await asyncio.sleep(_LOOK_SECONDS)


class Meter:
    """Counts the bytes of a port on their way to the tunnel's driver and back, and keeps the first
    ones until the target is there: a gateway that takes nothing new has passed none of them on.

    The tunnel takes at most 16 MiB of a channel before that, and 128 MiB of all.
    """

    def __init__(self, *, driver: TunnelDriver, traffic: Traffic) -> None:
        self._driver = driver
        self._traffic = traffic
        self._kept: list[Content] | None = []
        self.has_finished = False

    def take_kept(self) -> bytes | None:
        """Return what was read so far, once; None afterwards."""
        kept, self._kept = self._kept, None
        return None if kept is None else b"".join(kept)

    def port_read(self, channel: int, content: Content) -> bool:
        """Send what was read; say whether more may be read now."""
        self._traffic.note(sent=len(content))
        if self._kept is not None:
            self._kept.append(content)
        return self._driver.port_read(channel, content)

    def port_finished(self, channel: int) -> None:
        """Note that nothing more will be read."""
        self.has_finished = True
        self._driver.port_finished(channel)

    def port_consumed(self, channel: int, count: int) -> None:
        """Note that bytes have left."""
        self._traffic.note(received=count)
        self._driver.port_consumed(channel, count)

    def port_lost(self, channel: int, error: Exception | None) -> None:
        """Note that the connection is gone."""
        self._driver.port_lost(channel, error)
