"""A message port on a data channel of the native core, which is not imported here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from fairlead_tunnel.byte_channel import Message

HIGH_WATER: Final = 512 * 1024
"""Most bytes that one channel queues: its queue is its own, so that it delays no other channel, and
large enough to outlast a turn of the loop at full speed."""


class NativeChannel(Protocol):
    """What is used of `fairlead_native.Channel`."""

    @property
    def is_open(self) -> bool: ...

    @property
    def is_closed(self) -> bool: ...

    @property
    def queued(self) -> int: ...

    def attach(
        self,
        *,
        on_message: Callable[[Message], None],
        on_closed: Callable[[], None],
        on_room: Callable[[], None],
    ) -> None: ...

    def send(self, message: Message, /) -> None: ...

    def close(self) -> None: ...


class NativePort:
    """A data channel as a `fairlead_tunnel.pump.MessagePort`."""

    def __init__(self, *, channel: NativeChannel) -> None:
        self._channel = channel
        self._room = asyncio.Event()

    def attach(
        self, *, on_message: Callable[[Message], None], on_closed: Callable[[], None]
    ) -> None:
        """Deliver messages and the close; wakes whoever waits in `drain`."""
        self._channel.attach(on_message=on_message, on_closed=on_closed, on_room=self._room.set)

    def send(self, message: Message) -> None:
        """Queue a message; dropped unless the channel is open."""
        if self._channel.is_open:
            self._channel.send(message)

    @property
    def queued(self) -> int:
        """How many bytes wait to be sent."""
        return self._channel.queued

    @property
    def has_room(self) -> bool:
        """Say whether `drain` would not wait."""
        return not self._is_busy()

    async def drain(self) -> None:
        """Wait until the channel is open with less than HIGH_WATER queued, or is closed."""
        while self._is_busy():
            self._room.clear()
            await self._room.wait()

    def close(self) -> None:
        """Close the channel once what is queued has been sent."""
        self._channel.close()

    def _is_busy(self) -> bool:
        if self._channel.is_closed:
            return False
        return not self._channel.is_open or self._channel.queued > HIGH_WATER
