"""A channel of a tunnel to what a worker brings: messages of `fairlead.bytes.v1` on its side."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol

from fairlead_tunnel.byte_channel import (
    MAX_MESSAGE_BYTES,
    ByteChannel,
    Over,
    PeerFinished,
    Ready,
    Received,
    Side,
)
from fairlead_tunnel.channel_port import PortUser
from fairlead_tunnel.framed_port import FramedPort
from fairlead_tunnel.frames import Content
from fairlead_tunnel.pump import LINGER_SECONDS

_LOST: Final = "The host of the sandbox was lost before the stream ended."


class ChannelUser(PortUser, Protocol):
    """The tunnel's side of a channel that a worker may accept, or refuse."""

    def accept(self, channel: int) -> None:
        """Say that the target is connected."""
        ...

    def refuse(self, channel: int, reason: str, message: str) -> None:
        """Give the channel up, and drop its connection."""
        ...


class WorkerPort:
    """A `fairlead_tunnel.channel_port.Port`; somebody runs `run`.

    Bytes of the tunnel wait here for the worker's credit and count against the channel's limit;
    what the worker sends is granted again once the tunnel has taken it.
    """

    def __init__(self, *, channel: int, user: ChannelUser, far: FramedPort) -> None:
        self._channel = channel
        self._user = user
        self._far = far
        self._bytes = ByteChannel(side=Side.OPENER)
        self._pending: deque[Content] = deque()
        self._is_finishing = False
        self._is_over = False
        self._may_send = asyncio.Event()
        self._may_read = asyncio.Event()
        self._limit: asyncio.TimerHandle | None = None

    def write(self, content: Content) -> None:
        """Send bytes as the worker's credit allows; they are consumed as they leave."""
        self._pending.append(content)
        self._may_send.set()

    def go_on(self) -> None:
        """Read again."""
        self._may_read.set()

    def finish(self) -> None:
        """Send the end, after what was written."""
        self._is_finishing = True
        self._may_send.set()

    def close(self) -> None:
        """Nothing: when both ends have been sent the stream is complete, and closes by itself."""

    def abort(self) -> None:
        """Reset the stream, unless it is over."""
        if self._is_over:
            return
        self._bytes.reset("connection_reset", "The client gave the channel up.")
        self._pending.clear()
        self._may_read.set()  # what the worker still sends is read and dropped
        self._flush()

    async def run(self) -> None:
        """Pass bytes both ways until the connection of the worker has ended."""
        sending = asyncio.ensure_future(self._send_all())
        try:
            await self._take_all()
        except asyncio.CancelledError:
            self.abort()
            raise
        finally:
            self._is_over = True
            if self._limit is not None:
                self._limit.cancel()
            sending.cancel()
            await asyncio.wait((sending,))
            self._far.abort()
        if self._bytes.is_complete:
            self._user.port_lost(self._channel, None)
        else:
            self._user.refuse(self._channel, "host_lost", _LOST)

    async def _take_all(self) -> None:
        async for message in self._far.messages():
            match self._bytes.receive(message):
                case Ready():
                    self._user.accept(self._channel)
                case Received(content):
                    if not self._user.port_read(self._channel, content):
                        self._may_read.clear()
                        await self._may_read.wait()
                    self._bytes.consumed(len(content))
                case PeerFinished():
                    self._user.port_finished(self._channel)
                case Over(reason, message):
                    self._user.refuse(self._channel, reason, message)
            self._may_send.set()  # there may be credit
            self._flush()

    async def _send_all(self) -> None:
        while self._pending or not self._is_finishing:
            await self._far.drain()
            room = min(self._bytes.sendable, MAX_MESSAGE_BYTES)
            if not room or not self._pending:
                self._may_send.clear()
                await self._may_send.wait()
                continue
            content = self._take_pending(room)
            self._bytes.send(content)
            self._flush()
            self._user.port_consumed(self._channel, len(content))
        self._bytes.finish()
        self._flush()

    def _take_pending(self, most: int) -> bytes:
        content = self._pending.popleft()
        if len(content) > most:
            self._pending.appendleft(memoryview(content)[most:])
        return bytes(content[:most])

    def _flush(self) -> None:
        for message in self._bytes.take_outgoing():
            self._far.send(message)
        if (self._bytes.is_complete or self._bytes.over) and self._limit is None:
            self._far.close()
            loop = asyncio.get_running_loop()
            self._limit = loop.call_later(LINGER_SECONDS, self._give_up)

    def _give_up(self) -> None:
        """Drop a connection that the worker does not close after its stream is over."""
        self._may_read.set()
        self._far.abort()
