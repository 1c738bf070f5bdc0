"""The journal's frames, without I/O: encode, decode, and find where a torn tail begins.

A frame is a header (length and CRC-32 of the body, little-endian 32 bits each) and a body: kind (8
bits), sequence (64), nanoseconds since the epoch (64, signed), content. The terminal frame repeats
the last sequence.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from sandbox_worker.execution import Exit, ExitReason, OutputRecord, Stream

_HEADER = struct.Struct("<II")
_BODY = struct.Struct("<BQq")
_TERMINAL = 3

FRAME_BYTES = _HEADER.size + _BODY.size
"""Bytes that a frame adds to its content."""

LARGEST_FRAME = FRAME_BYTES + 64 * 1024


@dataclass(frozen=True, slots=True)
class Frame:
    """One decoded frame: a record, or the exit; `end` is the offset after it."""

    entry: OutputRecord | Exit
    end: int


def encode_record(record: OutputRecord) -> bytes:
    """Return the frame of an output record."""
    return _frame(record.stream, record.sequence, record.written_at, record.content)


def encode_exit(exit_: Exit) -> bytes:
    """Return the terminal frame."""
    content = {"reason": exit_.reason.value, "code": exit_.code, "signal": exit_.signal}
    written_at = round(exit_.ended_at.timestamp() * 1e9)
    return _frame(_TERMINAL, exit_.last_sequence, written_at, json.dumps(content).encode())


def frames(buffer: bytes) -> Iterator[Frame]:
    """Yield the frames from the start of `buffer` until one is cut short or damaged."""
    offset = 0
    while len(buffer) - offset >= FRAME_BYTES:
        length, checksum = _HEADER.unpack_from(buffer, offset)
        start = offset + _HEADER.size
        if not _BODY.size <= length <= LARGEST_FRAME or len(buffer) - start < length:
            return
        body = memoryview(buffer)[start : start + length]
        if zlib.crc32(body) != checksum:
            return
        entry = _entry(body)
        if entry is None:
            return
        offset = start + length
        yield Frame(entry=entry, end=offset)


def _frame(kind: int, sequence: int, written_at: int, content: bytes) -> bytes:
    body = _BODY.pack(kind, sequence, written_at) + content
    return _HEADER.pack(len(body), zlib.crc32(body)) + body


def _entry(body: memoryview) -> OutputRecord | Exit | None:
    kind, sequence, written_at = _BODY.unpack_from(body)
    content = bytes(body[_BODY.size :])
    if kind in (Stream.STDOUT, Stream.STDERR):
        return OutputRecord(
            sequence=sequence, stream=Stream(kind), content=content, written_at=written_at
        )
    if kind != _TERMINAL:
        return None
    try:
        fields = json.loads(content)
        return Exit(
            reason=ExitReason(fields["reason"]),
            code=fields["code"],
            signal=fields["signal"],
            last_sequence=sequence,
            ended_at=datetime.fromtimestamp(written_at / 1e9, UTC),
        )
    except (ValueError, KeyError, TypeError):
        return None
