"""The HTTP listener of all services against clients that say half of something, or say it twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager

import pytest

from chassis.http_server import note_known, serve_http
from chassis.listeners import ConnectionLimits

pytestmark = pytest.mark.asyncio

Scope = MutableMapping[str, object]
Receive = Callable[[], Awaitable[MutableMapping[str, object]]]
Send = Callable[[MutableMapping[str, object]], Awaitable[None]]
CHUNKED = b"Host: a\r\nTransfer-Encoding: chunked\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the body; /refused at once, /known and /silent after noting the client."""
    body = b""
    if scope["path"] == "/known":
        note_known(scope)
    if scope["path"] != "/refused":
        more = True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return
            piece = message["body"]
            assert isinstance(piece, bytes)
            body += piece
            more = bool(message["more_body"])
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def serving(**limits: float) -> AsyncIterator[Callable[[], Awaitable[Streams]]]:
    """Serve with these limits; gives what connects."""
    made: list[asyncio.StreamWriter] = []
    options = ConnectionLimits(trusted=(), **{"head_seconds": 3600.0, **limits})  # type: ignore[arg-type]
    async with (
        asyncio.timeout(120),
        serve_http(application, bind="127.0.0.1:0", limits=options, grace_seconds=0) as server,
    ):

        async def connect() -> Streams:
            streams = await asyncio.open_connection("127.0.0.1", server.port)
            made.append(streams[1])
            return streams

        try:
            yield connect
        finally:
            for writer in made:
                writer.transport.abort()


async def asked(streams: Streams, path: str = "/", body: bytes = b"") -> bytes:
    """Send a whole request and return the status line."""
    reader, writer = streams
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    found = await reader.readuntil(b"\r\n\r\n")
    assert await reader.readexactly(len(body)) == body
    return found.partition(b"\r\n")[0]


async def ended(reader: asyncio.StreamReader) -> bytes:
    """Return what comes until the end of the connection."""
    found = b""
    try:
        while piece := await reader.read(65536):
            found += piece
    except ConnectionResetError:
        pass
    return found


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: a\r\nX-",
        # The second head of a kept connection, and the rest of a body that was refused long ago.
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HT",
        b"POST /refused HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nx",
    ],
)
async def test_half_a_request_does_not_keep_its_connection(said: bytes) -> None:
    async with serving(head_seconds=0.05) as connect:
        reader, writer = await connect()
        writer.write(said)
        await ended(reader)


async def test_the_deadline_is_for_heads_and_not_for_connections() -> None:
    """A body, and the time between two requests, may last longer than a head."""
    async with serving(head_seconds=0.05) as connect:
        kept, slow, silent = await connect(), await connect(), await connect()
        slow[1].write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\na")
        assert await asked(kept) == b"HTTP/1.1 200 OK"
        await ended(silent[0])  # one deadline has passed
        await ended((await connect())[0])  # and another one
        assert await asked(kept) == b"HTTP/1.1 200 OK"
        slow[1].write(b"b")
        assert (await slow[0].readuntil(b"ab")).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize("limit", ["most", "most_each"])
async def test_silent_connections_lock_nobody_out(limit: str) -> None:
    async with serving(**{limit: 4}) as connect:
        known = await connect()
        assert await asked(known, "/known") == b"HTTP/1.1 200 OK"
        silent = [await connect() for _ in range(8)]
        assert await asked(await connect()) == b"HTTP/1.1 200 OK"
        for reader, _ in silent[:5]:
            assert await ended(reader) == b""
        assert await asked(silent[-1]) == b"HTTP/1.1 200 OK"
        assert await asked(known) == b"HTTP/1.1 200 OK"


@pytest.mark.parametrize(
    "request_",
    [
        b"POST / HTTP/1.1\r\nContent-Length: 5\r\n" + CHUNKED + b"\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\n" + CHUNKED + b"Content-Length: 5\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.0\r\n" + CHUNKED + b"\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n" + CHUNKED + b"\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"GET / HTTP/1.1\nHost: a\n\n",
        b"GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: y\rZ: 1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX : y\r\n\r\n",
        b"POST / HTTP/1.1\r\n" + CHUNKED + b"\r\n1\na\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\n" + CHUNKED + b"\r\n1;x=\ra\r\na\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\n" + CHUNKED + b"\r\n1\r\na\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\n" + CHUNKED + b"\r\n0\r\nX: y\n\r\n",
        b"POST / HTTP/1.1\r\n" + CHUNKED + b"\r\n0\r\n\n",
    ],
)
async def test_what_can_be_framed_in_two_ways_is_refused_and_ends_the_connection(
    request_: bytes,
) -> None:
    """RFC 9112, 2.2 and 6.1: what comes behind is not taken for a second request."""
    async with serving() as connect:
        reader, writer = await connect()
        writer.write(request_ + b"GET /known HTTP/1.1\r\nHost: a\r\n\r\n")
        found = await ended(reader)
        assert found.startswith(b"HTTP/1.1 400 ")
        assert found.count(b"HTTP/1.1 ") == 1


async def test_chunks_that_are_framed_well_are_read() -> None:
    """A line end in the content is content."""
    async with serving() as connect:
        reader, writer = await connect()
        head = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        for piece in (head, b"3;x=y\r\n", b"a\nb\r\n", b"1\r", b"\n\n\r\n0\r\nX: y\r", b"\n\r\n"):
            writer.write(piece)
            await writer.drain()
        assert (await reader.readuntil(b"a\nb\n")).startswith(b"HTTP/1.1 200 OK")
