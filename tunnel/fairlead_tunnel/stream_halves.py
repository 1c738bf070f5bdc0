"""The two requests that one connection is made of: a GET whose answer goes on, and a POST."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol, cast

import h11

from fairlead_tunnel.stream_wire import BodyInvalid, ChunkedBody, chunk, framed

_MOST_UNSENT: Final = 512 * 1024
_CONTENT_TYPE: Final = "application/octet-stream"


class StreamRefused(ConnectionError):
    """Whoever answers does not pass on two bodies; `status` is the HTTP status, 0 for none."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Whole(Protocol):
    """What the two halves belong to."""

    def received(self, content: memoryview) -> None:
        """Take what came down."""
        ...

    def has_room(self) -> None:
        """Note that there is room up again."""
        ...

    def ended(self, half: Half, error: Exception | None) -> None:
        """Note that a half has ended."""
        ...


class Half(asyncio.Protocol):
    """One connection with one request; h11 reads the head of its answer."""

    def __init__(self, whole: Whole, *, host: str, target: str) -> None:
        self.whole = whole
        self.transport: asyncio.Transport | None = None
        self.is_full = False
        self.fault: Exception | None = None
        self._host = host
        self._target = target
        self._protocol = h11.Connection(h11.CLIENT)

    def ask(self, method: str, headers: list[tuple[str, str]]) -> None:
        """Write the head of the request."""
        request = h11.Request(
            method=method, target=self._target, headers=[("host", self._host), *headers]
        )
        self.write(self._protocol.send(request) or b"")

    def write(self, content: bytes) -> None:
        """Write, while there is a connection."""
        if self.transport is not None:
            self.transport.write(content)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep it; asyncio calls this."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=_MOST_UNSENT)

    def answered(self, received: bytes) -> h11.Response | None:
        """Take what was read and return the answer's head once it is whole; StreamRefused."""
        try:
            self._protocol.receive_data(received)
            while True:
                event = self._protocol.next_event()
                if isinstance(event, h11.Response):
                    return event
                if not isinstance(event, h11.InformationalResponse):
                    return None
        except h11.RemoteProtocolError as error:
            raise StreamRefused(0, f"no answer of HTTP came: {error}") from None

    def rest(self) -> bytes:
        """Return what came behind the head."""
        return bytes(self._protocol.trailing_data[0])

    def fail(self, error: Exception) -> None:
        """End with an error."""
        self.fault = self.fault or error
        if self.transport is not None:
            self.transport.abort()

    def pause_writing(self) -> None:
        """Send no more for now; asyncio calls this."""
        self.is_full = True

    def resume_writing(self) -> None:
        """Go on; asyncio calls this."""
        self.is_full = False
        self.whole.has_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell that it has ended; asyncio calls this."""
        self.transport = None
        self.whole.ended(self, self.fault or exc)


class DownHalf(Half):
    """The GET, whose answer goes on for as long as the carrier is there."""

    def __init__(self, whole: Whole, *, host: str, target: str) -> None:
        super().__init__(whole, host=host, target=target)
        self._has_head = False
        self._chunks: ChunkedBody | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask; asyncio calls this."""
        super().connection_made(transport)
        self.ask("GET", [("accept", _CONTENT_TYPE), ("accept-encoding", "identity")])
        self._protocol.send(h11.EndOfMessage())

    def data_received(self, received: bytes) -> None:
        """Take what was read; asyncio calls this."""
        try:
            if not self._has_head:
                answer = self.answered(received)
                if answer is None:
                    return
                received = self._begin(answer)
            self._take(received)
        except (StreamRefused, BodyInvalid) as error:
            self.fail(error)

    def _begin(self, answer: h11.Response) -> bytes:
        if answer.status_code != 200:
            raise StreamRefused(
                answer.status_code, f"the request was answered with HTTP {answer.status_code}"
            )
        headers = {name: value.lower() for name, value in answer.headers}
        if b"content-length" in headers or headers.get(b"content-encoding", b"") not in (
            b"",
            b"identity",
        ):
            raise StreamRefused(200, "the answer is a whole body")
        self._has_head = True
        if b"transfer-encoding" in headers:
            self._chunks = ChunkedBody()
        return self.rest()

    def _take(self, received: bytes) -> None:
        if self._chunks is None:
            self.whole.received(memoryview(received))
            return
        for content in self._chunks.take(received):
            self.whole.received(content)
        if self._chunks.has_ended and self.transport is not None:
            self.transport.close()


class UpHalf(Half):
    """The POST; an answer to it is its end."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the body; asyncio calls this."""
        super().connection_made(transport)
        self.ask("POST", [("content-type", _CONTENT_TYPE), ("transfer-encoding", "chunked")])
        self.write(chunk(framed(b"")))

    def data_received(self, received: bytes) -> None:
        """Take what was read; asyncio calls this."""
        try:
            answer = self.answered(received)
        except StreamRefused as error:
            self.fail(error)
            return
        if answer is None:
            return
        if answer.status_code != 200:
            message = f"the body was answered with HTTP {answer.status_code}"
            self.fail(StreamRefused(answer.status_code, message))
        elif self.transport is not None:
            self.transport.close()
