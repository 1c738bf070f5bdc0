"""Carriers of tunnels over WebSockets (RFC 6455): one binary message for each record."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Final, TypeAlias

from fairlead_tunnel.carriers import GatewayAttach, TunnelDesk
from fairlead_tunnel.message_stream import MessageStream
from relay_gateway.message_queue import MessageQueue

Scope: TypeAlias = MutableMapping[str, object]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, object]]]
Send: TypeAlias = Callable[[MutableMapping[str, object]], Awaitable[None]]

_HELLO_SECONDS: Final = 10.0
_GOING_AWAY: Final = 1001


class _SocketCarrier(GatewayAttach):
    """The gateway's use of one WebSocket."""

    stream: MessageStream

    def __init__(self, desk: TunnelDesk) -> None:
        super().__init__(desk)
        self.pipe = MessageQueue(has_room=lambda: self.stream.has_room())
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
    writing = asyncio.ensure_future(_write(carrier.pipe, send))
    try:
        await _read(receive, carrier.stream)
    except TimeoutError:
        carrier.pipe.abort()  # it did not say who it is
        await writing
    finally:
        carrier.stream.lost(None)
        writing.cancel()
        await asyncio.wait((writing,))


async def _write(pipe: MessageQueue, send: Send) -> None:
    async def send_one(message: bytes) -> None:
        await send({"type": "websocket.send", "bytes": message})

    await pipe.run(send_one)
    await send({"type": "websocket.close", "code": 1000})


async def _read(receive: Receive, stream: MessageStream) -> None:
    async with asyncio.timeout(_HELLO_SECONDS):
        message = await receive()
    while message["type"] == "websocket.receive":
        content = message.get("bytes")
        if not isinstance(content, bytes):
            return
        stream.received(content)
        message = await receive()
