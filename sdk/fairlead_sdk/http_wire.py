"""HTTP/1.1 (RFC 9112) to one front door without TLS or proxies, on asyncio alone: importing an HTTP
library costs a launch as much time as a round trip.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol
from urllib.parse import urlsplit

from fairlead_sdk.errors import MeshUnavailable
from fairlead_sdk.http_errors import broken, no_address, silent, unreachable

CONNECT_SECONDS = 5.0
_HEAD_BYTES = 256 * 1024
_READ_BYTES = 256 * 1024
_MOST_KEPT = 20
# How long an answer may take that says why the rest of a request is not wanted.
_LAST_WORDS_SECONDS = 1.0

Content = bytes | AsyncIterator[bytes] | None


class Answer(Protocol):
    """An answer whose body is still to come."""

    @property
    def status(self) -> int:
        """Its status code."""
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """Give the body as it comes."""
        ...


class Wire(Protocol):
    """Carries requests to one front door; what fails is a `MeshUnavailable`."""

    def exchange(
        self,
        method: str,
        target: str,
        *,
        headers: Mapping[str, str],
        content: Content,
        seconds: float | None,
    ) -> AbstractAsyncContextManager[Answer]:
        """Send a request and open its answer; nothing may be silent for longer than `seconds`."""
        ...

    def connect_ahead(self) -> None:
        """Begin to connect for the request that comes next, where that saves time."""
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...


class PlainWire:
    """Kept connections to the host and port of a URL."""

    def __init__(self, *, url: str, headers: Mapping[str, str], kept_seconds: float) -> None:
        try:
            parts = urlsplit(url)
            self._host, self._port = parts.hostname or "", parts.port or 80
        except ValueError:
            raise no_address(url) from None
        if not self._host or not parts.netloc.isascii():
            raise no_address(url)
        self._url = url
        self._base = parts.path.rstrip("/")
        self._headers = {"Host": parts.netloc.rpartition("@")[2], **headers}
        self._kept_seconds = kept_seconds
        self._kept: list[_Connection] = []
        self._ahead: asyncio.Task[_Connection] | None = None
        self.ending: dict[asyncio.Task[None], _Connection] = {}
        """Exchanges that were left, whose rest is being read."""

    def connect_ahead(self) -> None:
        """Begin to connect for the request that comes next."""
        if self._ahead is None and not self._kept:
            self._ahead = asyncio.ensure_future(self._connected())

    async def close(self) -> None:
        """Close every connection."""
        if self._ahead is not None:
            self._ahead.cancel()
            await asyncio.gather(self._ahead, return_exceptions=True)
            if not self._ahead.cancelled() and self._ahead.exception() is None:
                self._ahead.result().close()
        for ending, connection in list(self.ending.items()):
            ending.cancel()
            connection.close()
        await asyncio.gather(*self.ending, return_exceptions=True)
        for connection in self._kept:
            connection.close()
        self._kept.clear()

    @asynccontextmanager
    async def exchange(
        self,
        method: str,
        target: str,
        *,
        headers: Mapping[str, str],
        content: Content,
        seconds: float | None,
    ) -> AsyncGenerator[_PlainAnswer, None]:
        """Send a request and open its answer.

        A kept connection that turns out to be closed is replaced by a fresh one: the server then
        has not seen the request.
        """
        lines = {"Content-Length": str(len(content))} if isinstance(content, bytes) else {}
        if content is not None and not isinstance(content, bytes):
            lines = {"Transfer-Encoding": "chunked"}
        elif content is None and method != "GET":
            lines = {"Content-Length": "0"}
        fields = {**self._headers, **headers, **lines}  # a request's own replace what all have
        listed = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        head = f"{method} {self._base}{target} HTTP/1.1\r\n{listed}\r\n"
        connection, answer = await self._sent(head.encode("latin-1"), content, seconds)
        try:
            yield answer
        except GeneratorExit:  # whoever read a stream has seen enough
            self._leave(connection, answer)
            raise
        except BaseException:
            connection.close()
            raise
        else:
            self._leave(connection, answer)

    def _leave(self, connection: _Connection, answer: _PlainAnswer) -> None:
        if answer.is_whole:
            self._keep(connection, answer)
            return
        ending = asyncio.ensure_future(self._read_out(connection, answer))
        self.ending[ending] = connection
        ending.add_done_callback(self.ending.pop)

    async def _read_out(self, connection: _Connection, answer: _PlainAnswer) -> None:
        """Read an answer's rest, which is short where its reader left after the last line."""
        try:
            async with asyncio.timeout(_LAST_WORDS_SECONDS):
                async for _ in answer.chunks():
                    pass
        except (MeshUnavailable, TimeoutError):
            connection.close()
        else:
            self._keep(connection, answer)

    def _keep(self, connection: _Connection, answer: _PlainAnswer) -> None:
        if answer.keeps and answer.is_whole and len(self._kept) < _MOST_KEPT:
            connection.idle_since = asyncio.get_running_loop().time()
            self._kept.append(connection)
        else:
            connection.close()

    async def _sent(
        self, head: bytes, content: Content, seconds: float | None
    ) -> tuple[_Connection, _PlainAnswer]:
        while True:
            connection, was_kept = await self._taken()
            try:
                async with asyncio.timeout(seconds):
                    return connection, await connection.ask(head, content, seconds)
            except TimeoutError:
                connection.close()
                raise silent(self._url) from None
            except (OSError, ValueError, asyncio.IncompleteReadError) as error:
                connection.close()
                is_repeatable = content is None or isinstance(content, bytes)
                if not (was_kept and is_repeatable and not connection.has_answered):
                    raise broken(self._url) from error
            except BaseException:
                connection.close()
                raise

    async def _taken(self) -> tuple[_Connection, bool]:
        now = asyncio.get_running_loop().time()
        while self._kept:
            connection = self._kept.pop()
            if connection.is_usable and now - connection.idle_since < self._kept_seconds:
                return connection, True
            connection.close()
        ahead, self._ahead = self._ahead, None
        return await (self._connected() if ahead is None else ahead), False

    async def _connected(self) -> _Connection:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, writer = await asyncio.open_connection(
                    self._host, self._port, limit=_HEAD_BYTES
                )
        except (OSError, TimeoutError, ValueError) as error:
            raise unreachable(self._url) from error
        return _Connection(url=self._url, reader=reader, writer=writer)


