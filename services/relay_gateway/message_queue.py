"""What is to be sent over one connection of a carrier that has messages."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from fairlead_tunnel.given_carriers import GivenSocket

_MOST_UNSENT: Final = 512 * 1024


class MessageQueue:
    """At most half a mebibyte and a record; `has_room` is told when there is room again."""

    def __init__(self, *, has_room: Callable[[], None]) -> None:
        self._has_room = has_room
        self._unsent: deque[bytes] = deque()
        self._size = 0
        self._news = asyncio.Event()
        self._ends = False

    @property
    def unsent(self) -> Sequence[bytes]:
        """What waits to be sent."""
        return [*self._unsent]

    @property
    def can_write(self) -> bool:
        """Say whether a message may be written now."""
        return self._size < _MOST_UNSENT and not self._ends

    def write(self, message: bytes) -> None:
        """Write a message."""
        if not self._ends:
            self._unsent.append(message)
            self._size += len(message)
            self._news.set()

    def close(self) -> None:
        """End it after what was written."""
        self._ends = True
        self._news.set()

    def abort(self) -> None:
        """End it now."""
        self._unsent.clear()
        self.close()

    def give(self) -> GivenSocket | None:
        """Stay here; see `MessagePipe.give`."""
        return None

    async def run(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        """Send what is written, until the end."""
        while True:
            while self._unsent:
                message = self._unsent.popleft()
                await send(message)
                was_full = self._size >= _MOST_UNSENT
                self._size -= len(message)
                if was_full and self._size < _MOST_UNSENT:
                    self._has_room()
            if self._ends:
                return
            self._news.clear()
            await self._news.wait()
