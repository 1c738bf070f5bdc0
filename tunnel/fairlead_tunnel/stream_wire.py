"""The bodies of a carrier over two requests: messages, each behind its length, and their chunks.

body    = (length u32 ‖ message)*        a message is one of `message_stream`; an empty one says
                                         only that its sender is there
chunked = (size in hexadecimal CRLF ‖ size bytes ‖ CRLF)* ‖ 0 CRLF ‖ CRLF      RFC 9112, 7.1
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto
from typing import Final

from fairlead_tunnel.frames import Content
from fairlead_tunnel.message_stream import MOST_MESSAGE_BYTES

STREAM_PATH: Final = "/tunnel/v1/stream/"
"""The name of the two requests follows: 32 hexadecimal digits of the client's making."""
NAME_BYTES: Final = 16
SIGN_SECONDS: Final = 20.0
"""How often either side says that it is there."""
SILENT_SECONDS: Final = 60.0
"""Who has said nothing for so long is gone."""

_LENGTH: Final = 4
_MOST_LINE: Final = 4096
"""A size with its extensions, or a line of a trailer, is not longer."""


class BodyInvalid(ConnectionError):
    """A body that is none of a carrier."""


def framed(message: bytes) -> bytes:
    """Return a message behind its length."""
    return len(message).to_bytes(_LENGTH, "big") + message


def chunk(content: bytes) -> bytes:
    """Return one chunk of a body."""
    return b"%x\r\n%b\r\n" % (len(content), content)


LAST_CHUNK: Final = b"0\r\n\r\n"


class MessageReader:
    """Finds the messages of a body; of one that has not come whole its pieces wait here."""

    def __init__(self) -> None:
        self._pieces: list[memoryview] = []
        self._size = 0
        self._length = -1

    def take(self, content: Content) -> Iterator[bytes]:
        """Take what came and give the messages that are whole now.

        BodyInvalid: one is longer than any.
        """
        left = memoryview(content)
        while left:
            wanted = self._length if self._length >= 0 else _LENGTH
            piece = left[: wanted - self._size]
            left = left[len(piece) :]
            self._pieces.append(piece)
            self._size += len(piece)
            if self._size < wanted:
                return
            whole = b"".join(self._pieces)
            self._pieces = []
            self._size = 0
            if self._length >= 0:
                self._length = -1
                yield whole
                continue
            self._length = int.from_bytes(whole, "big")
            if self._length > MOST_MESSAGE_BYTES:
                raise BodyInvalid("a message is longer than any of a carrier")
            if not self._length:
                self._length = -1
                yield b""


class _Part(Enum):
    SIZE = auto()
    CONTENT = auto()
    CONTENT_END = auto()
    TRAILER = auto()
    END = auto()


class ChunkedBody:
    """Takes the chunks off a body; what a hop cut or joined makes no difference."""

    def __init__(self) -> None:
        self._part = _Part.SIZE
        self._line = bytearray()
        self._left = 0

    @property
    def has_ended(self) -> bool:
        """Say whether the last chunk has come."""
        return self._part is _Part.END

    def take(self, received: bytes) -> Iterator[memoryview]:
        """Give the content of what was received, in views of it; BodyInvalid: it is no chunks."""
        view = memoryview(received)
        place = 0
        while place < len(view) and self._part is not _Part.END:
            if self._part is _Part.CONTENT:
                content = view[place : place + self._left]
                place += len(content)
                self._left -= len(content)
                if not self._left:
                    self._part = _Part.CONTENT_END
                yield content
            else:
                end = received.find(b"\n", place) + 1
                self._line += view[place : end or len(view)]
                place = end or len(view)
                if len(self._line) > _MOST_LINE:
                    raise BodyInvalid("a line between chunks is too long")
                if end:
                    self._on_line(bytes(self._line).strip())
                    self._line.clear()

    def _on_line(self, line: bytes) -> None:
        match self._part:
            case _Part.SIZE:
                try:
                    self._left = int(line.partition(b";")[0], 16)
                except ValueError:
                    raise BodyInvalid("a chunk has no size") from None
                if self._left < 0:
                    raise BodyInvalid("a chunk has no size")
                self._part = _Part.CONTENT if self._left else _Part.TRAILER
            case _Part.CONTENT_END:
                if line:
                    raise BodyInvalid("a chunk is longer than its size")
                self._part = _Part.SIZE
            case _:
                if not line:
                    self._part = _Part.END
