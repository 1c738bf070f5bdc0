"""Frames between this machine and the program on an SSH host: lengths, a JSON header, bytes.

    frame   = length: 4 bytes, of what follows; header length: 4 bytes; header; payload
    header  = a JSON object with `id`, the number of a call (0: the connection), and `type`

Numbers are big-endian. The host's end has its own copy, `workspace_provisioner.resident.frames`;
both are tested on the same frames. docs/protocol.md has the types.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from fairlead_sdk.json_form import JsonObject

VERSION: Final = 1
MAX_HEADER_BYTES: Final = 4 * 1024 * 1024
MAX_PAYLOAD_BYTES: Final = 1024 * 1024
MAX_CHUNK_BYTES: Final = 128 * 1024
INITIAL_CREDIT: Final = 4 * 1024 * 1024
MAX_CALLS: Final = 64
"""Calls of one connection that a host serves at the same time."""

_WORD = 4


class FrameInvalid(Exception):
    """The peer sent what is no frame."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame, taken apart."""

    call: int
    type: str
    fields: JsonObject
    payload: bytes = b""


def encoded(call: int, type_: str, payload: bytes = b"", /, **fields: object) -> bytes:
    """Give a frame's bytes."""
    header = json.dumps({"id": call, "type": type_, **fields}, separators=(",", ":")).encode()
    if len(header) > MAX_HEADER_BYTES or len(payload) > MAX_PAYLOAD_BYTES:
        raise FrameInvalid("the frame is too long to be sent")
    length = _WORD + len(header) + len(payload)
    return b"".join((length.to_bytes(4, "big"), len(header).to_bytes(4, "big"), header, payload))


class Decoder:
    """Takes bytes as they come and gives whole frames."""

    def __init__(self) -> None:
        self._waiting = bytearray()

    def feed(self, received: bytes) -> Iterator[Frame]:
        """Give the frames that are whole now; raises FrameInvalid."""
        waiting = self._waiting
        waiting += received
        start = 0
        try:
            while len(waiting) - start >= 2 * _WORD:
                length = int.from_bytes(waiting[start : start + _WORD], "big")
                header = int.from_bytes(waiting[start + _WORD : start + 2 * _WORD], "big")
                payload = length - _WORD - header
                if not 2 <= header <= MAX_HEADER_BYTES or not 0 <= payload <= MAX_PAYLOAD_BYTES:
                    raise FrameInvalid("a length is out of bounds")
                end = start + _WORD + length
                if len(waiting) < end:
                    return
                body = start + 2 * _WORD
                frame = _frame(bytes(waiting[body : body + header]), waiting[body + header : end])
                start = end
                yield frame
        finally:
            del waiting[:start]


def _frame(header: bytes, payload: bytearray) -> Frame:
    try:
        fields = json.loads(header)
    except (ValueError, RecursionError):
        raise FrameInvalid("a header is no JSON") from None
    if not isinstance(fields, dict):
        raise FrameInvalid("a header is no object")
    call, type_ = fields.pop("id", None), fields.pop("type", None)
    if type(call) is not int or not 0 <= call < 2**31 or not isinstance(type_, str):
        raise FrameInvalid("a header lacks its id or type")
    return Frame(call, type_, fields, bytes(payload))
