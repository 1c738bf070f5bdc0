"""A WebRTC data channel for the messages of a carrier.

A channel with this label and protocol, ordered and reliable, is a carrier of a tunnel and nothing
else; the client opens it in a session with the gateway that its ticket names.
"""

from __future__ import annotations

import asyncio
from typing import Final

from fairlead_tunnel.byte_channel import MAX_MESSAGE_BYTES, Message
from fairlead_tunnel.given_carriers import GivenSocket
from fairlead_tunnel.message_stream import MessageStream
from fairlead_tunnel.peer_connection import PeerChannel
from fairlead_tunnel.records import TAG_BYTES

TUNNEL_LABEL: Final = "tunnel"
TUNNEL_PROTOCOL: Final = "fairlead.tunnel.v1"
MOST_BATCH_BYTES: Final = MAX_MESSAGE_BYTES - TAG_BYTES
"""A record is one message, which a WebRTC peer takes that does not say more (RFC 8841, 6.1)."""
_CLOSE_SECONDS: Final = 5.0


class ChannelPipe:
    """One channel; `ended` is done once nothing more comes."""

    def __init__(self, port: PeerChannel) -> None:
        self._port = port
        self._loop = asyncio.get_running_loop()
        self._stream: MessageStream | None = None
        self._is_closing = False
        self._received = 0
        self._draining: asyncio.Task[None] | None = None
        self.ended: asyncio.Future[None] = self._loop.create_future()
        port.attach(on_message=self._take, on_closed=self._end)

    @property
    def can_write(self) -> bool:
        """Say whether a message may be written now."""
        return self._draining is None and not self._is_closing and not self.ended.done()

    def look(self) -> tuple[int, int]:
        """Return how many bytes have come, and how many have not left as far as is known."""
        return self._received, self._port.queued

    async def wait_open(self) -> None:
        """Wait until messages may be written, or never will."""
        await self._port.drain()

    def lead_to(self, stream: MessageStream) -> None:
        """Give it everything that comes."""
        self._stream = stream

    def write(self, message: bytes) -> None:
        """Write a message."""
        if self._is_closing or self.ended.done():
            return
        self._port.send(message)
        if not self._port.has_room and self._draining is None:
            self._draining = self._loop.create_task(self._drain())

    def close(self) -> None:
        """End it after what was written."""
        if not self._is_closing:
            self._is_closing = True
            self._port.close()
            self._loop.call_later(_CLOSE_SECONDS, self._end)

    def abort(self) -> None:
        """End it now."""
        self.close()
        self._loop.call_soon(self._end)

    def give(self) -> GivenSocket | None:
        """Stay here; see `MessagePipe.give`."""
        return None

    async def _drain(self) -> None:
        await self._port.drain()
        self._draining = None
        if self._stream is not None:
            self._stream.has_room()

    def _take(self, message: Message) -> None:
        if isinstance(message, str):
            self.abort()  # a carrier has no text
        elif self._stream is not None:
            self._received += len(message)
            self._stream.received(message)

    def _end(self) -> None:
        if self.ended.done():
            return
        self.ended.set_result(None)
        if self._draining is not None:
            self._draining.cancel()
        self.close()
        if self._stream is not None:
            self._stream.lost(None)
