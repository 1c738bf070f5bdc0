"""Posts whole bodies over HTTP/1.1 and reads whole answers, over connections that are kept."""

from __future__ import annotations

import asyncio
import ssl
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import h11

from fairlead_tunnel.event_loops import require_open

_CONNECT_SECONDS: Final = 10.0
_READ_BYTES: Final = 256 * 1024
_MOST_KEPT: Final = 8
_STALE_SECONDS: Final = 0.2
_CONTENT_TYPE: Final = "application/octet-stream"


class PostCut(ConnectionError):
    """The connection ended before the answer did; `received` bytes of it came."""

    def __init__(self, received: int) -> None:
        super().__init__("the connection ended before the answer")
        self.received = received


class NotConnected(ConnectionError):
    """No connection was made, for a `fault`: nothing of the body has left."""

    def __init__(self, fault: OSError) -> None:
        super().__init__(str(fault))
        self.fault = fault


class Answer(NamedTuple):
    """A whole answer; its first byte came after `seconds`."""

    status: int
    body: bytes
    seconds: float


class _Line:
    """One connection to an endpoint."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.protocol = h11.Connection(h11.CLIENT)
        self.has_answered = False

    def drop(self) -> None:
        """Close it now."""
        self.writer.transport.abort()


class HttpPosts:
    """Connections to one or more endpoints, `http://` or `https://`."""

    def __init__(self) -> None:
        self._kept: dict[str, list[_Line]] = {}
        self._tls: ssl.SSLContext | None = None

    async def post(
        self, url: str, target: str, body: bytes, *, first_seconds: float, most_bytes: int
    ) -> Answer:
        """Post a body to `target` below `url` and return the answer.

        `first_seconds` is for how long to wait for its first byte, and as long for more after each.
        NotConnected, TimeoutError, OSError: nobody answered; PostCut: the answer ended too early,
        or is longer than `most_bytes`.
        """
        kept = self._kept.setdefault(url, [])
        try:
            line = kept.pop() if kept else await self._connect(url)
        except OSError as error:
            raise NotConnected(error) from error
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            return await self._exchange(line, url, target, body, first_seconds, most_bytes)
        except (PostCut, ConnectionError) as error:
            is_old = line.has_answered and loop.time() - started < _STALE_SECONDS
            if not is_old or (isinstance(error, PostCut) and error.received):
                raise
        # It was idle for too long: the other end closed it as this one wrote.
        line = await self._connect(url)
        return await self._exchange(line, url, target, body, first_seconds, most_bytes)

    def close(self) -> None:
        """Close what is kept."""
        for lines in self._kept.values():
            for line in lines:
                line.drop()
        self._kept.clear()

    async def _connect(self, url: str) -> _Line:
        parts = urlsplit(url)
        is_tls = parts.scheme == "https"
        if is_tls and self._tls is None:
            self._tls = ssl.create_default_context()
        async with asyncio.timeout(_CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(
                parts.hostname,
                parts.port or (443 if is_tls else 80),
                ssl=self._tls if is_tls else None,
                limit=1024 * 1024,
            )
        return _Line(reader, writer)

    async def _exchange(
        self, line: _Line, url: str, target: str, body: bytes, seconds: float, most_bytes: int
    ) -> Answer:
        is_whole = False
        try:
            answer = await self._ask(line, url, target, body, seconds, most_bytes)
            is_whole = True
            return answer
        finally:
            kept = self._kept.get(url)
            if is_whole and line.protocol.our_state is h11.MUST_CLOSE:
                is_whole = False
            if is_whole and kept is not None and len(kept) < _MOST_KEPT:
                line.protocol.start_next_cycle()
                line.has_answered = True
                kept.append(line)
            else:
                line.drop()

    async def _ask(
        self, line: _Line, url: str, target: str, body: bytes, seconds: float, most_bytes: int
    ) -> Answer:
        parts = urlsplit(url)
        protocol = line.protocol
        request = h11.Request(
            method="POST",
            target=parts.path.rstrip("/") + target,
            headers=[
                ("host", parts.netloc.rpartition("@")[2]),
                ("content-type", _CONTENT_TYPE),
                ("content-length", str(len(body))),
            ],
        )
        head = protocol.send(request) or b""
        protocol.send(h11.Data(data=body))
        protocol.send(h11.EndOfMessage())
        loop = asyncio.get_running_loop()
        started = loop.time()
        require_open(line.writer)
        line.writer.writelines((head, body))
        first = 0.0
        status = 0
        pieces: list[bytes] = []
        size = 0
        while True:
            event = _next_event(protocol, size)
            if event is h11.NEED_DATA:
                try:
                    received = await _read(line, seconds)
                except TimeoutError:
                    if size:
                        raise PostCut(size) from None
                    raise
                first = first or loop.time() - started
                if not received and not status:
                    raise PostCut(0)
                protocol.receive_data(received)
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                pieces.append(bytes(event.data))
                size += len(event.data)
                if size > most_bytes:
                    raise PostCut(size)
            elif isinstance(event, h11.EndOfMessage):
                break
        return Answer(status, pieces[0] if len(pieces) == 1 else b"".join(pieces), first)


def _next_event(protocol: h11.Connection, size: int) -> object:
    try:
        return protocol.next_event()
    except h11.RemoteProtocolError:
        raise PostCut(size) from None


async def _read(line: _Line, seconds: float) -> bytes:
    """Read something; TimeoutError when in that time neither anything came nor anything left."""
    transport = line.writer.transport
    unsent = transport.get_write_buffer_size()
    while True:
        try:
            async with asyncio.timeout(seconds):
                return await line.reader.read(_READ_BYTES)
        except TimeoutError:
            left = transport.get_write_buffer_size()
            if left >= unsent:
                raise
            unsent = left
