"""Answers of HTTP/1.1, whole and cut anywhere."""

from __future__ import annotations

import asyncio

import pytest

from workspace_provisioner.origins import OriginFailed
from workspace_provisioner.transport.http_answer import Answer, read_answer


def reader(content: bytes, *, limit: int = 1024) -> asyncio.StreamReader:
    found = asyncio.StreamReader(limit=limit)
    found.feed_data(content)
    found.feed_eof()
    return found


async def answer(content: bytes) -> Answer:
    return await read_answer(reader(content))


@pytest.mark.asyncio
async def test_a_body_of_a_known_length() -> None:
    source = reader(
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 6\r\nX: y\r\n\r\nabcdef"
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
    )
    first = await read_answer(source)
    assert (first.status, first.headers["x"]) == (200, "y")
    assert await first.read_exactly(2) == b"ab"
    assert await first.finish()
    second = await read_answer(source)
    assert second.status == 404
    with pytest.raises(asyncio.IncompleteReadError):
        await second.read_exactly(1)


@pytest.mark.asyncio
async def test_a_body_in_chunks() -> None:
    found = await answer(
        b"HTTP/1.1 200\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nTrailer: z\r\n\r\n"
    )
    assert await found.read_exactly(4) == b"abcd"
    assert await found.read_exactly(1) == b"e"
    assert await found.finish()


@pytest.mark.asyncio
async def test_a_body_until_the_end_of_the_connection() -> None:
    found = await answer(b"HTTP/1.0 200 OK\r\n\r\nabc")
    assert await found.read_exactly(3) == b"abc"
    assert not await found.finish()


@pytest.mark.asyncio
async def test_a_server_that_hangs_up_afterwards() -> None:
    found = await answer(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\na")
    assert not await found.finish()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "content",
    [
        b"SSH-2.0-x\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 2000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 200,
    ],
)
async def test_what_is_no_answer(content: bytes) -> None:
    with pytest.raises(OriginFailed):
        await answer(content)


@pytest.mark.asyncio
@pytest.mark.parametrize("chunk", [b"x\r\n", b"-3\r\nabc\r\n"])
async def test_a_chunk_of_no_length(chunk: bytes) -> None:
    found = await answer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk)
    with pytest.raises(OriginFailed):
        await found.read_exactly(1)


@pytest.mark.asyncio
async def test_a_cut_at_every_byte_is_noticed() -> None:
    whole = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n"
    )
    for length in range(whole.index(b"def") + 3):
        with pytest.raises(asyncio.IncompleteReadError):
            await (await answer(whole[:length])).read_exactly(6)