class _Connection:
    """One connection, one exchange at a time."""

    def __init__(
        self, *, url: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.idle_since = 0.0
        self.has_answered = False
        self._url = url
        self._reader = reader
        self._writer = writer

    @property
    def is_usable(self) -> bool:
        """Whether the other end has not closed it yet, as far as one can know."""
        return not (self._reader.at_eof() or self._writer.is_closing())

    def close(self) -> None:
        """Close it, whatever is under way."""
        self._writer.close()

    async def ask(self, head: bytes, content: Content, seconds: float | None) -> _PlainAnswer:
        """Send a request and read the head of its answer, which may come before the end of it."""
        self.has_answered = False
        if content is None or isinstance(content, bytes):
            self._writer.write(head + (content or b""))
            await self._writer.drain()
            return await self._answer(seconds)
        sending = asyncio.ensure_future(self._send_chunks(head, content))
        answering = asyncio.ensure_future(self._answer(seconds))
        try:
            await asyncio.wait((sending, answering), return_when=asyncio.FIRST_COMPLETED)
            if not answering.done() and isinstance(sending.exception(), OSError):
                await asyncio.wait((answering,), timeout=_LAST_WORDS_SECONDS)
            if not answering.done():
                sending.result()
            answer = await answering
            answer.keeps = answer.keeps and sending.done() and sending.exception() is None
            return answer
        finally:
            for task in (sending, answering):
                task.cancel()
            await asyncio.gather(sending, answering, return_exceptions=True)

    async def _send_chunks(self, head: bytes, content: AsyncIterator[bytes]) -> None:
        self._writer.write(head)
        async for chunk in content:
            if chunk:
                self._writer.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
                await self._writer.drain()
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    async def _answer(self, seconds: float | None) -> _PlainAnswer:
        while True:
            head = await self._reader.readuntil(b"\r\n\r\n")
            self.has_answered = True
            first, *lines = head.decode("latin-1").split("\r\n")[:-2]
            version, status = first.split(" ", 2)[:2]
            if not version.startswith("HTTP/1."):
                raise ValueError(version)
            if 100 <= int(status) < 200:
                continue
            fields = {}
            for line in lines:
                name, _, value = line.partition(":")
                fields[name.lower()] = value.strip()
            return _PlainAnswer(
                url=self._url,
                reader=self._reader,
                status=int(status),
                fields=fields,
                seconds=seconds,
                keeps=version == "HTTP/1.1" and fields.get("connection", "").lower() != "close",
            )


class _PlainAnswer:
    """An answer and the body that follows on the connection."""

    def __init__(
        self,
        *,
        url: str,
        reader: asyncio.StreamReader,
        status: int,
        fields: Mapping[str, str],
        seconds: float | None,
        keeps: bool,
    ) -> None:
        self.status = status
        self.keeps = keeps
        self.is_whole = status in {204, 304} or fields.get("content-length") == "0"
        self._url = url
        self._reader = reader
        self._fields = fields
        self._seconds = seconds
        self._rest = self._body()

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Give the body as it comes, from where it was left; raises `MeshUnavailable` when it ends
        too early.
        """
        try:
            while (chunk := await anext(self._rest, None)) is not None:
                yield chunk
        except TimeoutError:
            raise silent(self._url) from None
        except (OSError, ValueError, asyncio.IncompleteReadError) as error:
            raise broken(self._url) from error

    async def _body(self) -> AsyncGenerator[bytes, None]:
        if self.is_whole:
            return
        if "chunked" in self._fields.get("transfer-encoding", "").lower():
            while size := int((await self._line()).split(b";")[0], 16):
                async for chunk in self._exactly(size):
                    yield chunk
                await self._line()
            while await self._line():
                continue
        elif "content-length" in self._fields:
            async for chunk in self._exactly(int(self._fields["content-length"])):
                yield chunk
        else:
            self.keeps = False
            while chunk := await self._read(_READ_BYTES):
                yield chunk
        self.is_whole = True

    async def _exactly(self, size: int) -> AsyncGenerator[bytes, None]:
        while size > 0:
            chunk = await self._read(min(size, _READ_BYTES))
            if not chunk:
                raise asyncio.IncompleteReadError(b"", size)
            size -= len(chunk)
            yield chunk

    async def _read(self, size: int) -> bytes:
        async with asyncio.timeout(self._seconds):
            return await self._reader.read(size)

    async def _line(self) -> bytes:
        async with asyncio.timeout(self._seconds):
            return (await self._reader.readuntil(b"\r\n"))[:-2]
