"""Where frames of a WebSocket end (RFC 6455, section 5.2), which wsproto does not tell."""

from __future__ import annotations

from typing import Final

_LONGEST_HEADER: Final = 14
_LENGTH_BYTES: Final = {126: 2, 127: 8}
_MASK_BYTES: Final = 4


class FrameCutter:
    """Follows the frames of one direction from their first byte on."""

    def __init__(self) -> None:
        self._header = b""
        self._left = 0

    def end(self, received: bytes) -> int:
        """Return how many of the next bytes belong to the frame that is under way."""
        if not self._left:
            header = self._header + received[:_LONGEST_HEADER]
            size = _size(header)
            if size is None:
                self._header = header
                return len(received)
            self._left = size - len(self._header)
            self._header = b""
        end = min(self._left, len(received))
        self._left -= end
        return end


def _size(header: bytes) -> int | None:
    """Return how long a frame is; None while that is not told."""
    if len(header) < 2:
        return None
    code = header[1] & 0x7F
    start = 2 + _LENGTH_BYTES.get(code, 0)
    if len(header) < start:
        return None
    length = int.from_bytes(header[2:start], "big") if start > 2 else code
    return start + (_MASK_BYTES if header[1] & 0x80 else 0) + length
