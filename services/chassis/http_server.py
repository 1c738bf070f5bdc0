"""Serves an ASGI application over HTTP/1.1 inside the running loop.

uvicorn has no deadline for the head of a request, and its parser, h11, takes what RFC 9112 lets a
server refuse because intermediaries may read it in another way. Both are done here, for all
services.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncIterator, Callable, Iterator, MutableMapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, cast

import h11
import uvicorn
from h11._receivebuffer import ReceiveBuffer
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.wsproto_impl import WSProtocol

from chassis.listeners import ConnectionLimits, WaitingConnections, listen_on

if TYPE_CHECKING:
    from uvicorn._types import ASGIApplication
    from uvicorn.server import ServerState

KEEP_ALIVE_SECONDS = 75
"""A client that asks now and then keeps its connection."""
_STOP_SECONDS = 2.0
_KNOWN = "fairlead.known"
_BLANK_LINE = re.compile(rb"\n\r?\n")


def note_known(scope: MutableMapping[str, object]) -> None:
    """Note that who sent an ASGI request has shown who it is: its connection waits no more."""
    state = scope.get("state")
    if isinstance(state, dict) and (note := state.get(_KNOWN)) is not None:
        note()


class _StrictBuffer(ReceiveBuffer):
    """What has come and is not parsed; lines end with CRLF and hold no CR (RFC 9112, 2.2)."""

    def maybe_extract_lines(self) -> list[bytearray] | None:
        """Extract a head or trailers."""
        end = _BLANK_LINE.search(self._data)
        head = self._data[: end.end()] if end else self._data
        if head.count(b"\n") != head.count(b"\r\n"):
            raise h11.LocalProtocolError("a line that ends with a bare LF")
        return super().maybe_extract_lines()

    def maybe_extract_next_line(self) -> bytearray | None:
        """Extract the line before a chunk."""
        line = super().maybe_extract_next_line()
        before = self._data if line is None else line[:-2]
        if b"\n" in before or b"\r" in before[:-1]:
            raise h11.LocalProtocolError("a line that ends with a bare LF or CR")
        return line


class _StrictConnection(h11.Connection):
    """A connection on which no message can be framed in two ways (RFC 9112, 6.1)."""

    def __init__(self, *, most_head_bytes: int) -> None:
        super().__init__(h11.SERVER, most_head_bytes)
        self._receive_buffer = _StrictBuffer()

    @property
    def has_part(self) -> bool:
        """Say whether a part of a head has come."""
        return bool(self._receive_buffer)

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Return what came next; raises RemoteProtocolError."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            names = {name for name, _ in event.headers}
            if b"transfer-encoding" in names and (
                b"content-length" in names or event.http_version < b"1.1"
            ):
                raise h11.RemoteProtocolError("Transfer-Encoding beside another framing")
        return event


class HttpProtocol(H11Protocol):
    """One connection: the head of a request comes whole in time, or the connection is closed."""

    conn: _StrictConnection

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, object],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        head_seconds: float,
        waiting: WaitingConnections,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.conn = _StrictConnection(most_head_bytes=config.h11_max_incomplete_event_size or 16384)
        self._head_seconds = head_seconds
        self._waiting = waiting
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin; uvicorn and asyncio call this, and the others here."""
        super().connection_made(transport)
        self.app_state = {**self.app_state, _KNOWN: partial(self._waiting.discard, transport)}
        self._waiting.add(transport)
        self._start_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._stop_deadline()
        self._waiting.discard(self.transport)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what was read, and wait a bounded time for the rest of a head."""
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        """Go on with the next request."""
        super().on_response_complete()
        self._waiting.renew(self.transport)
        self._look()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Let the other protocol have the connection."""
        self._stop_deadline()
        super().handle_websocket_upgrade(event)

    def send_400_response(self, msg: str) -> None:
        """Refuse what cannot be read, and close: where the next request begins is not known."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.abort()
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def _look(self) -> None:
        match self.conn.their_state:
            case h11.IDLE:
                is_awaited = self.conn.has_part
            case h11.SEND_BODY:
                # The rest of a body that was answered already: uvicorn would read it for ever.
                is_awaited = self.conn.our_state in (h11.DONE, h11.MUST_CLOSE)
            case _:
                is_awaited = False
        if not is_awaited:
            self._stop_deadline()
        elif self._deadline is None:
            self._start_deadline()

    def _start_deadline(self) -> None:
        self._deadline = self.loop.call_later(self._head_seconds, self._expire)

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expire(self) -> None:
        self._deadline = None
        self.transport.abort()


class WebSocketProtocol(WSProtocol):
    """A WebSocket of a connection that may still wait."""

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        note_known({"state": self.app_state})
        super().connection_lost(exc)


class LoopServer(uvicorn.Server):
    """A uvicorn that leaves signals to the process that it is part of, and says when it serves."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.serves = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to serve."""
        await super().startup(sockets)
        self.serves.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them alone."""
        yield


def http_server(
    app: Callable[..., object],
    *,
    limits: ConnectionLimits,
    grace_seconds: int,
    websockets: type[asyncio.Protocol] | None = None,
    most_message_bytes: int = 1024 * 1024,
) -> LoopServer:
    """Make a server of `app`, which has so many seconds for what is open when it is to stop."""
    protocol = partial(
        HttpProtocol,
        head_seconds=limits.head_seconds,
        waiting=WaitingConnections(limits=limits),
    )
    return LoopServer(
        uvicorn.Config(
            cast("ASGIApplication", app),
            loop="none",
            lifespan="off",
            http=cast(type[asyncio.Protocol], protocol),
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            ws=websockets or "none",
            ws_max_size=most_message_bytes,
            ws_per_message_deflate=False,
            # A client that is silent for as long is gone, and what it has is free.
            ws_ping_interval=20.0,
            ws_ping_timeout=20.0,
            timeout_graceful_shutdown=grace_seconds,
        )
    )


class HttpServer:
    """A running server."""

    def __init__(self, *, server: LoopServer, port: int) -> None:
        self._server = server
        self.port = port

    def drain(self) -> None:
        """Take no new connections and end when the open requests have."""
        self._server.should_exit = True


@asynccontextmanager
async def serve_http(
    app: Callable[..., object],
    *,
    bind: str,
    limits: ConnectionLimits | None = None,
    grace_seconds: int = 5,
    websockets: type[asyncio.Protocol] = WebSocketProtocol,
    most_message_bytes: int = 1024 * 1024,
) -> AsyncIterator[HttpServer]:
    """Serve on `bind` (`host:port`, port 0 for any) while in the block; raises
    AddressNotBindable.
    """
    server = http_server(
        app,
        limits=limits or ConnectionLimits(),
        grace_seconds=grace_seconds,
        websockets=websockets,
        most_message_bytes=most_message_bytes,
    )
    with listen_on(bind) as listener:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        # One that ends before it serves is not waited for: what it raised is raised here.
        serving.add_done_callback(lambda _: server.serves.set())
        try:
            await server.serves.wait()
            if serving.done():
                await serving
            yield HttpServer(server=server, port=listener.getsockname()[1])
        finally:
            server.should_exit = True
            done, _ = await asyncio.wait((serving,), timeout=grace_seconds + _STOP_SECONDS)
            if done:
                await serving
            else:
                serving.cancel()
                await asyncio.wait((serving,))
