"""A front door that answers what it was told to and remembers what it was asked: broken streams,
refusals and silence included. In memory for unit tests, over a socket for the command line.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

Document = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One answer: a document, or `lines` of a stream that then ends, breaks or is held open."""

    status: int = 200
    document: Document | None = None
    lines: Sequence[Document] = ()
    breaks: bool = False
    held: bool = False

    @property
    def content(self) -> bytes:
        """What is sent before the end."""
        if self.document is not None:
            return json.dumps(self.document).encode()
        return b"".join(json.dumps(line).encode() + b"\n" for line in self.lines)


@dataclass(frozen=True, slots=True)
class Received:
    """A request as it came."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> dict[str, object]:
        """Its body as JSON."""
        found = json.loads(self.body)
        assert isinstance(found, dict)
        return found


def problem(status: int, reason: str, **members: str) -> Answer:
    """Make a refusal."""
    document = {"status": status, "reason": reason, "detail": f"It is {reason}.", "remedy": "Stop."}
    return Answer(status=status, document={**document, **members})


@dataclass(slots=True)
class Script:
    """Answers by method and path, in order; the last one of a path is given again and again."""

    answers: dict[tuple[str, str], list[Answer]] = field(default_factory=dict)
    received: list[Received] = field(default_factory=list)

    def on(self, method: str, path: str, *answers: Answer) -> Script:
        """Say what to answer there."""
        self.answers[method, path] = list(answers)
        return self

    def forget(self) -> None:
        """Start anew."""
        self.answers.clear()
        self.received.clear()

    def take(self, received: Received) -> Answer:
        """Give the answer to a request."""
        self.received.append(received)
        waiting = self.answers.get((received.method, received.path))
        if not waiting:
            return problem(404, "route_not_found")
        return waiting.pop(0) if len(waiting) > 1 else waiting[0]

    def asked(self, method: str, path: str) -> list[Received]:
        """Give the requests that came for a path."""
        return [one for one in self.received if (one.method, one.path) == (method, path)]


class ScriptedTransport(httpx2.AsyncBaseTransport):
    """The script as a transport: no sockets."""

    def __init__(self, script: Script) -> None:
        self._script = script

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        answer = self._script.take(
            Received(
                method=request.method,
                path=request.url.path,
                query=dict(request.url.params),
                headers=dict(request.headers),
                body=await request.aread(),
            )
        )
        return httpx2.Response(answer.status, stream=_Content(answer), request=request)


class _Content(httpx2.AsyncByteStream):
    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._answer.content
        if self._answer.breaks:
            raise httpx2.ReadError("the connection broke")
        if self._answer.held:
            await asyncio.Event().wait()


class _Break(Exception):
    pass


def _application(script: Script) -> Starlette:
    async def answer(request: Request) -> Response:
        body = await request.body()
        found = script.take(
            Received(
                method=request.method,
                path=request.url.path,
                query=dict(request.query_params),
                headers=dict(request.headers),
                body=body,
            )
        )
        if found.document is not None:
            return Response(found.content, found.status, media_type="application/json")
        return StreamingResponse(_stream(found), found.status, media_type="application/x-ndjson")

    methods = ["GET", "POST", "PUT", "DELETE"]
    return Starlette(routes=[Route("/{path:path}", answer, methods=methods)])


async def _stream(answer: Answer) -> AsyncIterator[bytes]:
    yield answer.content
    if answer.breaks:
        raise _Break
    if answer.held:
        await asyncio.sleep(60)


class _Quiet(uvicorn.Server):
    """A server for a thread: signals are for the test's own process."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextmanager
def serve(script: Script) -> Iterator[str]:
    """Serve the script on a free loopback port; gives the URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        _application(script), log_config=None, lifespan="off", timeout_graceful_shutdown=0
    )
    server = _Quiet(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()
