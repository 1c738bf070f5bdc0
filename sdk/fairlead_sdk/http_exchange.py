"""One connection to a front door, one exchange at a time; h11 says what the bytes mean."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import TYPE_CHECKING

import h11

from fairlead_sdk.errors import MeshUnavailable
from fairlead_sdk.http_errors import broken, silent

if TYPE_CHECKING:
    from fairlead_sdk.http_wire import Content

_HEAD_BYTES = 256 * 1024
_READ_BYTES = 256 * 1024
# How long an answer may take that says why the rest of a request is not wanted, and the end of one
# whose reader left after its last line.
_LAST_WORDS_SECONDS = 1.0
_TRACE = b"traceresponse"


class Connection:
    """A connection, and what was said on it."""

    def __init__(
        self, *, url: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.idle_since = 0.0
        self.is_stale = False
        """Whether it ended, without silence, before anything of an answer came."""
        self._url = url
        self._reader = reader
        self._writer = writer
        self._protocol = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_BYTES)
        self._has_answered = False
        self._traceresponse = ""

    @property
    def is_usable(self) -> bool:
        """Whether the other end has not closed it yet, as far as one can know."""
        return not (self._reader.at_eof() or self._writer.is_closing())

    def close(self) -> None:
        """Close it, whatever is under way."""
        self._writer.close()

    def drop_received(self) -> bool:
        """Drop what has come of an answer; returns whether that was the rest of it."""
        try:
            while not self._is_whole and self._protocol.next_event() is not h11.NEED_DATA:
                continue
        except h11.RemoteProtocolError:
            return False
        return self._is_whole

    async def read_out(self) -> bool:
        """Read the rest of an answer, if that is soon there; returns whether it was."""
        try:
            async with asyncio.timeout(_LAST_WORDS_SECONDS):
                while await self.piece(None):
                    continue
        except (MeshUnavailable, TimeoutError):
            return False
        return True

    def begin_again(self) -> bool:
        """Get ready for another exchange; returns whether there can be one."""
        if self._protocol.trailing_data != (b"", False):
            return False
        try:
            self._protocol.start_next_cycle()
        except h11.LocalProtocolError:
            return False
        return True

    async def ask(
        self,
        method: str,
        target: str,
        fields: Mapping[str, str],
        content: Content,
        seconds: float | None,
    ) -> PlainAnswer:
        """Send a request and read the head of its answer, which may come before the end of it.

        Raises `MeshUnavailable`, and what `content` raises.
        """
        self._has_answered = False
        try:
            async with asyncio.timeout(seconds):
                request = h11.Request(
                    method=method,
                    target=target,
                    headers=[*fields.items(), *_framing(method, content)],
                )
                self._send(request)
                status = await self._asked(content, seconds)
        except TimeoutError:
            raise silent(self._url) from None
        except (OSError, h11.ProtocolError) as error:
            self.is_stale = not self._has_answered
            raise broken(self._url) from error
        return PlainAnswer(
            connection=self, status=status, traceresponse=self._traceresponse, seconds=seconds
        )

    async def piece(self, seconds: float | None) -> bytes:
        """Give what comes next of a body; nothing at its end. Raises `MeshUnavailable`."""
        try:
            while not self._is_whole:
                event = await self._event(seconds)
                if isinstance(event, h11.Data) and event.data:
                    return bytes(event.data)
        except TimeoutError:
            raise silent(self._url) from None
        except (OSError, h11.ProtocolError) as error:
            raise broken(self._url) from error
        return b""

    async def _asked(self, content: Content, seconds: float | None) -> int:
        if content is None or isinstance(content, bytes):
            if content:
                self._send(h11.Data(data=content))
            self._send(h11.EndOfMessage())
            await self._writer.drain()
            return await self._status(seconds)
        sending = asyncio.ensure_future(self._send_pieces(content))
        answering = asyncio.ensure_future(self._status(seconds))
        try:
            await asyncio.wait((sending, answering), return_when=asyncio.FIRST_COMPLETED)
            if not answering.done() and isinstance(sending.exception(), OSError):
                await asyncio.wait((answering,), timeout=_LAST_WORDS_SECONDS)
            if not answering.done():
                sending.result()
            return await answering
        finally:
            for task in (sending, answering):
                task.cancel()
            await asyncio.gather(sending, answering, return_exceptions=True)

    async def _send_pieces(self, content: AsyncIterator[bytes]) -> None:
        async for piece in content:
            if piece:
                self._send(h11.Data(data=piece))
                await self._writer.drain()
        self._send(h11.EndOfMessage())
        await self._writer.drain()

    def _send(self, event: h11.Event) -> None:
        self._writer.write(self._protocol.send(event) or b"")

    async def _status(self, seconds: float | None) -> int:
        while not isinstance(event := await self._event(seconds), h11.Response):
            continue  # an answer in between, such as 100
        self._traceresponse = next(
            (value.decode("ascii", "replace") for name, value in event.headers if name == _TRACE),
            "",
        )
        return event.status_code

    async def _event(self, seconds: float | None) -> object:
        while (event := self._protocol.next_event()) is h11.NEED_DATA:
            async with asyncio.timeout(seconds):
                received = await self._reader.read(_READ_BYTES)
            self._has_answered = self._has_answered or bool(received)
            self._protocol.receive_data(received)
        return event

    @property
    def _is_whole(self) -> bool:
        return self._protocol.their_state in {h11.DONE, h11.MUST_CLOSE, h11.CLOSED}


class PlainAnswer:
    """An answer and the body that follows on the connection."""

    def __init__(
        self, *, connection: Connection, status: int, traceresponse: str, seconds: float | None
    ) -> None:
        self.status = status
        self.traceresponse = traceresponse
        self._connection = connection
        self._seconds = seconds

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Give the body as it comes, from where it was left; raises `MeshUnavailable` when it ends
        too early.
        """
        while piece := await self._connection.piece(self._seconds):
            yield piece


def _framing(method: str, content: Content) -> list[tuple[str, str]]:
    if isinstance(content, bytes):
        return [("Content-Length", str(len(content)))]
    if content is not None:
        return [("Transfer-Encoding", "chunked")]
    return [] if method == "GET" else [("Content-Length", "0")]
