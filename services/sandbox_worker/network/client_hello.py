"""Reads the server name out of a TLS ClientHello (RFC 8446 section 4.1.2, RFC 6066 section 3)
without doing I/O.

Strict where two readers could disagree: a name that is there twice, lengths that do not add up and
bytes behind the hello within its record are errors.
"""

from __future__ import annotations

from dataclasses import dataclass

HANDSHAKE = 22
LONGEST_HELLO = 32 * 1024
_CLIENT_HELLO = b"\x01"
_SERVER_NAME = 0
_HOST_NAME = 0
_LONGEST_RECORD = 1 << 14
_MOST_RECORDS = 16


class HelloInvalid(Exception):
    """The bytes are no ClientHello."""


@dataclass(frozen=True, slots=True)
class Hello:
    """A whole ClientHello; `server_name` as it was sent, None without the extension."""

    server_name: str | None


def read_hello(received: bytes) -> Hello | None:
    """Return the hello that `received` begins with, None while it is not all there.

    Raises HelloInvalid, also for one of more than 32 KiB or 16 records: reading it again for each
    byte that arrives stays cheap.
    """
    message = bytearray()
    rest = memoryview(received)
    for _ in range(_MOST_RECORDS):
        if not rest:
            return None
        if rest[0] != HANDSHAKE or (len(rest) > 1 and rest[1] != 3):
            raise HelloInvalid
        if len(rest) < 5:
            return None
        length = int.from_bytes(rest[3:5], "big")
        if not 0 < length <= _LONGEST_RECORD:
            raise HelloInvalid
        message += rest[5 : 5 + length]
        if message[:1] not in (b"", _CLIENT_HELLO):
            raise HelloInvalid
        if len(message) >= 4:
            size = int.from_bytes(message[1:4], "big")
            if size > LONGEST_HELLO or len(message) > 4 + size:
                raise HelloInvalid
            if len(message) == 4 + size:
                return Hello(server_name=_server_name(_Reader(bytes(message[4:]))))
        if len(rest) < 5 + length:
            return None
        rest = rest[5 + length :]
    raise HelloInvalid


class _Reader:
    """Takes vectors off a byte string; raises HelloInvalid where it ends too early."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._content)

    def take(self, count: int) -> bytes:
        taken = self._content[self._at : self._at + count]
        if len(taken) != count:
            raise HelloInvalid
        self._at += count
        return taken

    def number(self, width: int) -> int:
        return int.from_bytes(self.take(width), "big")

    def vector(self, width: int) -> bytes:
        return self.take(self.number(width))


def _server_name(hello: _Reader) -> str | None:
    hello.take(2 + 32)
    hello.vector(1)
    hello.vector(2)
    hello.vector(1)
    if not hello:
        return None
    extensions = _Reader(hello.vector(2))
    if hello:
        raise HelloInvalid
    found: str | None = None
    while extensions:
        kind = extensions.number(2)
        content = extensions.vector(2)
        if kind == _SERVER_NAME:
            if found is not None:
                raise HelloInvalid
            found = _host_name(_Reader(content))
    return found


def _host_name(content: _Reader) -> str:
    names = _Reader(content.vector(2))
    if content or names.number(1) != _HOST_NAME:
        raise HelloInvalid
    name = names.vector(2)
    if names or not name:
        raise HelloInvalid
    try:
        return name.decode("ascii")
    except UnicodeDecodeError:
        raise HelloInvalid from None
