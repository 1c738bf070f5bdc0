"""What was typed into a terminal and is not known to be taken. Pure but for who waits."""

from __future__ import annotations

import asyncio

_MOST_WAITING = 256 * 1024
_PIECE_BYTES = 64 * 1024


class TypedInput:
    """Bytes from an offset on; what was sent is kept until it is accepted.

    After a lost connection it is sent again from where the other side has come to, never twice.
    When somebody else has typed meanwhile the numbers mean other bytes: what was sent is dropped.
    """

    def __init__(self) -> None:
        self._waiting = bytearray()
        self._first = 0
        self._sent = 0
        self._is_closed = False
        self._change = asyncio.Event()

    @property
    def is_taken(self) -> bool:
        """Whether nothing waits any more."""
        return self._is_closed or not self._waiting

    async def changed(self) -> None:
        """Wait until more was accepted, or nothing will be."""
        self._change.clear()
        await self._change.wait()

    async def add(self, content: bytes) -> None:
        """Add bytes; waits while too many are not accepted."""
        for start in range(0, len(content), _PIECE_BYTES):
            while len(self._waiting) >= _MOST_WAITING and not self._is_closed:
                await self.changed()
            self._waiting += content[start : start + _PIECE_BYTES]

    def next(self) -> tuple[int, bytes] | None:
        """Return the next piece to send with its offset; None when all is sent."""
        piece = bytes(self._waiting[self._sent : self._sent + _PIECE_BYTES])
        if not piece:
            return None
        offset = self._first + self._sent
        self._sent += len(piece)
        return offset, piece

    def accept(self, offset: int) -> None:
        """Forget what was taken up to `offset`."""
        taken = min(max(0, offset - self._first), self._sent)
        del self._waiting[:taken]
        self._first += taken
        self._sent -= taken
        self._change.set()

    def take_up(self, offset: int, *, resumed: bool) -> int:
        """Go on at `offset` over another connection; returns how many bytes had to be dropped."""
        dropped = 0
        if resumed:
            self.accept(offset)
        else:
            dropped = self._sent
            del self._waiting[: self._sent]
        self._first, self._sent = offset, 0
        self._change.set()
        return dropped

    def close(self) -> None:
        """Nothing is accepted any more."""
        self._is_closed = True
        self._waiting.clear()
        self._sent = 0
        self._change.set()
