"""A client's two requests as one connection: the body of one answer down, one long body up."""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

from fairlead_tunnel.given_carriers import GivenSocket
from fairlead_tunnel.message_stream import MessageStream
from fairlead_tunnel.silence import unarrived
from fairlead_tunnel.stream_halves import DownHalf, Half, UpHalf
from fairlead_tunnel.stream_wire import (
    LAST_CHUNK,
    NAME_BYTES,
    SIGN_SECONDS,
    SILENT_SECONDS,
    STREAM_PATH,
    BodyInvalid,
    MessageReader,
    chunk,
    framed,
)

_GOODBYE_SECONDS: Final = 1.0


class StreamPipe:
    """Both requests; `ready` is done once the gateway has got the beginning of one body and this
    side the beginning of the other, so that neither is held back by a hop.
    """

    def __init__(self, *, host: str, target: str) -> None:
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._stream: MessageStream | None = None
        self._reader = MessageReader()
        self._heard_at = loop.time()
        self._received = 0
        self._is_closing = False
        self._is_over = False
        self._timer = loop.call_later(SIGN_SECONDS, self._on_time)
        self.ready: asyncio.Future[None] = loop.create_future()
        self.down = DownHalf(self, host=host, target=target)
        self.up = UpHalf(self, host=host, target=target)

    @property
    def can_write(self) -> bool:
        """Say whether a message may be written now."""
        return self.up.transport is not None and not self.up.is_full and not self._is_closing

    def lead_to(self, stream: MessageStream) -> None:
        """Give it everything that comes."""
        self._stream = stream

    def look(self) -> tuple[int, int]:
        """Return how many bytes have come, and how many have not arrived as far as is known."""
        return self._received, unarrived(self.up.transport)

    def write(self, message: bytes) -> None:
        """Write a message."""
        if not self._is_closing:
            self.up.write(chunk(framed(message)))

    def close(self) -> None:
        """End the body up after what was written; the gateway ends the other one then."""
        if self._is_closing:
            return
        self._is_closing = True
        self.up.write(LAST_CHUNK)
        self._timer.cancel()
        self._timer = self._loop.call_later(_GOODBYE_SECONDS, self.abort)

    def abort(self) -> None:
        """Drop both connections."""
        self._is_closing = True
        self._timer.cancel()
        for half in (self.down, self.up):
            if half.transport is not None:
                half.transport.abort()

    def give(self) -> GivenSocket | None:
        """Stay here; see `MessagePipe.give`."""
        return None

    def received(self, content: memoryview) -> None:
        """Take what came down."""
        self._heard_at = self._loop.time()
        self._received += len(content)
        try:
            for message in self._reader.take(content):
                if message and self._stream is not None:
                    self._stream.received(message)
                elif not self.ready.done():
                    self.ready.set_result(None)
        except BodyInvalid as error:
            self.down.fail(error)

    def has_room(self) -> None:
        """Note that there is room up again."""
        if self._stream is not None:
            self._stream.has_room()

    def ended(self, half: Half, error: Exception | None) -> None:
        """Note that a half has ended, and end the other one."""
        is_awaited = self._is_closing and half is self.up and self.down.transport is not None
        if self._is_over or (is_awaited and error is None):
            return  # what the gateway has sent is read to its end
        self._is_over = True
        self.abort()
        if not self.ready.done():
            self.ready.set_exception(error or ConnectionError("the gateway ended the request"))
            self.ready.exception()  # whoever waits is told; nobody has to
        if self._stream is not None:
            self._stream.lost(error)

    def _on_time(self) -> None:
        if self._loop.time() - self._heard_at >= SILENT_SECONDS:
            self.abort()
            return
        self.write(b"")
        self._timer = self._loop.call_later(SIGN_SECONDS, self._on_time)


async def connect_stream(
    url: str, *, random: Callable[[int], bytes] = secrets.token_bytes
) -> StreamPipe:
    """Reach a gateway's base address, `http://` or `https://`, over two requests.

    OSError: nobody is there; StreamRefused: bodies are not passed on. Where a hop holds one of them
    back nothing comes, for as long as the caller waits.
    """
    parts = urlsplit(url)
    is_tls = parts.scheme == "https"
    pipe = StreamPipe(
        host=parts.netloc.rpartition("@")[2],
        target=parts.path.rstrip("/") + STREAM_PATH + random(NAME_BYTES).hex(),
    )
    context = ssl.create_default_context() if is_tls else None
    loop = asyncio.get_running_loop()
    connecting = [
        asyncio.ensure_future(
            loop.create_connection(
                lambda half=half: half,
                parts.hostname or "",
                parts.port or (443 if is_tls else 80),
                ssl=context,
            )
        )
        for half in (pipe.down, pipe.up)
    ]
    try:
        await asyncio.gather(*connecting)
        await pipe.ready
    except BaseException:
        for each in connecting:
            each.cancel()
        pipe.abort()
        raise
    return pipe
