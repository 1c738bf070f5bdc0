"""The plain wire speaks HTTP/1.1 as its library twin does: bodies, kept connections, early ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from fairlead_sdk.client import FrontDoor
from fairlead_sdk.errors import FairleadError, MeshUnavailable
from fairlead_sdk.http_wire import Content, PlainWire

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def request_on(reader: asyncio.StreamReader) -> bytes:
    """Read a request with its body; empty when the client has closed."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""
    if b"chunked" in head:
        body = b""
        while size := int(await reader.readline(), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
        return head + body
    lines = [line for line in head.split(b"\r\n") if line.startswith(b"Content-Length: ")]
    return head + (await reader.readexactly(int(lines[0].split()[1])) if lines else b"")


class Server:
    """A server on a loopback port; `connections` counts them, `requests` holds what came."""

    def __init__(self) -> None:
        self.url = ""
        self.connections = 0
        self.requests: list[bytes] = []


@asynccontextmanager
async def serving(*answers: bytes | None, serve: Serve | None = None) -> AsyncIterator[Server]:
    """Answer one request after the other; `None` closes the connection instead."""
    server = Server()
    waiting = list(answers)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.connections += 1
        try:
            if serve is not None:
                await serve(reader, writer)
                return
            while request := await request_on(reader):
                server.requests.append(request)
                answer = waiting.pop(0)
                if answer is None:
                    return
                writer.write(answer)
                if b"Connection: close" in answer or b"\r\n\r\n" not in answer:
                    return
                if b"Content-Length" not in answer and b"chunked" not in answer:
                    return
        finally:
            writer.close()

    listening = await asyncio.start_server(accept, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listening.close()
        await listening.wait_closed()


@asynccontextmanager
async def wire_to(server: Server) -> AsyncIterator[PlainWire]:
    wire = PlainWire(url=server.url, headers={"A": "b"}, kept_seconds=60)
    try:
        yield wire
    finally:
        await wire.close()


async def asked(
    wire: PlainWire, *, content: Content = None, seconds: float | None = 10
) -> tuple[int, bytes]:
    method = "GET" if content is None else "POST"
    async with wire.exchange(
        method, "/x?y=1", headers={"C": "d"}, content=content, seconds=seconds
    ) as answer:
        return answer.status, b"".join([chunk async for chunk in answer.chunks()])


@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        (OK, 200, b"ok"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
        (b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", 404, b""),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, 200, b"ok"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"3;x=y\r\nabc\r\n1\r\nd\r\n0\r\nTrailer: z\r\n\r\n",
            200,
            b"abcd",
        ),
        (b"HTTP/1.1 200 OK\r\n\r\nuntil the end", 200, b"until the end"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", 200, b"ok"),
    ],
)
@pytest.mark.asyncio
async def test_every_kind_of_body_is_read(answer: bytes, status: int, body: bytes) -> None:
    async with serving(answer) as server, wire_to(server) as wire:
        assert await asked(wire) == (status, body)
    host = server.url.removeprefix("http://").encode()
    expected = b"GET /x?y=1 HTTP/1.1\r\nHost: %b\r\nA: b\r\nC: d\r\n\r\n" % host
    assert server.requests == [expected]


@pytest.mark.parametrize(
    "answer",
    [
        None,
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nConnection: close\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n3\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\nzz\r\n",
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nX: " + bytes(300_000),
    ],
)
@pytest.mark.asyncio
async def test_an_answer_that_is_cut_off_is_a_lost_connection(answer: bytes | None) -> None:
    async with serving(answer) as server, wire_to(server) as wire:
        with pytest.raises(MeshUnavailable) as caught:
            await asked(wire)
    assert caught.value.reason == "connection_lost"


@pytest.mark.asyncio
async def test_a_requests_own_header_replaces_the_one_that_all_have() -> None:
    async with (
        serving(OK) as server,
        wire_to(server) as wire,
        wire.exchange("GET", "/", headers={"A": "own"}, content=None, seconds=9) as answer,
    ):
        assert answer.status == 200
    assert server.requests[0].count(b"\r\nA: ") == 1
    assert b"\r\nA: own\r\n" in server.requests[0]


@pytest.mark.asyncio
async def test_a_stream_asks_for_lines_and_for_nothing_else() -> None:
    async with (
        serving(OK) as server,
        FrontDoor(url=server.url, api_key="k") as door,
        door.stream("GET", "/v1/y"),
    ):
        pass
    lines = server.requests[0].split(b"\r\n")
    accepted = [line for line in lines if line.lower().startswith(b"accept:")]
    assert accepted == [b"Accept: application/x-ndjson"]


@pytest.mark.asyncio
async def test_a_connection_is_kept_and_used_again() -> None:
    async with serving(OK, OK, OK) as server, wire_to(server) as wire:
        for _ in range(3):
            assert await asked(wire, content=b"body") == (200, b"ok")
    assert server.connections == 1
    assert [request[-4:] for request in server.requests] == [b"body"] * 3


@pytest.mark.asyncio
async def test_a_kept_connection_that_was_closed_is_replaced() -> None:
    async with serving(OK, None, OK) as server, wire_to(server) as wire:
        assert await asked(wire) == (200, b"ok")
        assert await asked(wire, content=b"x") == (200, b"ok")
    assert server.connections == 2


@pytest.mark.asyncio
async def test_an_answer_that_nobody_asked_for_is_not_taken_for_the_next_one() -> None:
    async with serving(OK + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfake", OK) as server:
        async with wire_to(server) as wire:
            assert await asked(wire) == (200, b"ok")
            assert await asked(wire) == (200, b"ok")
        assert server.connections == 2


@pytest.mark.asyncio
async def test_an_answer_without_a_body_leaves_the_connection_to_the_next_request() -> None:
    async with serving(b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n", OK) as server:
        async with wire_to(server) as wire:
            async with wire.exchange("GET", "/", headers={}, content=None, seconds=9) as answer:
                assert answer.status == 204
            assert not wire.ending
            assert await asked(wire) == (200, b"ok")
        assert server.connections == 1


@pytest.mark.asyncio
async def test_a_line_end_in_a_header_is_never_sent() -> None:
    async with serving(OK) as server, wire_to(server) as wire:
        with pytest.raises(MeshUnavailable):
            async with wire.exchange(
                "GET", "/", headers={"C": "d\r\nHost: other"}, content=None, seconds=9
            ):
                pass
    assert server.requests == []


STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n3\r\ntwo\r\n"


@pytest.mark.asyncio
async def test_a_stream_that_is_left_after_its_last_line_keeps_the_connection() -> None:
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_on(reader)
        writer.write(STREAM)
        await ended.wait()
        writer.write(b"0\r\n\r\n")
        await request_on(reader)
        writer.write(OK)

    async def read_by(wire: PlainWire) -> AsyncGenerator[bytes, None]:
        async with wire.exchange("GET", "/", headers={}, content=None, seconds=9) as answer:
            async for chunk in answer.chunks():
                yield chunk

    async with serving(serve=serve) as server, wire_to(server) as wire:
        stream = read_by(wire)
        assert await anext(stream) == b"one"
        await stream.aclose()
        ended.set()
        await asyncio.gather(*wire.ending)
        assert await asked(wire) == (200, b"ok")
    assert server.connections == 1


@pytest.mark.asyncio
async def test_a_stream_that_goes_on_leaves_no_connection() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_on(reader)
        writer.write(STREAM)
        assert await reader.read() == b""

    async with serving(serve=serve) as server:
        async with wire_to(server) as wire:
            async with wire.exchange("GET", "/", headers={}, content=None, seconds=9) as answer:
                assert await anext(answer.chunks()) == b"one"
            assert len(wire.ending) == 1
        assert not wire.ending


@pytest.mark.asyncio
async def test_the_connection_is_made_ahead_of_the_request() -> None:
    accepted = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set()
        await request_on(reader)
        writer.write(OK)

    async with serving(serve=serve) as server, wire_to(server) as wire:
        wire.connect_ahead()
        await asyncio.wait_for(accepted.wait(), 60)
        assert await asked(wire) == (200, b"ok")
    assert server.connections == 1


@pytest.mark.asyncio
async def test_a_connection_made_ahead_that_nobody_uses_is_closed() -> None:
    accepted, ended = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set()
        assert await reader.read() == b""
        ended.set()

    async with serving(serve=serve) as server:
        async with wire_to(server) as wire:
            wire.connect_ahead()
            await asyncio.wait_for(accepted.wait(), 60)
        await asyncio.wait_for(ended.wait(), 60)


@pytest.mark.asyncio
async def test_where_nobody_listens_it_says_so() -> None:
    async with serving() as server:
        pass
    for is_ahead in (False, True):
        async with wire_to(server) as wire:
            if is_ahead:
                wire.connect_ahead()
            with pytest.raises(MeshUnavailable) as caught:
                await asked(wire)
            assert caught.value.reason == "mesh_unreachable"


@pytest.mark.asyncio
async def test_silence_is_not_waited_for_without_end() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with serving(serve=serve) as server, wire_to(server) as wire:
        with pytest.raises(MeshUnavailable) as caught:
            await asked(wire, seconds=0.01)
    assert caught.value.reason == "mesh_silent"


@pytest.mark.asyncio
async def test_an_upload_is_chunked_and_a_refusal_in_the_middle_is_read() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for piece in (b"one", b"", b"two"):
            yield piece

    async with serving(OK) as server, wire_to(server) as wire:
        assert await asked(wire, content=pieces(), seconds=None) == (200, b"ok")
    assert server.requests[0].endswith(b"\r\n\r\nonetwo")

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno")
        await reader.read()

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(65536)

    async with serving(serve=refuse) as server, wire_to(server) as wire:
        assert await asked(wire, content=endless(), seconds=None) == (413, b"no")


@pytest.mark.asyncio
async def test_what_fails_while_the_content_is_made_is_raised_as_it_is() -> None:
    async def failing() -> AsyncIterator[bytes]:
        yield b"one"
        raise FairleadError("No.", reason="client_objects_missing")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with serving(serve=serve) as server, FrontDoor(url=server.url, api_key="") as door:
        with pytest.raises(FairleadError) as caught:
            await door.upload("t", failing(), key="k")
    assert caught.value.reason == "client_objects_missing"


@pytest.mark.parametrize(
    "url", ["http://", "http://[::1", "http://host:port", "http://hö:80", "http://h:99999"]
)
@pytest.mark.asyncio
async def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(MeshUnavailable) as caught:
        async with FrontDoor(url=url, api_key="") as door:
            await door.get("/")
    assert caught.value.reason == "url_invalid"


@pytest.mark.parametrize("name", ["http_proxy", "ALL_PROXY"])
@pytest.mark.asyncio
async def test_a_proxy_is_used_for_another_machine_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}") as proxy:
        monkeypatch.setenv(name, proxy.url)
        async with FrontDoor(url="http://elsewhere.invalid:1", api_key="") as door:
            assert await door.get("/x") == {}
        assert proxy.requests[0].startswith(b"GET http://elsewhere.invalid:1/x ")
        async with (
            serving(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}") as here,
            FrontDoor(url=here.url, api_key="") as door,
        ):
            assert await door.get("/x") == {}
        assert len(proxy.requests) == 1
