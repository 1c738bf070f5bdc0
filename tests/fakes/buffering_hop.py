"""A hop that reads whole requests, forwards them, and reads whole answers before it passes them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum, auto

_HEAD_LIMIT = 64 * 1024


class Fate(Enum):
    """What happens to one request."""

    PASSES = auto()
    REQUEST_LOST = auto()
    """The connection is closed before anything was forwarded."""
    REQUEST_SWALLOWED = auto()
    """Nothing is forwarded, and nothing is answered."""
    ANSWER_LOST = auto()
    """It is forwarded, and the connection is closed instead of an answer."""
    ANSWER_SWALLOWED = auto()
    """It is forwarded, and nothing is answered."""
    REQUEST_LATE = auto()
    """It is forwarded once its client has given it up."""
    DOUBLED = auto()
    """It is forwarded twice; the second answer is passed on."""
    ANSWER_CUT = auto()
    """Half of the answer's body is passed on."""
    ANSWER_SHORTENED = auto()
    """Half of the body is passed on as if it were all of it."""


Choice = Callable[[int, bytes], Fate | tuple[int, bytes]]
"""What happens to request number n with this body: a fate, or a status and a body to answer."""


@dataclass
class BufferingHop:
    """A hop before one gateway; `choose` decides over each request."""

    gateway: str
    choose: Choice = lambda number, body: Fate.PASSES
    url: str = ""
    requests: int = 0
    under_way: int = 0
    most_under_way: int = 0
    up_bytes: int = 0
    down_bytes: int = 0
    sizes: list[int] = field(default_factory=list)
    passes_requests: bool = False
    """Bodies without a length are passed up as they come; answers are buffered all the same."""
    most_request: int = 1 << 62
    """Longer requests are answered with 413."""
    most_answer: int = 1 << 62
    """Of longer answers half is passed on."""
    _kept: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = field(default_factory=list)
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)
    _ends: bool = False
    _is_cut: asyncio.Event = field(default_factory=asyncio.Event)

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, one request after the other."""
        self._writers.add(writer)
        try:
            while True:
                head, body = await _read(reader, is_whole=not self.passes_requests)
                self.requests += 1
                self.under_way += 1
                self.most_under_way = max(self.most_under_way, self.under_way)
                self.up_bytes += len(head) + len(body)
                self.sizes.append(len(body))
                try:
                    answer = await self._answer(reader, head, body)
                finally:
                    self.under_way -= 1
                if answer is None:
                    return
                self.down_bytes += len(answer)
                writer.write(answer)
                await writer.drain()
                if not _is_whole(answer):
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, client: asyncio.StreamReader, head: bytes, body: bytes) -> bytes | None:
        fate = self.choose(self.requests, body)
        if len(body) > self.most_request:
            fate = 413, b"too large"
        if isinstance(fate, tuple):
            status, content = fate
            return (
                f"HTTP/1.1 {status} -\r\ncontent-length: {len(content)}\r\n\r\n".encode() + content
            )
        if fate is Fate.REQUEST_LOST:
            return None
        if fate is Fate.REQUEST_SWALLOWED:
            await self._is_cut.wait()
            return None
        if fate is Fate.REQUEST_LATE:
            await client.read()
            if self._ends:
                return None
        rest = client if self.passes_requests and _is_chunked(head) else None
        answer_head, answer = await self._forward(head, body, rest)
        if fate is Fate.DOUBLED:
            answer_head, answer = await self._forward(head, body)
        if fate is Fate.ANSWER_LOST:
            return None
        if fate is Fate.ANSWER_SWALLOWED:
            await self._is_cut.wait()
            return None
        if len(answer) > self.most_answer:
            fate = Fate.ANSWER_CUT
        if fate is Fate.ANSWER_SHORTENED:
            answer = answer[: len(answer) // 2]
            return _head(200, answer) + answer
        return answer_head + (answer[: len(answer) // 2] if fate is Fate.ANSWER_CUT else answer)

    async def _forward(
        self, head: bytes, body: bytes, rest: asyncio.StreamReader | None = None
    ) -> tuple[bytes, bytes]:
        host, _, port = self.gateway.removeprefix("http://").rpartition(":")
        if self._kept:
            reader, writer = self._kept.pop()
        else:
            reader, writer = await asyncio.open_connection(host, int(port), limit=1024 * 1024)
        self._writers.add(writer)
        is_whole = False
        passing = asyncio.ensure_future(_pass(rest, writer)) if rest is not None else None
        try:
            writer.writelines((head, body))
            await writer.drain()
            answer = await _read(reader)
            is_whole = True
            return answer
        finally:
            self._writers.discard(writer)
            if passing is not None:
                passing.cancel()
            if is_whole and passing is None:
                self._kept.append((reader, writer))
            else:
                writer.transport.abort()

    def cut(self) -> None:
        """Drop all connections with what is under way in them."""
        self._is_cut.set()
        self._is_cut = asyncio.Event()
        for writer in [*self._writers, *(each for _, each in self._kept)]:
            writer.transport.abort()
        self._kept.clear()


def _is_whole(message: bytes) -> bool:
    head, _, body = message.partition(b"\r\n\r\n")
    return b"content-length: %d" % len(body) in head.lower()


def _head(status: int, body: bytes) -> bytes:
    return f"HTTP/1.1 {status} -\r\ncontent-length: {len(body)}\r\n\r\n".encode()


def _is_chunked(head: bytes) -> bool:
    return b"transfer-encoding: chunked" in head.lower()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while content := await reader.read(65536):
            writer.write(content)
            await writer.drain()


async def _read(reader: asyncio.StreamReader, *, is_whole: bool = True) -> tuple[bytes, bytes]:
    """Read a message with its body; of one that is chunked only the head unless `is_whole`."""
    head = await reader.readuntil(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return head, await reader.readexactly(int(line.partition(b":")[2]))
    body = b""
    while is_whole and _is_chunked(head) and not body.endswith(b"0\r\n\r\n"):
        size = await reader.readuntil(b"\r\n")
        body += size + await reader.readexactly(int(size, 16) + 2)
    return head, body


@asynccontextmanager
async def buffering_hop(gateway: str, choose: Choice | None = None) -> AsyncIterator[BufferingHop]:
    """Serve a hop before a gateway while in the block."""
    hop = BufferingHop(gateway)
    if choose is not None:
        hop.choose = choose
    server = await asyncio.start_server(hop.talk, "127.0.0.1", 0, limit=1024 * 1024)
    port = server.sockets[0].getsockname()[1]
    hop.url = f"http://127.0.0.1:{port}"
    try:
        yield hop
    finally:
        server.close()
        hop._ends = True
        hop.cut()
        await server.wait_closed()
