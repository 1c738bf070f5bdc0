"""What is served over HTTP: two probes, /healthz and /readyz, and carriers of tunnels."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from chassis.http_server import serve_http
from chassis.listeners import ConnectionLimits
from fairlead_tunnel.carriers import TunnelDesk
from fairlead_tunnel.message_stream import MOST_MESSAGE_BYTES
from fairlead_tunnel.poll_desk import PollDesk
from fairlead_tunnel.poll_wire import POLL_PATH
from fairlead_tunnel.stream_wire import STREAM_PATH
from fairlead_tunnel.websocket_pipe import SOCKET_PATH
from relay_gateway.socket_protocol import SocketProtocol
from relay_gateway.tunnel_polls import serve_poll
from relay_gateway.tunnel_socket import Receive, Scope, Send, SocketDesk
from relay_gateway.tunnel_stream import StreamDesk

_GRACE_SECONDS = 1


class GatewayApp:
    """The ASGI application; `why_not_ready` gives a reason, or nothing when it is ready."""

    def __init__(self, *, why_not_ready: Callable[[], str], desk: TunnelDesk | None = None) -> None:
        self._why_not_ready = why_not_ready
        self._sockets = SocketDesk(desk=desk) if desk is not None else None
        self._polls = PollDesk(desk=desk) if desk is not None else None
        self._streams = StreamDesk(desk=desk) if desk is not None else None

    def close(self) -> None:
        """End what goes on for as long as its clients want."""
        if self._sockets is not None:
            self._sockets.close()
        if self._streams is not None:
            self._streams.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            if self._sockets is not None and scope["path"] == SOCKET_PATH:
                await self._sockets.serve(scope, receive, send)
            else:
                await send({"type": "websocket.close"})  # answered with 403
            return
        if self._polls is not None and scope["path"] == POLL_PATH:
            await serve_poll(scope, receive, send, desk=self._polls)
            return
        if self._streams is not None and str(scope["path"]).startswith(STREAM_PATH):
            await self._streams.serve(scope, receive, send)
            return
        status, body = self._answer(str(scope["method"]), str(scope["path"]))
        content = json.dumps(body).encode()
        await send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [
                    (b"content-type", b"application/json"),
                    (b"content-length", str(len(content)).encode()),
                    (b"cache-control", b"no-store"),
                ],
            }
        )
        await send(
            {"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else content}
        )

    def _answer(self, method: str, path: str) -> tuple[int, dict[str, str]]:
        if path not in ("/healthz", "/readyz"):
            return 404, {"reason": "route_not_found"}
        if method not in ("GET", "HEAD"):
            return 405, {"reason": "method_not_allowed"}
        if path == "/healthz":
            return 200, {"status": "alive"}
        reason = self._why_not_ready()
        return (
            (503, {"status": "unready", "reason": reason}) if reason else (200, {"status": "ready"})
        )


@asynccontextmanager
async def serve_gateway(
    app: GatewayApp, *, bind: str, limits: ConnectionLimits | None = None
) -> AsyncIterator[int]:
    """Serve `app` on `bind` (`host:port`, port 0 for any) in the block; gives the bound port.

    Raises AddressNotBindable.
    """
    async with serve_http(
        app,
        bind=bind,
        limits=limits,
        grace_seconds=_GRACE_SECONDS,
        websockets=SocketProtocol,
        most_message_bytes=MOST_MESSAGE_BYTES,
    ) as server:
        try:
            yield server.port
        finally:
            app.close()
