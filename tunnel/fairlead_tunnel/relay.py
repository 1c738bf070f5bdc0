"""Passes the messages of one channel between the opener and the acceptor, unread but for its end.

Credit is between those two, so that each bounds what the other has under way, here too. Who sends
in spite of it is reset once 8 MiB wait for the other side.
"""

from __future__ import annotations

import asyncio
from typing import Final

from fairlead_tunnel.byte_channel import MAX_MESSAGE_BYTES, Message, reset_message
from fairlead_tunnel.framed_port import FramedPort
from fairlead_tunnel.pump import LINGER_SECONDS, MessagePort

MOST_QUEUED: Final = 8 * 1024 * 1024
_OVERHEAD: Final = 64
"""Bytes that a kept message takes besides its own, roughly."""


class Relay:
    """One channel; it takes the near side's messages from its construction on, so that none is
    lost before the far side is there.
    """

    def __init__(self, *, near: MessagePort) -> None:
        self._near = near
        self._far: FramedPort | None = None
        self._early: list[Message] = []
        self._early_bytes = 0
        self._near_finished = False
        self._far_finished = False
        self._ended = asyncio.Event()
        near.attach(on_message=self._take_near, on_closed=self._end)

    async def wait_ended(self) -> None:
        """Wait until the channel is over, whoever ended it."""
        await self._ended.wait()

    def refuse(self, reason: str, message: str) -> None:
        """Reset the channel on both sides; nothing happens once it is over."""
        if self._ended.is_set():
            return
        reset = reset_message(reason, message)
        self._near.send(reset)
        if self._far is not None:
            self._far.send(reset)
        self._end()

    async def carry(self, far: FramedPort) -> None:
        """Pass messages on until the channel is over; closes both sides.

        A far side that is lost before the end is a reset with reason `host_lost`. Cancelling resets
        the channel with reason `session_closed`.
        """
        if self._ended.is_set():
            far.abort()
            return
        self._far = far
        for message in self._early:
            far.send(message)
        self._early.clear()
        reading = asyncio.ensure_future(self._read(far))
        try:
            await self._ended.wait()
            async with asyncio.timeout(LINGER_SECONDS):
                await reading
                await far.wait_closed()
        except TimeoutError:
            return
        except asyncio.CancelledError:
            self.refuse("session_closed", "The session was closed.")
            raise
        finally:
            far.abort()
            reading.cancel()
            await asyncio.wait((reading,))

    async def _read(self, far: FramedPort) -> None:
        """Pass on what the far side says, as fast as the near side takes it."""
        async for message in far.messages():
            if self._ended.is_set():
                continue
            self._near.send(message)
            if message == "eof":
                self._far_finished = True
            self._note(message)
            await self._near.drain()
        self.refuse("host_lost", "The host of the sandbox was lost before the stream ended.")

    def _take_near(self, message: Message) -> None:
        if self._ended.is_set():
            return
        size = len(message.encode() if isinstance(message, str) else message)
        if self._far is None:
            self._early.append(message)
            self._early_bytes += size + _OVERHEAD
        elif size <= MAX_MESSAGE_BYTES:
            self._far.send(message)
        queued = self._far.queued if self._far else self._early_bytes
        if size > MAX_MESSAGE_BYTES or queued > MOST_QUEUED:
            self.refuse("protocol_error", "More was sent than may be.")
            return
        if message == "eof":
            self._near_finished = True
        self._note(message)

    def _note(self, message: Message) -> None:
        """End with a reset, or when both sides have finished."""
        is_reset = isinstance(message, str) and message.startswith("reset ")
        if is_reset or (self._near_finished and self._far_finished):
            self._end()

    def _end(self) -> None:
        self._ended.set()
        self._near.close()
        if self._far is not None:
            self._far.close()
