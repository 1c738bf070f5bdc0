"""Reads answers of HTTP/1.1 (RFC 9112): as much of it as git servers use, bounded everywhere."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from workspace_provisioner.origins import OriginFailed, OriginFault

_MOST_HEADERS = 100
_PIECE_BYTES = 64 * 1024
_MOST_LEFT_BYTES = 64 * 1024


class Answer:
    """Status, headers by lower-case name, and a body that is read as it comes."""

    def __init__(
        self, *, status: int, headers: Mapping[str, str], stays: bool, reader: asyncio.StreamReader
    ) -> None:
        self.status = status
        self.headers = headers
        self._stays = stays
        self._reader = reader
        self._kept = bytearray()
        self._chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        self._left: int | None = None if self._chunked else _length(headers)
        self._until_close = not self._chunked and self._left is None
        self._ended = self._left == 0

    async def read_exactly(self, count: int) -> bytes:
        """Return the next `count` bytes of the body; raises asyncio.IncompleteReadError."""
        while len(self._kept) < count:
            piece = await self._piece()
            if not piece:
                raise asyncio.IncompleteReadError(bytes(self._kept), count)
            self._kept += piece
        found = bytes(self._kept[:count])
        del self._kept[:count]
        return found

    async def finish(self) -> bool:
        """Read what is left, if it is little; returns whether the connection can be used again."""
        left = 0
        while not self._ended and left <= _MOST_LEFT_BYTES:
            left += len(await self._piece())
        return self._ended and self._stays and not self._until_close

    async def _piece(self) -> bytes:
        if self._ended:
            return b""
        if self._until_close:
            piece = await self._reader.read(_PIECE_BYTES)
            self._ended = not piece
            return piece
        if self._left is None or (self._chunked and self._left == 0):
            await self._next_chunk()
            if self._ended:
                return b""
        left = self._left or 0
        piece = await self._reader.read(min(left, _PIECE_BYTES))
        if not piece:
            raise asyncio.IncompleteReadError(b"", left)
        self._left = left - len(piece)
        if self._left == 0:
            if self._chunked:
                await self._reader.readexactly(2)
            else:
                self._ended = True
        return piece

    async def _next_chunk(self) -> None:
        text = (await _line(self._reader)).partition(b";")[0].strip()
        try:
            self._left = int(text, 16)
        except ValueError:
            raise _malformed() from None
        if self._left < 0:
            raise _malformed()
        if self._left == 0:
            for _ in range(_MOST_HEADERS):
                if not await _line(self._reader):
                    self._ended = True
                    return
            raise _malformed()


async def read_answer(reader: asyncio.StreamReader) -> Answer:
    """Read status and headers; interim answers are passed over. Raises OriginFailed."""
    for _ in range(_MOST_HEADERS):
        version, _, rest = (await _line(reader)).partition(b" ")
        text = rest[:3]
        if version not in (b"HTTP/1.1", b"HTTP/1.0") or not text.isdigit():
            raise _malformed()
        headers = await _headers(reader)
        status = int(text)
        if status >= 200:
            asked = headers.get("connection", "").lower()
            stays = "close" not in asked and (version == b"HTTP/1.1" or "keep-alive" in asked)
            return Answer(status=status, headers=headers, stays=stays, reader=reader)
    raise _malformed()


async def _headers(reader: asyncio.StreamReader) -> dict[str, str]:
    found: dict[str, str] = {}
    for _ in range(_MOST_HEADERS):
        line = await _line(reader)
        if not line:
            return found
        name, colon, value = line.partition(b":")
        if not colon:
            raise _malformed()
        found[name.decode("latin-1").strip().lower()] = value.decode("latin-1").strip()
    raise _malformed()


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        return (await reader.readuntil(b"\n")).rstrip(b"\r\n")
    except asyncio.LimitOverrunError:
        raise _malformed() from None


def _length(headers: Mapping[str, str]) -> int | None:
    text = headers.get("content-length")
    if text is None:
        return None
    if not text.isdecimal() or len(text) > 15:
        raise _malformed()
    return int(text)


def _malformed() -> OriginFailed:
    return OriginFailed(OriginFault.MALFORMED, "it does not speak HTTP as git needs it")
