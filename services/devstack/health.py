"""Asks whether a room serves: the gRPC health check, spoken by hand, and HTTP /readyz.

The supervisor forks, and a process that has a gRPC core in it must not (grpc/grpc issue 18321 and
kin), so the one unary call it needs is written out here: HTTP/2 (RFC 9113) with literal header
fields (RFC 7541 section 6.2.2).
"""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

_SECONDS = 2.0
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_PAYLOAD, _HEADERS, _RST_STREAM, _SETTINGS, _GOAWAY = 0x0, 0x1, 0x3, 0x4, 0x7
_END_STREAM, _END_HEADERS = 0x1, 0x4
_EMPTY_MESSAGE = b"\x00" * 5
_SERVING = b"\x08\x01"


def _literal(index: bytes, *texts: bytes) -> bytes:
    return index + b"".join(bytes((len(text),)) + text for text in texts)


_HEALTH_CHECK = b"".join(
    (
        b"\x83\x86",  # :method POST, :scheme http from the static table
        _literal(b"\x04", b"/grpc.health.v1.Health/Check"),
        _literal(b"\x01", b"localhost"),
        _literal(b"\x0f\x10", b"application/grpc"),
        _literal(b"\x00", b"te", b"trailers"),
    )
)


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return (
        len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload
    )


async def _connect(bind: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if bind.startswith("unix:"):
        return await asyncio.open_unix_connection(bind.removeprefix("unix:").removeprefix("//"))
    host, _, port = bind.rpartition(":")
    host = host.strip("[]")
    is_any = host in {"", "0.0.0.0", "::"}  # noqa: S104 - compared with, not bound to
    return await asyncio.open_connection("127.0.0.1" if is_any else host, int(port))


async def grpc_serves(bind: str) -> bool:
    """Say whether the health service at `bind` (`unix:/path` or `host:port`) answers SERVING within
    two seconds.
    """
    try:
        async with asyncio.timeout(_SECONDS):
            reader, writer = await _connect(bind)
            try:
                writer.write(_PREFACE + _frame(_SETTINGS, 0, 0))
                writer.write(_frame(_HEADERS, _END_HEADERS, 1, _HEALTH_CHECK))
                writer.write(_frame(_PAYLOAD, _END_STREAM, 1, _EMPTY_MESSAGE))
                return await _status(reader) == _SERVING
            finally:
                writer.close()
    except (OSError, EOFError, ValueError):
        return False


async def _status(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while True:
        head = await reader.readexactly(9)
        payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
        kind, flags = head[3], head[4]
        if kind == _PAYLOAD:
            body += payload
        if kind in {_RST_STREAM, _GOAWAY} or (kind in {_PAYLOAD, _HEADERS} and flags & _END_STREAM):
            return body[5:]


async def http_answer(url: str, *, bearer: str = "") -> tuple[int, bytes]:
    """GET `url` and return status and body; (0, b"") when nothing answers within two seconds."""
    parts = urlsplit(url)
    try:
        async with asyncio.timeout(_SECONDS):
            reader, writer = await _connect(parts.netloc)
            try:
                lines = [f"GET {parts.path or '/'} HTTP/1.0", f"Host: {parts.netloc}"]
                lines += [f"Authorization: Bearer {bearer}"] if bearer else []
                writer.write("\r\n".join([*lines, "", ""]).encode())
                answer = await reader.read()
            finally:
                writer.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]), body
    except (OSError, EOFError, ValueError, IndexError):
        return 0, b""
