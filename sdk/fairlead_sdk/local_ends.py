"""The local ends of channels: what moves the bytes of a connection once it has a channel."""

from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import dataclass
from typing import Protocol

from fairlead_sdk.local_traffic import Meter, Traffic
from fairlead_tunnel.channel_port import ChannelPort, drop, hand_over
from fairlead_tunnel.pumped_driver import PumpedDriver
from fairlead_tunnel.tunnel_client import ClientDriver
from fairlead_tunnel.tunnel_driver import TunnelDriver


@dataclass(slots=True)
class Held:
    """A connection that the event loop reads, and what was read of it so far."""

    transport: asyncio.Transport
    early: bytes = b""
    has_finished: bool = False


class LocalEnd(Protocol):
    """One of them, made with a channel and what is held for it; none of these may raise."""

    def accepted(self) -> None:
        """Let the channel's bytes come: the target is there."""
        ...

    def take_back(self) -> bool:
        """Put what was read into what is held again; False when that is not known any more."""
        ...

    def ended(self) -> None:
        """Note that the channel has ended, and that nobody counts its connection any more."""
        ...


def local_end(
    driver: ClientDriver, channel: int, held: Held, traffic: Traffic, reply: bytes
) -> LocalEnd:
    """Make the end that a tunnel's driver needs.

    The connection is told `reply` when the target is there, before anything else.
    """
    match driver:
        case PumpedDriver():
            return PumpedEnd(driver, channel, held, traffic, reply)
        case TunnelDriver():
            return PortEnd(driver, channel, held, traffic, reply)


class PortEnd:
    """On the event loop, which reads and writes the connection."""

    def __init__(
        self, driver: TunnelDriver, channel: int, held: Held, traffic: Traffic, reply: bytes
    ) -> None:
        self._driver = driver
        self._channel = channel
        self._held = held
        self._traffic = traffic
        self._reply = reply
        self._meter = Meter(driver=driver, traffic=traffic)
        self._port = ChannelPort(channel, self._meter)
        hand_over(held.transport, self._port)
        self._port.connection_made(held.transport)
        if held.early:
            self._port.take(held.early)
            held.early = b""
        if held.has_finished:
            self._port.eof_received()

    def accepted(self) -> None:
        """Answer, and let the channel's bytes follow."""
        if self._reply and not self._held.transport.is_closing():
            self._held.transport.write(self._reply)
        self._meter.take_kept()
        self._driver.connect(self._channel, self._port)

    def take_back(self) -> bool:
        """Say whether all that was read is held again."""
        kept = self._meter.take_kept()
        if kept is None or self._held.transport.is_closing():
            return False
        self._held.early, self._held.has_finished = kept, self._meter.has_finished
        return True

    def ended(self) -> None:
        """Count the connection no more."""
        self._traffic.end()


class PumpedEnd:
    """On a pump's thread, which has the connection's socket and counts it; what it cannot lead it
    gives back to who opened the channel.
    """

    def __init__(
        self, driver: PumpedDriver, channel: int, held: Held, traffic: Traffic, reply: bytes
    ) -> None:
        traffic.include(driver)
        traffic.end()
        plug = held.transport.get_extra_info("socket")
        if plug is None or held.transport.get_write_buffer_size():
            driver.refuse(channel, "connection_reset", "The connection was lost.")
            drop(held.transport)
            return
        copy = socket.socket(fileno=os.dup(plug.fileno()))
        held.transport.abort()
        driver.connect(channel, copy, held.early, reply)

    def accepted(self) -> None:
        """Do nothing: the pump goes on."""

    def take_back(self) -> bool:
        """Say no: the pump gives back what was read, with the connection."""
        return False

    def ended(self) -> None:
        """Do nothing: the pump counts it no more."""
