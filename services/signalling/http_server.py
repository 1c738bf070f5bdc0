"""Serves an ASGI application over HTTP/1.1 inside the running loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.types import ASGIApp

from chassis.errors import FailedPrecondition

_GRACE_SECONDS = 5
_WEBSOCKET_MESSAGE_BYTES = 1024 * 1024


class ListenFailed(FailedPrecondition):
    """The address to serve on is taken, not allowed or not an address."""

    def __init__(self, bind: str, cause: str) -> None:
        super().__init__(
            f"Cannot serve on {bind}: {cause}.",
            reason="address_not_bindable",
            remedy="Stop what uses the address, or set another one.",
            fields={"address": bind},
        )


class _Server(uvicorn.Server):
    """A uvicorn that leaves signals to the process that it is part of, and says when it serves."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.serves = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.serves.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """A running server."""

    def __init__(self, *, server: uvicorn.Server, port: int) -> None:
        self._server = server
        self.port = port

    def drain(self) -> None:
        """Take no new connections and end when the open requests have."""
        self._server.should_exit = True


@asynccontextmanager
async def serve_http(app: ASGIApp, *, bind: str) -> AsyncIterator[HttpServer]:
    """Serve on `bind` (`host:port`, port 0 for any) while in the block; raises
    ListenFailed.
    """
    server = _Server(
        uvicorn.Config(
            app,
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_keep_alive=75,  # a client that launches now and then keeps its connection
            ws="wsproto",
            ws_max_size=_WEBSOCKET_MESSAGE_BYTES,
            ws_per_message_deflate=False,
            # A client that is silent for as long is gone, and what it has is free.
            ws_ping_interval=20.0,
            ws_ping_timeout=20.0,
            timeout_graceful_shutdown=_GRACE_SECONDS,
        )
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
            await serving


def listen_on(bind: str) -> socket.socket:
    """Listen on `host:port`; raises ListenFailed."""
    host, _, port = bind.rpartition(":")
    if not (host and port.isascii() and port.isdecimal() and int(port) < 65536):
        raise ListenFailed(bind, "it is not host:port")
    host = host.removeprefix("[").removesuffix("]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's algorithm off only where the protocol is named; left on, every answer on
    # a kept connection waits 40 ms for the client's delayed acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, int(port)))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise ListenFailed(bind, error.strerror or "it is not an address") from error
    return listener
