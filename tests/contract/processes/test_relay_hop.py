"""The hop of the relay's benchmark buffers whole bodies, counts them and loses what it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import pytest_asyncio
from benchmarks.relay.go_program import can_be_built
from benchmarks.relay.hop import Hop, hop_before

from fairlead_tunnel.http_posts import Answer, HttpPosts, PostCut

pytestmark = pytest.mark.asyncio
MOST = 1 << 22


@dataclass
class Gateway:
    """Answers each body with itself."""

    heads: list[bytes] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        while head := await _head(reader):
            size = int(head.lower().partition(b"content-length:")[2].split()[0])
            body = await reader.readexactly(size)
            self.heads.append(head)
            self.bodies.append(body)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size + body)
        writer.close()


async def _head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""


@asynccontextmanager
async def served(gateway: Gateway) -> AsyncIterator[str]:
    server = await asyncio.start_server(gateway.talk, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@dataclass
class Way:
    """A gateway, and a client of the hop before it."""

    gateway: Gateway
    hop: Hop
    posts: HttpPosts

    async def post(self, body: bytes, *, seconds: float = 10.0) -> Answer:
        """Post a body through the hop."""
        return await self.posts.post(
            self.hop.url, "/a/b", body, first_seconds=seconds, most_bytes=MOST
        )


@pytest_asyncio.fixture
async def way() -> AsyncIterator[Way]:
    if not can_be_built():
        pytest.skip("the hop is built with go, which is not here")
    gateway = Gateway()
    async with served(gateway) as address, hop_before(address) as hop:
        posts = HttpPosts()
        yield Way(gateway, hop, posts)
        posts.close()


async def test_it_passes_whole_bodies_and_counts_them(way: Way) -> None:
    body = bytes(range(256)) * 4096
    assert (await way.post(body)).body == body
    assert way.gateway.heads[0].startswith(b"POST /a/b HTTP/1.1\r\n")
    passed = await way.hop.passed()
    assert (passed.requests, passed.lost) == (1, 0)
    assert len(body) < passed.up_bytes < len(body) + 1000
    assert len(body) < passed.down_bytes < len(body) + 1000


async def test_no_websocket_passes(way: Way) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(way.hop.url.rpartition(":")[2]))
    writer.write(
        b"GET /ws HTTP/1.1\r\nhost: a\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n"
    )
    assert (await reader.readline()).startswith(b"HTTP/1.1 501 ")
    writer.close()
    assert way.gateway.heads == []


async def test_lost_requests_reach_nobody(way: Way) -> None:
    await way.hop.lose(requests=1, answers=0)
    with pytest.raises(PostCut):
        await way.post(b"one")
    with pytest.raises(TimeoutError):
        await way.post(b"two", seconds=0.2)
    assert way.gateway.bodies == []
    await way.hop.lose(requests=0, answers=0)
    assert (await way.post(b"three")).body == b"three"
    assert (await way.hop.passed()).lost == 2


async def test_lost_answers_were_given(way: Way) -> None:
    await way.hop.lose(requests=0, answers=1)
    with pytest.raises(PostCut):
        await way.post(b"one")
    assert way.gateway.bodies == [b"one"]
