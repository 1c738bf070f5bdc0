"""What is written where a connection has just ended: dropped, or told as its loss, on any loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from fairlead_tunnel.conversation import Conversation
from fairlead_tunnel.framed_port import FramedPort
from fairlead_tunnel.http_posts import HttpPosts
from tests.contract.tunnel.talks import reset
from tests.eventually import SECONDS

pytestmark = pytest.mark.asyncio

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Give the streams of a connection that its other end resets once it hears something."""

    async def drop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        reset(writer)

    server = await asyncio.start_server(drop, "127.0.0.1", 0)
    async with server:
        yield await asyncio.open_connection(*server.sockets[0].getsockname())


async def is_reset(reader: asyncio.StreamReader) -> None:
    """Wait until a connection has been reset."""
    with pytest.raises(ConnectionResetError):
        await reader.read()


async def test_a_kept_connection_that_was_reset_is_replaced() -> None:
    met: list[asyncio.StreamWriter] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        met.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(5)
        writer.write(ANSWER)

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    posts = HttpPosts()
    async with asyncio.timeout(SECONDS), server:
        for _ in range(2):
            got = await posts.post(url, "/", b"hello", first_seconds=SECONDS, most_bytes=100)
            assert got.body == b"hi"
            (line,) = posts._kept[url]
            reset(met[-1])
            await is_reset(line.reader)
        assert len(met) == 2
        posts.close()


async def test_a_message_to_who_has_gone_is_a_lost_connection() -> None:
    async with asyncio.timeout(SECONDS), connected() as (reader, writer):
        talk = Conversation(reader=reader, writer=writer)
        await talk.send("hello")
        await is_reset(reader)
        with pytest.raises(ConnectionResetError):
            await talk.send("hello")
        talk.finish()


async def test_a_port_that_was_reset_takes_messages_and_its_end() -> None:
    async with asyncio.timeout(SECONDS), connected() as (reader, writer):
        port = FramedPort(reader=reader, writer=writer)
        port.send(b"hello")
        await is_reset(reader)
        port.send(b"hello")
        port.close()
        await port.drain()
