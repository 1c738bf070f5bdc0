"""The bodies of polls: sealed records with their numbers, in a request and in its answer.

    request = "FLP" ‖ version u8 = 1 ‖ tunnel, 16 bytes ‖ attach u32 ‖ record of ask ‖ record*
    answer  = 00 ‖ record of said ‖ record*   or   01 ‖ reason ‖ message: refused
    record  = n u64 ‖ length u32 of sealed ‖ sealed, as in `records`
    ask     = poll u32 ‖ hold u32 ‖ most u32 ‖ records u32
    said    = poll u32 ‖ records u32

`poll` numbers a poll among the carriers of its tunnel; `hold` is for how many milliseconds the
client waits when there is nothing to answer; an answer has at most `most` bytes of batches beside
what belongs to the poll; `records` follow, so that a body cut between two of them does not look
whole. A hello of `handshake` is posted to the same place, and answered by its answer.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from fairlead_tunnel.frames import Content
from fairlead_tunnel.handshake import raise_refusal
from fairlead_tunnel.records import Opener, Sealer

POLL_PATH: Final = "/tunnel/v1/poll"
MOST_BODY_BYTES: Final = 4 * 1024 * 1024
"""No body of either direction is longer."""
SMALLEST_ROOM: Final = 16 * 1024
"""Bodies with this many bytes of batches pass everywhere."""

_MAGIC = b"FLP\x01"
_HEAD = struct.Struct(">4s16sI")
_RECORD = struct.Struct(">QI")
_ASK = struct.Struct(">IIII")
_SAID = struct.Struct(">II")

HEAD_BYTES: Final = _HEAD.size


class PollInvalid(ValueError):
    """A body that is none of a poll, or of another one."""


class PollCut(PollInvalid):
    """A body whose end is missing."""


class Ask(NamedTuple):
    """What a poll asks for."""

    poll: int
    hold_ms: int
    most: int
    records: int = 0


def request_head(tunnel_id: bytes, attach: int) -> bytes:
    """Return what a request begins with."""
    return _HEAD.pack(_MAGIC, tunnel_id, attach)


def read_head(body: Content) -> tuple[bytes, int]:
    """Return the tunnel's id and the carrier whose keys a request is sealed with; PollInvalid."""
    if len(body) < _HEAD.size:
        raise PollInvalid("a request is cut short")
    magic, tunnel_id, attach = _HEAD.unpack_from(body)
    if magic != _MAGIC:
        raise PollInvalid("a request is none of a poll")
    return tunnel_id, attach


def seal_record(sealer: Sealer, batch: Content) -> bytes:
    """Return a record with its number."""
    number, sealed = sealer.seal(batch)
    return _RECORD.pack(number, len(sealed)) + sealed


def seal_ask(sealer: Sealer, ask: Ask) -> bytes:
    """Return the first record of a request."""
    return seal_record(sealer, _ASK.pack(*ask))


def seal_said(sealer: Sealer, poll: int, records: int) -> bytes:
    """Return the first record of an answer, with the number of those that follow."""
    return seal_record(sealer, _SAID.pack(poll, records))


def open_request(opener: Opener, body: Content) -> tuple[Ask, list[bytes]]:
    """Return what a request asks for, and its batches.

    PollInvalid, PollCut, RecordInvalid: it was changed, cut, or came before; what of it was opened
    is lost.
    """
    records = [opener.open(number, sealed) for number, sealed in _records(body, _HEAD.size)]
    if not records:
        raise PollCut("a request is cut short")
    if len(records[0]) != _ASK.size:
        raise PollInvalid("a request asks for nothing")
    ask = Ask(*_ASK.unpack(records[0]))
    return ask, _whole(records[1:], ask.records)


def open_answer(opener: Opener, body: Content, poll: int) -> list[bytes]:
    """Return the batches of a poll's answer.

    PollInvalid: it is no answer, or of another poll; PollCut; RecordInvalid: it was changed, or
    came before; AttachRefused: the gateway says why it does not answer.
    """
    if body[:1] == b"\x01":
        raise_refusal(bytes(body))
    if body[:1] != b"\x00":
        raise PollInvalid("this is no answer of fairlead.tunnel.v1")
    records = [opener.open(number, sealed) for number, sealed in _records(body, 1)]
    if not records:
        raise PollCut("an answer is cut short")
    if len(records[0]) != _SAID.size:
        raise PollInvalid("an answer is of no poll")
    said, count = _SAID.unpack(records[0])
    if said != poll:
        raise PollInvalid("an answer is of another poll")
    return _whole(records[1:], count)


def _whole(batches: list[bytes], count: int) -> list[bytes]:
    if len(batches) < count:
        raise PollCut("a body is cut short")
    if len(batches) > count:
        raise PollInvalid("a body is longer than it says")
    return batches


def _records(body: Content, place: int) -> Iterator[tuple[int, memoryview]]:
    view = memoryview(body)
    while place < len(view):
        if len(view) - place < _RECORD.size:
            raise PollCut("a body is cut short")
        number, length = _RECORD.unpack_from(view, place)
        place += _RECORD.size
        if len(view) - place < length:
            raise PollCut("a body is cut short")
        yield number, view[place : place + length]
        place += length
