"""Carriers of tunnels over WebSockets (RFC 6455): one binary message for each record."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from typing import Final, TypeAlias

from chassis.http_server import note_known
from fairlead_tunnel.carriers import GatewayAttach, TunnelDesk
from fairlead_tunnel.given_carriers import GivenSocket
from fairlead_tunnel.message_stream import MessageStream
from relay_gateway.message_queue import MessageQueue
from relay_gateway.socket_protocol import Give, give_of

Scope: TypeAlias = MutableMapping[str, object]
Message: TypeAlias = MutableMapping[str, object]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

_HELLO_SECONDS: Final = 10.0
_GOING_AWAY: Final = 1001


class _SocketQueue(MessageQueue):
    """What is to be sent over one WebSocket while that is here."""

    def __init__(self, *, has_room: Callable[[], None], give: Give | None) -> None:
        super().__init__(has_room=has_room)
        self._give = give

    def give(self) -> GivenSocket | None:
        """Give the connection away with what is to be sent; see `MessagePipe.give`."""
        given = self._give(self.unsent) if self._give is not None else None
        if given is not None:
            self.abort()
        return given


class _SocketCarrier(GatewayAttach):
    """The gateway's use of one WebSocket; it is in `given` while the pump has it."""

    stream: MessageStream

    def __init__(
        self,
        desk: TunnelDesk,
        *,
        give: Give | None,
        given: set[_SocketCarrier],
        known: Callable[[], None],
    ) -> None:
        super().__init__(desk)
        self._given = given
        self._known = known
        self.pipe = _SocketQueue(has_room=lambda: self.stream.has_room(), give=give)
        self.stream = MessageStream(self, self.pipe)

    def opened(self) -> None:
        """Use the carrier."""
        self._known()
        super().opened()
        if self.stream.is_given:
            self._given.add(self)

    def lost(self, error: Exception | None) -> None:
        """Let what was under way go over another carrier."""
        self._given.discard(self)
        super().lost(error)


class SocketDesk:
    """The WebSockets of one gateway; without a hello they stay for seconds, and their listener
    bounds how many there are.
    """

    def __init__(self, *, desk: TunnelDesk) -> None:
        self._desk = desk
        self._given: set[_SocketCarrier] = set()

    def close(self) -> None:
        """End those that the server knows nothing of any more."""
        for carrier in [*self._given]:
            carrier.stream.close()

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one; that of a web page, which has an Origin, is refused with 403."""
        await receive()  # websocket.connect
        headers = scope["headers"]
        if isinstance(headers, list) and any(name == b"origin" for name, _ in headers):
            await send({"type": "websocket.close", "code": _GOING_AWAY})
            return
        carrier = _SocketCarrier(
            self._desk,
            give=give_of(scope),
            given=self._given,
            known=partial(note_known, scope),
        )
        writing = asyncio.ensure_future(_write(carrier.pipe, send))
        try:
            message = await self._first(receive, send)
            await _read(message, receive, carrier.stream)
        except TimeoutError:
            carrier.pipe.abort()  # it did not say who it is
            await writing
        finally:
            carrier.stream.lost(None)
            writing.cancel()
            await asyncio.wait((writing,))

    async def _first(self, receive: Receive, send: Send) -> Message:
        async with asyncio.timeout(_HELLO_SECONDS):
            await send({"type": "websocket.accept"})
            return await receive()


async def _write(pipe: MessageQueue, send: Send) -> None:
    async def send_one(message: bytes) -> None:
        await send({"type": "websocket.send", "bytes": message})

    await pipe.run(send_one)
    await send({"type": "websocket.close", "code": 1000})


async def _read(message: Message, receive: Receive, stream: MessageStream) -> None:
    while message["type"] == "websocket.receive":
        content = message.get("bytes")
        if not isinstance(content, bytes):
            return
        stream.received(content)
        if stream.is_given:
            return
        message = await receive()
