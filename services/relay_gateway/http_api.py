"""Two probes over HTTP: /healthz says that the process lives, /readyz that signalling has it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from contextlib import asynccontextmanager, contextmanager
from typing import TypeAlias

import uvicorn

from relay_gateway.listener import listen

Scope: TypeAlias = MutableMapping[str, object]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, object]]]
Send: TypeAlias = Callable[[MutableMapping[str, object]], Awaitable[None]]

STOP_SECONDS = 2.0


class ProbeApp:
    """The ASGI application; `why_not_ready` gives a reason, or nothing when it is ready."""

    def __init__(self, *, why_not_ready: Callable[[], str]) -> None:
        self._why_not_ready = why_not_ready

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
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


class _Server(uvicorn.Server):
    """A server that leaves the process's signals to who runs it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serve_http(app: ProbeApp, *, bind: str) -> AsyncIterator[int]:
    """Serve `app` on `bind` (`host:port`, port 0 for any) in the block; gives the bound port.

    Raises AddressNotBindable.
    """
    listener = listen(bind)
    server = _Server(
        uvicorn.Config(
            app,
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=1,
        )
    )
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(server.serve(sockets=[listener]))
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await asyncio.wait((serving,), timeout=STOP_SECONDS)
            serving.cancel()
            listener.close()
