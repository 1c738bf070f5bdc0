"""The frames of a tunnel and their bytes, `fairlead.tunnel.v1`.

All numbers are big-endian and unsigned. A *batch* is what is sealed as one record:

    batch     = id u64 ‖ lowest u64 ‖ frame*

`id` counts a direction's batches from 1 over all of its carriers; no id is used twice. All batches
below `lowest` are settled: acknowledged, or what they carried was sent again. A frame is a type and

    type  name      body                                                   repeated when lost
    1     OPEN      channel u32 ‖ n u8 ‖ target, n bytes of UTF-8          until acknowledged
    2     ACCEPTED  channel u32                                            yes
    3     SEGMENT      channel u32 ‖ offset u64 ‖ n u32 ‖ n bytes             yes, at its offset
    4     FIN       channel u32 ‖ length u64                               yes
    5     RESET     channel u32 ‖ length u64 ‖ reason ‖ message            yes
    6     WINDOW    channel u32 ‖ limit u64                                the newest limit
    7     ACK       n u8 ‖ (first u64 ‖ last u64) * n                      no: the next one says all
    8     ALIVE     n u8 ‖ (first u32 ‖ last u32) * n                      no: the next one says all
    9     CLOSE     reason ‖ message                                       no
    10    PING      nothing                                                yes

    reason    = n u8 ‖ n bytes, lower snake case, 1 to 64
    message   = n u16 ‖ n bytes of UTF-8, at most 1024

A batch has at most one ACK and one ALIVE. The client numbers its channels one after the other, from
1 to 2^32 - 1; WINDOW with channel 0 is about the whole tunnel. `offset`, `length`
and `limit` count the bytes of one direction of a channel from 0, so that bytes that are sent again
are the same whatever was coalesced (as in QUIC: RFC 9000, sections 2.2 and 4). `first` and `last`
are inclusive.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

PROTOCOL: Final = "fairlead.tunnel.v1"
BATCH_HEADER_BYTES: Final = 16
SEGMENT_HEADER_BYTES: Final = 17
MAX_TARGET_BYTES: Final = 255
MAX_REASON_BYTES: Final = 64
MAX_MESSAGE_BYTES: Final = 1024
MAX_RANGES: Final = 64
MAX_CHANNEL: Final = 2**32 - 1
MAX_OFFSET: Final = 2**63 - 1

_BATCH = struct.Struct(">QQ")
_CHANNEL = struct.Struct(">BI")
_OPEN = struct.Struct(">BIB")
_SEGMENT = struct.Struct(">BIQI")
_COUNTED = struct.Struct(">BIQ")
_BATCHES = struct.Struct(">QQ")
_CARRIERS = struct.Struct(">II")
_U16 = struct.Struct(">H")
_REASON = re.compile(rb"[a-z][a-z0-9_]{0,63}")

Content: TypeAlias = bytes | memoryview
Range: TypeAlias = tuple[int, int]


class FrameInvalid(ValueError):
    """Bytes that are no batch of frames: a fault of the peer, or of who sealed them."""


@dataclass(frozen=True, slots=True)
class Open:
    """The client wants a channel to `target`; the same one as often as it is sent."""

    channel: int
    target: str


@dataclass(frozen=True, slots=True)
class Accepted:
    """The target is connected."""

    channel: int


class Segment(NamedTuple):
    """Bytes of a channel, from `offset` on; at least one. A tuple, as there are so many."""

    channel: int
    offset: int
    content: Content


@dataclass(frozen=True, slots=True)
class Fin:
    """The sender's bytes end at `length`; the other direction goes on."""

    channel: int
    length: int


@dataclass(frozen=True, slots=True)
class Reset:
    """The sender gave the channel up in both directions, after `length` bytes of its own."""

    channel: int
    length: int
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Window:
    """The sender takes bytes up to `limit` in this channel, or, channel 0, in all of them."""

    channel: int
    limit: int


@dataclass(frozen=True, slots=True)
class Ack:
    """Batches that have arrived, as ranges with both ends, lowest first."""

    ranges: Sequence[Range]


@dataclass(frozen=True, slots=True)
class Alive:
    """Carriers that the client has; what others below the last had under way is lost."""

    ranges: Sequence[Range]


@dataclass(frozen=True, slots=True)
class Close:
    """The sender has ended the tunnel with all of its channels."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Ping:
    """Asks for an acknowledgement and says nothing else."""


Frame: TypeAlias = Open | Accepted | Segment | Fin | Reset | Window | Ack | Alive | Close | Ping


def batch_header(batch_id: int, lowest: int) -> bytes:
    """Return the 16 bytes in front of a batch's frames."""
    return _BATCH.pack(batch_id, lowest)


def segment_header(channel: int, offset: int, length: int) -> bytes:
    """Return what stands in front of the `length` bytes of a SEGMENT frame."""
    return _SEGMENT.pack(3, channel, offset, length)


