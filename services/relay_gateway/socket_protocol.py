"""uvicorn's WebSockets, of which the connection can be given away once it is open."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, MutableMapping
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from wsproto.connection import ConnectionState
from wsproto.events import BytesMessage, Request, TextMessage

from chassis.http_server import WebSocketProtocol
from fairlead_tunnel.frame_cutter import FrameCutter
from fairlead_tunnel.given_carriers import GivenSocket, take_socket

if TYPE_CHECKING:
    from uvicorn._types import WebSocketEvent

Give: TypeAlias = Callable[[Iterable[bytes]], GivenSocket | None]
"""Gives a connection away behind its first message, with what is to be sent over it first; None:
it stays, and that is still to be sent."""

_EXTENSION: Final = "fairlead.give"


def give_of(scope: MutableMapping[str, object]) -> Give | None:
    """Return what gives an ASGI connection away; None: the server has no such thing."""
    extensions = scope.get("extensions")
    if not isinstance(extensions, dict) or _EXTENSION not in extensions:
        return None
    return cast(Give, extensions[_EXTENSION][_EXTENSION])


class SocketProtocol(WebSocketProtocol):
    """One connection. What comes behind its first message waits until the next one is asked for, so
    that whoever has the connection then gets all of it.
    """

    _cutter: FrameCutter | None = None
    _behind = b""
    _has_asked = False
    _has_come = False
    _is_met = False
    _is_given = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin; uvicorn calls this, and the others here."""
        super().connection_made(transport)
        self._cutter = FrameCutter()

    def handle_connect(self, event: Request) -> None:
        """Let the application give the connection away."""
        super().handle_connect(event)
        self.scope["extensions"] = {
            **(self.scope.get("extensions") or {}),
            _EXTENSION: {_EXTENSION: self._give},
        }

    def data_received(self, received: bytes) -> None:
        """Take what was read, frame by frame up to the end of the first message."""
        if self.conn.state is ConnectionState.CONNECTING:
            if self._has_asked:
                self._cutter = None  # a frame before the answer: nobody knows where it ends
            self._has_asked = True
        elif self._cutter is not None:
            while received and not self._has_come and not self.transport.is_closing():
                end = self._cutter.end(received)
                super().data_received(received[:end])
                received = received[end:]
            self._behind += received
            return
        super().data_received(received)

    def handle_message(self, event: TextMessage | BytesMessage) -> None:
        """Note the first message."""
        super().handle_message(event)
        self._has_come = self._has_come or event.message_finished

    async def receive(self) -> WebSocketEvent:
        """Return the next event; what was behind the first message is read for the second."""
        if self._is_met and self._cutter is not None:
            self._cutter = None
            behind, self._behind = self._behind, b""
            if behind and not self.disconnected:
                super().data_received(behind)
        message = await super().receive()
        self._is_met = self._is_met or message["type"] == "websocket.receive"
        return message

    def shutdown(self) -> None:
        """End it, unless somebody else has the connection."""
        if not self._is_given:
            super().shutdown()

    def _give(self, messages: Iterable[bytes]) -> GivenSocket | None:
        is_open = self.conn.state is ConnectionState.OPEN and not self.close_sent
        if not is_open or self._cutter is None or not self.queue.empty():
            return None
        connection = take_socket(self.transport)
        if connection is None:
            return None
        self._is_given = True
        unsent = b"".join(self.conn.send(BytesMessage(each)) for each in messages)
        return GivenSocket(connection, self._behind, unsent)
