"""A client's WebSocket (RFC 6455) for the messages of a carrier; wsproto says what they are."""

from __future__ import annotations

import asyncio
import ssl
from typing import Final, cast
from urllib.parse import urlsplit

from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Ping,
    RejectConnection,
    Request,
    TextMessage,
)
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from fairlead_tunnel.frame_cutter import FrameCutter
from fairlead_tunnel.given_carriers import GivenSocket, take_socket
from fairlead_tunnel.message_stream import MOST_MESSAGE_BYTES, MessageStream
from fairlead_tunnel.record_stream import LINGER_SECONDS
from fairlead_tunnel.silence import unarrived

SOCKET_PATH: Final = "/tunnel/v1/ws"
_MOST_UNSENT: Final = 512 * 1024


class SocketRefused(ConnectionError):
    """Whoever answers speaks no WebSocket there; `status` is the HTTP status, 0 for none."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class WebSocketPipe(asyncio.Protocol):
    """One connection to a gateway, or to what forwards to it; `ready` is done once it is open."""

    max_size = MOST_MESSAGE_BYTES

    def __init__(self, *, host: str, target: str) -> None:
        self._host = host
        self._target = target
        self._stream: MessageStream | None = None
        self._protocol = WSConnection(ConnectionType.CLIENT)
        self._transport: asyncio.Transport | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self._received = 0
        self._is_full = False
        self._is_closing = False
        self._linger: asyncio.TimerHandle | None = None
        self._is_open = False
        self._cutter: FrameCutter | None = FrameCutter()
        self._behind = b""
        self._fault: Exception | None = None
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def can_write(self) -> bool:
        """Say whether a message may be written now."""
        return not self._is_full and not self._is_closing and self._transport is not None

    def lead_to(self, stream: MessageStream) -> None:
        """Give it everything that comes."""
        self._stream = stream

    def look(self) -> tuple[int, int]:
        """Return how many bytes have come, and how many have not arrived as far as is known."""
        return self._received, unarrived(self._transport)

    def write(self, message: bytes) -> None:
        """Write a message."""
        if not self._is_closing:
            self._say(BytesMessage(data=message))

    def close(self) -> None:
        """Say that no more follows, and close once the gateway has, or 2 s later: a connection that
        is closed under what its peer still sends is reset, and what was written may be lost.
        """
        if self._transport is not None and not self._is_closing:
            self._is_closing = True
            self._say(CloseConnection(code=1000))
            self._linger = asyncio.get_running_loop().call_later(LINGER_SECONDS, self.abort)

    def abort(self) -> None:
        """Drop the connection."""
        if self._transport is not None:
            self._transport.abort()

    def give(self) -> GivenSocket | None:
        """Give the connection away, from a message's `received`; see `MessagePipe.give`."""
        if self._transport is None or self._cutter is None:
            return None
        connection = take_socket(self._transport)
        if connection is None:
            return None
        self._transport = self._stream = None
        return GivenSocket(connection, self._behind)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for a WebSocket; asyncio calls this."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_MOST_UNSENT)
        self._say(Request(host=self._host, target=self._target))

    def data_received(self, received: bytes) -> None:
        """Take what was read; asyncio calls this."""
        self._received += len(received)
        try:
            while received and self._transport is not None and not self._transport.is_closing():
                end = self._end_of_piece(received)
                self._protocol.receive_data(received[:end])
                received = self._behind = received[end:]
                for event in self._protocol.events():
                    self._take(event)
        except (RemoteProtocolError, SocketRefused) as error:
            self._fault = error
            self.abort()
        except LocalProtocolError:
            self.abort()  # something follows the end

    def pause_writing(self) -> None:
        """Send no more for now; asyncio calls this."""
        self._is_full = True

    def resume_writing(self) -> None:
        """Go on; asyncio calls this."""
        self._is_full = False
        if self._stream is not None:
            self._stream.has_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell that it has ended; asyncio calls this."""
        self._transport = None
        if self._linger is not None:
            self._linger.cancel()
        error = self._fault or exc
        if not self.ready.done():
            self.ready.set_exception(error or ConnectionError("the gateway ended the connection"))
            self.ready.exception()  # whoever waits is told; nobody has to
        if self._stream is not None:
            self._stream.lost(error)

    def _end_of_piece(self, received: bytes) -> int:
        """Return how much is read at a time: a line of the answer to the request, and then a frame,
        up to the first message, behind which `give` may be called.
        """
        if self._cutter is None:
            return len(received)
        if self._is_open:
            return self._cutter.end(received)
        return received.find(b"\n") + 1 or len(received)

    def _say(self, event: Event) -> None:
        if self._transport is None:
            return
        try:
            self._transport.write(self._protocol.send(event))
        except LocalProtocolError as error:  # the other side has said its end
            self._fault = self._fault or error
            self.abort()

    def _take(self, event: Event) -> None:
        match event:
            case BytesMessage():
                self._on_part(event)
            case AcceptConnection():
                self._is_open = True
                if not self.ready.done():
                    self.ready.set_result(None)
            case Ping():
                self._say(event.response())
            case CloseConnection():
                self.close()
                if self._transport is not None:
                    self._transport.close()
            case RejectConnection(status_code=status):
                raise SocketRefused(status, f"the upgrade was answered with HTTP {status}")
            case TextMessage():
                raise SocketRefused(0, "a carrier has no text")

    def _on_part(self, event: BytesMessage) -> None:
        self._parts.append(bytes(event.data))
        self._size += len(event.data)
        if self._size > MOST_MESSAGE_BYTES:
            raise SocketRefused(0, "a message is longer than any of a carrier")
        if event.message_finished and self._stream is not None:
            message = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
            self._parts = []
            self._size = 0
            self._stream.received(message)
            self._cutter = None


async def connect_websocket(url: str) -> WebSocketPipe:
    """Open a WebSocket at a gateway's base address, `http://` or `https://`.

    OSError: nobody is there; SocketRefused: nobody who speaks WebSocket.
    """
    parts = urlsplit(url)
    is_tls = parts.scheme == "https"
    pipe = WebSocketPipe(
        host=parts.netloc.rpartition("@")[2], target=parts.path.rstrip("/") + SOCKET_PATH
    )
    await asyncio.get_running_loop().create_connection(
        lambda: pipe,
        parts.hostname or "",
        parts.port or (443 if is_tls else 80),
        ssl=ssl.create_default_context() if is_tls else None,
    )
    try:
        await pipe.ready
    except BaseException:
        pipe.abort()
        raise
    return pipe
