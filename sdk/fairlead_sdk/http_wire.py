"""HTTP/1.1 to one front door without TLS or proxies: kept connections, and what they answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from fairlead_sdk.errors import MeshUnavailable
from fairlead_sdk.http_errors import no_address, unreachable

if TYPE_CHECKING:
    from fairlead_sdk.http_exchange import Connection, PlainAnswer

CONNECT_SECONDS = 5.0
_BUFFER_BYTES = 256 * 1024
_MOST_KEPT = 20

Content = bytes | AsyncIterator[bytes] | None


class Answer(Protocol):
    """An answer whose body is still to come."""

    @property
    def status(self) -> int:
        """Its status code."""
        ...

    @property
    def traceresponse(self) -> str:
        """The span that answered (W3C Trace Context Level 2), or nothing."""
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
        self._kept: list[Connection] = []
        self._ahead: asyncio.Task[Connection] | None = None
        self.ending: dict[asyncio.Task[None], Connection] = {}
        """Exchanges that were left, whose rest is being read."""

    def connect_ahead(self) -> None:
        """Begin to connect for the request that comes next."""
        if self._ahead is None and not self._kept:
            self._ahead = asyncio.ensure_future(self._connected())
            asyncio.get_running_loop().call_soon(_load)  # while the other end accepts

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
    ) -> AsyncGenerator[PlainAnswer, None]:
        """Send a request and open its answer.

        A kept connection that turns out to be closed is replaced by a fresh one: the server then
        has not seen the request.
        """
        fields = {**self._headers, **headers}  # a request's own replace what all have
        connection, answer = await self._sent(
            method, f"{self._base}{target}", fields, content, seconds
        )
        try:
            yield answer
        except GeneratorExit:  # whoever read a stream has seen enough
            self._leave(connection)
            raise
        except BaseException:
            connection.close()
            raise
        else:
            self._leave(connection)

    def _leave(self, connection: Connection) -> None:
        if connection.drop_received():
            self._keep(connection)
            return
        ending = asyncio.ensure_future(self._read_out(connection))
        self.ending[ending] = connection
        ending.add_done_callback(self.ending.pop)

    async def _read_out(self, connection: Connection) -> None:
        if await connection.read_out():
            self._keep(connection)
        else:
            connection.close()

    def _keep(self, connection: Connection) -> None:
        if len(self._kept) < _MOST_KEPT and connection.begin_again():
            connection.idle_since = asyncio.get_running_loop().time()
            self._kept.append(connection)
        else:
            connection.close()

    async def _sent(
        self,
        method: str,
        target: str,
        fields: Mapping[str, str],
        content: Content,
        seconds: float | None,
    ) -> tuple[Connection, PlainAnswer]:
        is_repeatable = content is None or isinstance(content, bytes)
        while True:
            connection, was_kept = await self._taken()
            try:
                return connection, await connection.ask(method, target, fields, content, seconds)
            except MeshUnavailable:
                connection.close()
                if not (was_kept and is_repeatable and connection.is_stale):
                    raise
            except BaseException:
                connection.close()
                raise

    async def _taken(self) -> tuple[Connection, bool]:
        now = asyncio.get_running_loop().time()
        while self._kept:
            connection = self._kept.pop()
            if connection.is_usable and now - connection.idle_since < self._kept_seconds:
                return connection, True
            connection.close()
        ahead, self._ahead = self._ahead, None
        return await (self._connected() if ahead is None else ahead), False

    async def _connected(self) -> Connection:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, writer = await asyncio.open_connection(
                    self._host, self._port, limit=_BUFFER_BYTES
                )
        except (OSError, TimeoutError, ValueError) as error:
            raise unreachable(self._url) from error
        from fairlead_sdk.http_exchange import Connection

        return Connection(url=self._url, reader=reader, writer=writer)


def _load() -> None:
    """Import what speaks HTTP, which takes 10 ms: time that a round trip has to spare."""
    from fairlead_sdk import http_exchange  # noqa: F401
