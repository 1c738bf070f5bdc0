"""One byte stream for all that a child and its caller say, where no descriptors can be passed.

A piece is a kind (1 byte), a stream (4 bytes) and a length (4 bytes), both little-endian, and so
many bytes. Whatever is ready goes out in one write, so that many pieces travel as one.

    GREETING  first from either side; JSON: the caller's `Start`, or the child's `Greeting`
    CONTROL   a packet of control; with a stream other than 0 it comes with that end of a lane
    BYTES     bytes of a lane
    END       its writer has closed the lane

Stream 1 is the lane that a child is born with. The caller numbers the others as it makes them.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from membrane.errors import ProtocolError

GREETING: Final = 0
CONTROL: Final = 1
BYTES: Final = 2
END: Final = 3

FIRST_LANE: Final = 1
LARGEST_PIECE: Final = 1 << 16
WIRE: Final = 2
"""The version of all of it: frames, operations and values as well."""

_HEADER: Final = struct.Struct("<BII")
HEADER_BYTES: Final = _HEADER.size


class Start(msgspec.Struct, frozen=True):
    """What a caller wants of a child: directories to find modules in, and modules to import ahead;
    `isolation` is only told on. `numpy` says on both sides that arrays can be had by value.
    """

    wire: int
    path: list[str]
    preload: list[str]
    isolation: str
    numpy: bool


class Greeting(msgspec.Struct, frozen=True):
    """What a child says of itself: its process id and version of Python where it lives; or why it
    cannot be one (`unsupported`), or could not import what it was to (`unprepared`).
    """

    wire: int = 0
    pid: int = 0
    python: str = ""
    numpy: bool = False
    unsupported: str = ""
    unprepared: str = ""


def piece(kind: int, stream: int, content: bytes | bytearray | memoryview) -> bytes:
    """Write a piece."""
    return _HEADER.pack(kind, stream, len(content)) + content


def greeting(message: Start | Greeting) -> bytes:
    """Write the first piece of a side."""
    return piece(GREETING, 0, msgspec.json.encode(message))


def read_start(content: bytes) -> Start:
    """Read a caller's greeting; raises ProtocolError."""
    try:
        return msgspec.json.decode(content, type=Start)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"a start cannot be read: {error}") from None


def read_greeting(content: bytes) -> Greeting:
    """Read a child's greeting, which may be hostile; raises ProtocolError."""
    try:
        return msgspec.json.decode(content, type=Greeting)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"a greeting cannot be read: {error}") from None


class Pieces:
    """What has come in and is not taken yet: at most what one read brings, and one piece."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._at = 0

    def add(self, content: bytes) -> None:
        """Take what was read."""
        del self._held[: self._at]
        self._at = 0
        self._held += content

    def rest(self) -> bytes:
        """Give what is not taken yet."""
        return bytes(memoryview(self._held)[self._at :])

    def next(self) -> tuple[int, int, bytes] | None:
        """Give the next whole piece: kind, stream and content; raises ProtocolError."""
        begins = self._at + HEADER_BYTES
        if len(self._held) < begins:
            return None
        kind, stream, size = _HEADER.unpack_from(self._held, self._at)
        if kind > END or size > LARGEST_PIECE:
            raise ProtocolError(f"a piece of kind {kind} and {size} bytes")
        if len(self._held) < begins + size:
            return None
        self._at = begins + size
        return kind, stream, bytes(memoryview(self._held)[begins : self._at])
