"""Where a connection is read to: small while little comes, and larger for bulk."""

from __future__ import annotations

from typing import Final

_SMALL: Final = 4096
_GROWTH: Final = 8


class ReceiveBuffer:
    """Bytes that were read and not taken, at most `most`; one that idles keeps 4 KiB."""

    def __init__(self, *, most: int) -> None:
        self._most = most
        self._bytes = memoryview(bytearray(_SMALL))
        self._start = 0
        self._end = 0
        self._needed = 0
        self._was_filled = False

    @property
    def content(self) -> memoryview:
        """What was read and not taken; a view that is good until the next `room`."""
        return self._bytes[self._start : self._end]

    def need(self, count: int) -> None:
        """Have room for `count` bytes from the first one that was not taken, at most `most`."""
        self._needed = count

    def room(self) -> memoryview:
        """Return where to read to; empty only when `most` bytes are here."""
        size = len(self._bytes)
        wanted = max(self._needed, size * _GROWTH if self._was_filled else 0)
        if min(wanted, self._most) > size:
            self._move_to(memoryview(bytearray(min(wanted, self._most))))
        elif self._start and (self._start + self._needed > size or size - self._end < size // 2):
            self._move_to(self._bytes)
        return self._bytes[self._end :]

    def filled(self, count: int) -> None:
        """Note that `count` bytes were read to the start of `room`."""
        self._end += count
        self._was_filled = self._end == len(self._bytes)  # more would have come

    def take(self, count: int) -> None:
        """Note that the first `count` bytes are done with."""
        self._start += count
        self._needed = 0
        if self._start < self._end:
            return
        if self._end < _SMALL // 2 and len(self._bytes) > _SMALL:
            self._bytes = memoryview(bytearray(_SMALL))
        self._start = self._end = 0

    def drain(self) -> bytes:
        """Return what was read and not taken, and keep nothing."""
        content = bytes(self.content)
        self._bytes = memoryview(bytearray(_SMALL))
        self._start = self._end = 0
        return content

    def _move_to(self, place: memoryview) -> None:
        left = self.content
        place[: len(left)] = left
        self._bytes = place
        self._start, self._end = 0, len(left)
