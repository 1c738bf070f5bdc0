"""The journal's frames, without I/O: encode, decode, and find where a torn tail begins.

A frame is a header (length and CRC-32 of the body, little-endian 32 bits each) and a body: kind (8
bits), sequence (64), nanoseconds since the epoch (64, signed), content. Frames of output lie in
segments; the description of an execution and its terminal frame lie in its head.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum

from sandbox_worker.execution import (
    MOST_RECORD_BYTES,
    Exit,
    ExitReason,
    Gap,
    GapReason,
    OutputRecord,
    Stream,
    Usage,
)

_HEADER = struct.Struct("<II")
_BODY = struct.Struct("<BQq")

FRAME_BYTES = _HEADER.size + _BODY.size
"""Bytes that a frame adds to its content."""

LARGEST_FRAME = FRAME_BYTES + MOST_RECORD_BYTES


class _Kind(IntEnum):
    """Kinds of frames beside the two of output, whose numbers are those of the streams."""

    TERMINAL = 3
    DESCRIPTION = 4


@dataclass(frozen=True, slots=True)
class Description:
    """What an execution was started as, in JSON."""

    content: bytes


@dataclass(frozen=True, slots=True)
class Ending:
    """An exit, with the bytes of output before it, and which of them the disk did not take."""

    exit: Exit
    size: int
    lost: tuple[Gap, ...] = ()


Entry = OutputRecord | Description | Ending


@dataclass(frozen=True, slots=True)
class Frame:
    """One decoded frame; `end` is the offset after it."""

    entry: Entry
    end: int


def encode_record(record: OutputRecord) -> tuple[bytes, bytes]:
    """Return the frame of an output record in two parts, so that its content is not copied."""
    return _frame(record.stream, record.sequence, record.written_at, record.content)


def encode_description(description: Description) -> bytes:
    """Return the frame that a head begins with."""
    return b"".join(_frame(_Kind.DESCRIPTION, 0, 0, description.content))


def encode_ending(ending: Ending) -> bytes:
    """Return the terminal frame."""
    exit_ = ending.exit
    content: dict[str, object] = {
        "reason": exit_.reason.value,
        "code": exit_.code,
        "signal": exit_.signal,
        "size": ending.size,
    }
    if exit_.usage is not None:
        content["cpu_seconds"] = exit_.usage.cpu_seconds
        content["peak_memory_bytes"] = exit_.usage.peak_memory_bytes
    if ending.lost:
        content["lost"] = [[gap.first, gap.last, gap.size, gap.reason.value] for gap in ending.lost]
    written_at = round(exit_.ended_at.timestamp() * 1e9)
    return b"".join(
        _frame(_Kind.TERMINAL, exit_.last_sequence, written_at, json.dumps(content).encode())
    )


def frames(buffer: bytes) -> Iterator[Frame]:
    """Yield the frames from the start of `buffer` until one is cut short or damaged."""
    view = memoryview(buffer)
    offset = 0
    while len(view) - offset >= FRAME_BYTES:
        length, checksum = _HEADER.unpack_from(view, offset)
        start = offset + _HEADER.size
        if not _BODY.size <= length <= LARGEST_FRAME or len(view) - start < length:
            return
        body = view[start : start + length]
        if zlib.crc32(body) != checksum:
            return
        entry = _entry(body)
        if entry is None:
            return
        offset = start + length
        yield Frame(entry=entry, end=offset)


def _frame(kind: int, sequence: int, written_at: int, content: bytes) -> tuple[bytes, bytes]:
    body = _BODY.pack(kind, sequence, written_at)
    checksum = zlib.crc32(content, zlib.crc32(body))
    return _HEADER.pack(len(body) + len(content), checksum) + body, content


def _entry(body: memoryview) -> Entry | None:
    kind, sequence, written_at = _BODY.unpack_from(body)
    content = bytes(body[_BODY.size :])
    match kind:
        case Stream.STDOUT | Stream.STDERR:
            return OutputRecord(
                sequence=sequence, stream=Stream(kind), content=content, written_at=written_at
            )
        case _Kind.TERMINAL:
            return _ending(sequence, written_at, content)
        case _Kind.DESCRIPTION:
            return Description(content)
        case _:
            return None


def _ending(sequence: int, written_at: int, content: bytes) -> Ending | None:
    try:
        fields = json.loads(content)
        usage = None
        if "cpu_seconds" in fields:
            usage = Usage(
                cpu_seconds=fields["cpu_seconds"], peak_memory_bytes=fields["peak_memory_bytes"]
            )
        exit_ = Exit(
            reason=ExitReason(fields["reason"]),
            code=fields["code"],
            signal=fields["signal"],
            last_sequence=sequence,
            ended_at=datetime.fromtimestamp(written_at / 1e9, UTC),
            usage=usage,
        )
        lost = tuple(
            Gap(first=first, last=last, size=size, reason=GapReason(reason))
            for first, last, size, reason in fields.get("lost", ())
        )
        return Ending(exit=exit_, size=fields["size"], lost=lost)
    except (ValueError, KeyError, TypeError):
        return None
