"""A WebSocket (RFC 6455) to one front door; wsproto says what the bytes mean."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Ping,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from fairlead_sdk import json_form as form
from fairlead_sdk.errors import FairleadError, error_from_problem
from fairlead_sdk.http_errors import broken, no_address, silent, unreachable

CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 15.0
# The front door pings every 20 s: who hears nothing for so long is cut off.
_SILENCE_SECONDS = 45.0
_READ_BYTES = 256 * 1024
_LARGEST_MESSAGE = 4 * 1024 * 1024


class WebSocket:
    """One connection; a single reader and a single writer at a time."""

    def __init__(
        self, *, url: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._url = url
        self._reader = reader
        self._writer = writer
        self._protocol = WSConnection(ConnectionType.CLIENT)
        self._events: list[Event] = []

    async def open(self, host: str, target: str, headers: Mapping[str, str]) -> None:
        """Shake hands; raises what the front door refuses with, and `MeshUnavailable`."""
        request = Request(
            host=host,
            target=target,
            extra_headers=[(name.encode(), value.encode()) for name, value in headers.items()],
        )
        await self._send(request)
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                event = await self._event()
                if isinstance(event, AcceptConnection):
                    return
                raise await self._refusal(event)
        except TimeoutError:
            raise silent(self._url) from None

    async def send(self, message: str | bytes) -> None:
        """Send a message; raises `MeshUnavailable`."""
        await self._send(
            TextMessage(data=message) if isinstance(message, str) else BytesMessage(data=message)
        )

    async def receive(self) -> str | bytes | None:
        """Return the next message, None when the other side has closed; raises
        `MeshUnavailable`.
        """
        texts: list[str] = []
        pieces: list[bytes] = []
        size = 0
        while True:
            try:
                async with asyncio.timeout(_SILENCE_SECONDS):
                    event = await self._event()
            except TimeoutError:
                raise silent(self._url) from None
            match event:
                case TextMessage():
                    texts.append(event.data)
                    size += len(event.data)
                    if event.message_finished:
                        return "".join(texts)
                case BytesMessage():
                    pieces.append(bytes(event.data))
                    size += len(event.data)
                    if event.message_finished:
                        return b"".join(pieces)
                case Ping():
                    await self._send(event.response())
                case CloseConnection():
                    return None
            if size > _LARGEST_MESSAGE:
                raise broken(self._url)

    async def close(self) -> None:
        """Say that no more is wanted, and close."""
        with suppress(LocalProtocolError):  # it is closed already, or was never open
            self._writer.write(self._protocol.send(CloseConnection(code=1000)))
        self._writer.close()

    async def _refusal(self, event: Event) -> FairleadError:
        if not isinstance(event, RejectConnection):
            return broken(self._url)
        content = b""
        while event.has_body:
            more = await self._event()
            if not isinstance(more, RejectData):
                break
            content += more.data
            if more.body_finished:
                break
        try:
            problem = form.parse_object(content)
        except ValueError:
            problem = {}
        return error_from_problem(event.status_code, problem)

    async def _send(self, event: Event) -> None:
        try:
            self._writer.write(self._protocol.send(event))
            await self._writer.drain()
        except (OSError, LocalProtocolError) as error:
            raise broken(self._url) from error

    async def _event(self) -> Event:
        try:
            while not self._events:
                received = await self._reader.read(_READ_BYTES)
                if not received:
                    raise broken(self._url)
                self._protocol.receive_data(received)
                self._events = list(self._protocol.events())
        except (OSError, LocalProtocolError, RemoteProtocolError) as error:
            raise broken(self._url) from error
        return self._events.pop(0)


@asynccontextmanager
async def open_websocket(
    url: str, target: str, headers: Mapping[str, str]
) -> AsyncIterator[WebSocket]:
    """Connect to the front door at `url`; raises what it refuses with, and `MeshUnavailable`."""
    try:
        parts = urlsplit(url)
        is_safe = parts.scheme == "https"
        host, port = parts.hostname or "", parts.port or (443 if is_safe else 80)
    except ValueError:
        raise no_address(url) from None
    if not host or not parts.netloc.isascii():
        raise no_address(url)
    context = ssl.create_default_context() if is_safe else None
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(
                host, port, limit=_READ_BYTES, ssl=context
            )
    except (OSError, TimeoutError, ValueError) as error:
        raise unreachable(url) from error
    socket = WebSocket(url=url, reader=reader, writer=writer)
    try:
        await socket.open(
            parts.netloc.rpartition("@")[2], f"{parts.path.rstrip('/')}{target}", headers
        )
        yield socket
    finally:
        await socket.close()
