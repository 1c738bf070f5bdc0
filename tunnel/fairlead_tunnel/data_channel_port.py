"""A message port on a data channel of aiortc, which this package itself does not import."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from fairlead_tunnel.byte_channel import Message

HIGH_WATER: Final = 64 * 1024
"""Most bytes that one channel queues: all channels of an association share one queue, so that more
only adds delay."""


class DataChannel(Protocol):
    """What is used of `aiortc.RTCDataChannel`; `on` takes an event's name and its listener."""

    @property
    def readyState(self) -> str: ...

    @property
    def bufferedAmount(self) -> int: ...

    @property
    def bufferedAmountLowThreshold(self) -> int: ...

    @bufferedAmountLowThreshold.setter
    def bufferedAmountLowThreshold(self, value: int) -> None: ...

    def send(self, message: Message, /) -> None: ...

    def close(self) -> None: ...


Listen = Callable[[str, Callable[..., None]], object]


class DataChannelPort:
    """A data channel as a `fairlead_tunnel.pump.MessagePort`."""

    def __init__(self, *, channel: DataChannel, listen: Listen) -> None:
        self._channel = channel
        self._listen = listen
        self._low = asyncio.Event()
        channel.bufferedAmountLowThreshold = HIGH_WATER // 2

    def attach(
        self, *, on_message: Callable[[Message], None], on_closed: Callable[[], None]
    ) -> None:
        """Deliver messages and the close; wakes whoever waits in `drain`."""

        def closed() -> None:
            self._low.set()
            on_closed()

        self._listen("message", on_message)
        self._listen("close", closed)
        self._listen("open", self._low.set)
        self._listen("bufferedamountlow", self._low.set)

    def send(self, message: Message) -> None:
        """Queue a message; dropped unless the channel is open."""
        if self._channel.readyState == "open":
            self._channel.send(message)

    @property
    def queued(self) -> int:
        """How many bytes wait to be sent."""
        return self._channel.bufferedAmount

    @property
    def has_room(self) -> bool:
        """Say whether `drain` would not wait."""
        return not self._is_busy()

    async def drain(self) -> None:
        """Wait until the channel is open with less than HIGH_WATER queued, or is closed."""
        while self._is_busy():
            self._low.clear()
            await self._low.wait()

    def close(self) -> None:
        """Close the channel once what is queued has been sent."""
        self._channel.close()

    def _is_busy(self) -> bool:
        match self._channel.readyState:
            case "connecting":
                return True
            case "open":
                return self._channel.bufferedAmount > HIGH_WATER
            case _:
                return False
