"""Frames between the worker and a file agent: a kind, a length and at most 256 KiB.

What has fields has them separated by NUL; no path can hold one, and numbers are decimal text.
Standard library only: it runs in the sandboxes.
"""

from __future__ import annotations

import struct

HEADER = struct.Struct("!cI")
LARGEST = 256 * 1024
"""Most bytes of one frame's payload."""

REQUEST = b"Q"
CONTENT = b"C"
END = b"E"
ANSWER = b"A"
FAILURE = b"F"
PROGRESS = b"P"


def frame(kind: bytes, payload: bytes = b"") -> bytes:
    """Return a frame; raises ValueError for a payload that is too long."""
    if len(payload) > LARGEST:
        raise ValueError("the frame is too long")
    return HEADER.pack(kind, len(payload)) + payload


def join(*fields: bytes | int) -> bytes:
    """Return fields as a payload; numbers become decimal text."""
    return b"\0".join(b"%d" % field if isinstance(field, int) else field for field in fields)


def split(payload: bytes) -> list[bytes]:
    """Return the fields of a payload."""
    return payload.split(b"\0")
