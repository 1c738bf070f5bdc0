"""Messages on a byte stream, each in a frame.

    frame    length, 4 bytes in network order, of what follows
             kind, 1 byte: 0 for a binary message, 1 for a text (UTF-8)
             the message

Who reads says how long a message may be.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from typing import Final

from fairlead_tunnel.byte_channel import Message
from fairlead_tunnel.event_loops import require_open

LARGEST_MESSAGE: Final = 1024 * 1024 + 8
"""Of a conversation: a position and 1 MiB."""

_HEAD: Final = struct.Struct("!IB")
_BINARY: Final = 0
_TEXT: Final = 1


class FrameInvalid(ValueError):
    """What was read is no frame, or too long."""


def frame_of(message: Message) -> bytes:
    """Return a message as a frame."""
    kind, content = (_TEXT, message.encode()) if isinstance(message, str) else (_BINARY, message)
    return _HEAD.pack(len(content) + 1, kind) + content


async def read_frame(reader: asyncio.StreamReader, most: int) -> Message:
    """Read a message of at most `most` bytes; raises OSError, EOFError and ValueError."""
    length, kind = _HEAD.unpack(await reader.readexactly(_HEAD.size))
    if not 1 <= length <= most + 1 or kind not in (_BINARY, _TEXT):
        raise FrameInvalid
    content = await reader.readexactly(length - 1)
    return content if kind == _BINARY else content.decode()


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Conversation:
    """Messages of at most 1 MiB and 8 bytes both ways, over a connection that this one closes."""

    def __init__(self, *, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def receive(self) -> Message | None:
        """Return the next message, None once the other side has ended or broken the rules."""
        try:
            return await read_frame(self._reader, LARGEST_MESSAGE)
        except (OSError, EOFError, ValueError):
            return None

    async def send(self, message: Message) -> None:
        """Send a message, and wait while the other side is slow; raises OSError."""
        require_open(self._writer)
        self._writer.write(frame_of(message))
        await self._writer.drain()

    def finish(self) -> None:
        """Say no more; what was said is still delivered, and the other side may go on."""
        with contextlib.suppress(OSError):
            require_open(self._writer)
            self._writer.write_eof()

    def close(self) -> None:
        """Close the connection after what was said."""
        self._writer.close()


async def own_connection() -> tuple[Stream, Conversation]:
    """Connect this process to itself: streams for who carries bytes, and who talks through them."""
    near, far = socket.socketpair()
    try:
        streams = await asyncio.open_connection(sock=near)
        reader, writer = await asyncio.open_connection(sock=far)
    except BaseException:
        near.close()
        far.close()
        raise
    return streams, Conversation(reader=reader, writer=writer)