def encode(frame: Frame) -> bytes:
    """Return the bytes of one frame; struct.error when a number does not fit."""
    match frame:
        case Ack(ranges):
            return bytes((7, len(ranges))) + b"".join([_BATCHES.pack(*each) for each in ranges])
        case Window(channel, limit):
            return _COUNTED.pack(6, channel, limit)
        case Open(channel, target):
            named = target.encode()
            return _OPEN.pack(1, channel, len(named)) + named
        case Accepted(channel):
            return _CHANNEL.pack(2, channel)
        case Segment(channel, offset, content):
            return segment_header(channel, offset, len(content)) + bytes(content)
        case Fin(channel, length):
            return _COUNTED.pack(4, channel, length)
        case Reset(channel, length, reason, message):
            return _COUNTED.pack(5, channel, length) + encode_sentence(reason, message)
        case Alive(ranges):
            return bytes((8, len(ranges))) + b"".join(_CARRIERS.pack(*each) for each in ranges)
        case Close(reason, message):
            return b"\x09" + encode_sentence(reason, message)
        case Ping():
            return b"\x0a"


def decode(batch: Content) -> tuple[int, int, list[Frame]]:
    """Return a batch's id, its `lowest` and its frames; contents are views of `batch`.

    FrameInvalid: anything of it is not as the table says; then nothing of it counts.
    """
    try:
        batch_id, lowest = _BATCH.unpack_from(batch)
        frames = _frames(memoryview(batch))
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise FrameInvalid("the batch is cut short or not text where it should be") from error
    if not 1 <= lowest <= batch_id:
        raise FrameInvalid("a batch's numbers are in the wrong order")
    return batch_id, lowest, frames


def _frames(batch: memoryview) -> list[Frame]:
    found: list[Frame] = []
    place, end = BATCH_HEADER_BYTES, len(batch)
    while place < end:
        kind = batch[place]
        if kind == 3:
            _, channel, offset, length = _SEGMENT.unpack_from(batch, place)
            place += SEGMENT_HEADER_BYTES
            _require(0 < length <= end - place and offset + length <= MAX_OFFSET)
            found.append(Segment(_channel(channel), offset, batch[place : place + length]))
            place += length
        elif kind in (4, 5, 6):
            _, channel, count = _COUNTED.unpack_from(batch, place)
            place += _COUNTED.size
            _require(count <= MAX_OFFSET)
            if kind == 4:
                found.append(Fin(_channel(channel), count))
            elif kind == 6:
                found.append(Window(channel, count))
            else:
                reason, message, place = decode_sentence(batch, place)
                found.append(Reset(_channel(channel), count, reason, message))
        elif kind in (7, 8):
            ranges, place = _read_ranges(batch, place + 1, _BATCHES if kind == 7 else _CARRIERS)
            found.append(Ack(ranges) if kind == 7 else Alive(ranges))
        elif kind == 1:
            _, channel, length = _OPEN.unpack_from(batch, place)
            place += _OPEN.size
            found.append(Open(_channel(channel), str(_bytes(batch, place, length), "utf-8")))
            place += length
        elif kind == 2:
            found.append(Accepted(_channel(_CHANNEL.unpack_from(batch, place)[1])))
            place += _CHANNEL.size
        elif kind == 9:
            reason, message, place = decode_sentence(batch, place + 1)
            found.append(Close(reason, message))
        else:
            _require(kind == 10)
            place += 1
            found.append(Ping())
    return found


def _require(holds: bool) -> None:
    if not holds:
        raise FrameInvalid("a frame is not as the protocol says")


def _channel(channel: int) -> int:
    _require(channel > 0)
    return channel


def _bytes(batch: memoryview, place: int, length: int) -> memoryview:
    _require(length <= len(batch) - place)
    return batch[place : place + length]


def encode_sentence(reason: str, message: str) -> bytes:
    """Return a reason and a sentence; what is too long of the sentence is left out.

    ValueError: the reason is not lower snake case of 1 to 64 characters.
    """
    said = message.encode()[:MAX_MESSAGE_BYTES].decode(errors="ignore").encode()
    named = reason.encode()
    if not _REASON.fullmatch(named):
        raise ValueError("a reason is lower snake case, 1 to 64 characters")
    return bytes((len(named),)) + named + _U16.pack(len(said)) + said


def decode_sentence(batch: memoryview, place: int) -> tuple[str, str, int]:
    """Return the reason and the sentence that begin at `place`, and where they end.

    FrameInvalid, IndexError, struct.error, UnicodeDecodeError: there are none.
    """
    named = bytes(_bytes(batch, place + 1, batch[place]))
    _require(_REASON.fullmatch(named) is not None)
    place += 1 + len(named)
    (length,) = _U16.unpack_from(batch, place)
    _require(length <= MAX_MESSAGE_BYTES)
    said = _bytes(batch, place + 2, length)
    return named.decode(), str(said, "utf-8"), place + 2 + length


def _read_ranges(
    batch: memoryview, place: int, shape: struct.Struct
) -> tuple[tuple[Range, ...], int]:
    count = batch[place]
    _require(count <= MAX_RANGES)
    content = _bytes(batch, place + 1, count * shape.size)
    ranges: tuple[Range, ...] = tuple(shape.iter_unpack(content))
    above = 0
    for first, last in ranges:
        _require(above < first <= last)
        above = last
    return ranges, place + 1 + len(content)
