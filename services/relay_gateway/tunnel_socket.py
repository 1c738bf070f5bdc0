"""Carriers of tunnels over WebSockets (RFC 6455): one binary message for each record."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Final, TypeAlias

from fairlead_tunnel.carriers import GatewayAttach, TunnelDesk
from fairlead_tunnel.message_stream import MessageStream

Scope: TypeAlias = MutableMapping[str, object]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, object]]]
Send: TypeAlias = Callable[[MutableMapping[str, object]], Awaitable[None]]

_MOST_UNSENT: Final = 512 * 1024
_HELLO_SECONDS: Final = 10.0
_GOING_AWAY: Final = 1001


class _Pipe:
    """What is to be written to one WebSocket; at most half a mebibyte and a record."""

    def __init__(self, *, has_room: Callable[[], None]) -> None:
        self._has_room = has_room
        self._unsent: deque[bytes] = deque()
        self._size = 0
        self._news = asyncio.Event()
        self._ends = False

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

    async def run(self, send: Send) -> None:
        """Send what is written, until the end."""
        while True:
            while self._unsent:
                message = self._unsent.popleft()
                await send({"type": "websocket.send", "bytes": message})
                was_full = self._size >= _MOST_UNSENT
                self._size -= len(message)
                if was_full and self._size < _MOST_UNSENT:
                    self._has_room()
            if self._ends:
                await send({"type": "websocket.close", "code": 1000})
                return
            self._news.clear()
            await self._news.wait()


class _SocketCarrier(GatewayAttach):
    """The gateway's use of one WebSocket."""

    stream: MessageStream

    def __init__(self, desk: TunnelDesk) -> None:
        super().__init__(desk)
        self.pipe = _Pipe(has_room=lambda: self.stream.has_room())
        self.stream = MessageStream(self, self.pipe)


async def serve_socket(scope: Scope, receive: Receive, send: Send, *, desk: TunnelDesk) -> None:
    """Serve one WebSocket; that of a web page, which has an Origin, is refused with 403."""
    await receive()  # websocket.connect
    headers = scope["headers"]
    if isinstance(headers, list) and any(name == b"origin" for name, _ in headers):
        await send({"type": "websocket.close", "code": _GOING_AWAY})
        return
    await send({"type": "websocket.accept"})
    carrier = _SocketCarrier(desk)
    writing = asyncio.ensure_future(carrier.pipe.run(send))
    try:
        await _read(receive, carrier.stream)
    except TimeoutError:
        carrier.pipe.abort()  # it did not say who it is
        await writing
    finally:
        carrier.stream.lost(None)
        writing.cancel()
        await asyncio.wait((writing,))


async def _read(receive: Receive, stream: MessageStream) -> None:
    async with asyncio.timeout(_HELLO_SECONDS):
        message = await receive()
    while message["type"] == "websocket.receive":
        content = message.get("bytes")
        if not isinstance(content, bytes):
            return
        stream.received(content)
        message = await receive()
