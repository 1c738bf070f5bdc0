"""A front door that does sessions and nothing else, in front of gateways that a test scripts.

Each fault that a diagnosis is for is a field.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from fairlead_sdk.session_api import SessionApi

if TYPE_CHECKING:
    from collections.abc import Iterator

KEY = "k"
PAGE = "<html><body>Please log in.</body></html>"


@dataclass(kw_only=True)
class SessionDoor:
    """What it answers; `api` is what leads to a gateway.

    `problem` refuses to open sessions from number `problem_after` on, with a status and a reason;
    `rewrite` changes the gateways' answers; `socket_end` is how a WebSocket ends without a word.
    """

    api: SessionApi | None = None
    is_other: bool = False
    socket_end: str = ""
    problem: tuple[int, str] | None = None
    problem_after: int = 0
    rewrite: Callable[[str], str] = str
    ice_servers: list[dict[str, object]] = field(default_factory=list)
    opened: list[dict[str, object]] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)

    def application(self) -> Starlette:
        """Return the routes."""
        numbers = itertools.count(1)

        async def healthz(request: Request) -> Response:
            return HTMLResponse(PAGE) if self.is_other else JSONResponse({"status": "ok"})

        async def gateways(request: Request) -> Response:
            if request.headers.get("authorization") != f"Bearer {KEY}":
                return _problem(401, "unauthenticated")
            return JSONResponse({"gateways": [{"gateway_id": "gtw_a"}] if self.api else []})

        async def open_session(request: Request) -> Response:
            self.opened.append(await request.json())
            if self.problem is not None and len(self.opened) > self.problem_after:
                return _problem(*self.problem)
            if self.api is None:
                return _problem(503, "gateway_unavailable")
            answer = {"session_id": f"ses_{next(numbers)}", "ice_servers": self.ice_servers}
            return JSONResponse(answer, 201)

        async def offer(request: Request) -> Response:
            assert self.api is not None
            sdp = (await request.json())["offer"]
            answer = await self.api.send_offer(request.path_params["session_id"], sdp)
            return JSONResponse({"answer": self.rewrite(answer.answer)})

        async def close(request: Request) -> Response:
            assert self.api is not None
            self.closed.append(request.path_params["session_id"])
            await self.api.close_session(self.closed[-1])
            return JSONResponse({})

        async def terminal(link: WebSocket) -> None:
            if self.socket_end != "refused":
                await link.accept()
                await link.receive_json()
                if not self.socket_end:
                    await link.send_json({"type": "problem", "problem": {"status": 404}})
            await link.close()

        return Starlette(
            routes=[
                Route("/healthz", healthz),
                Route("/v1/gateways", gateways),
                Route("/v1/sessions", open_session, methods=["POST"]),
                Route("/v1/sessions/{session_id}/offer", offer, methods=["POST"]),
                Route("/v1/sessions/{session_id}", close, methods=["DELETE"]),
                WebSocketRoute("/v1/executions/{execution_id}/terminal", terminal),
            ]
        )


def _problem(status: int, reason: str) -> Response:
    document = {"status": status, "reason": reason, "detail": f"It is {reason}.", "remedy": "Wait."}
    return JSONResponse(document, status, media_type="application/problem+json")


class _Quiet(uvicorn.Server):
    """A server inside a test's own loop: signals are for the test's process."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serve_sessions(door: SessionDoor) -> AsyncIterator[str]:
    """Serve it on a free loopback port; gives the URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = _Quiet(uvicorn.Config(door.application(), log_config=None, lifespan="off"))
    serving = asyncio.create_task(server.serve([listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving
        listener.close()
