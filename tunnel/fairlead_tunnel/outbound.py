"""What one side sends of a channel: kept until it is acknowledged, sent again when it was lost."""

from __future__ import annotations

from bisect import bisect_right

from fairlead_tunnel.frames import Content
from fairlead_tunnel.ranges import RangeSet

_SMALL = 4096
"""Writes below this many bytes are joined while none of them has left, so that many small ones
cost neither a chunk nor a frame each."""


class Outbound:
    """The bytes of one direction by offset, from the first unacknowledged one on, and their end.

    `limit` is the offset up to which the receiver takes bytes.
    """

    __slots__ = (
        "_acked",
        "_chunks",
        "_fin_acked",
        "_fin_due",
        "_finished",
        "_head",
        "_lost",
        "_starts",
        "acked",
        "limit",
        "sent",
        "written",
    )

    def __init__(self, *, limit: int) -> None:
        self.limit = limit
        self.acked = 0
        self.sent = 0
        self.written = 0
        self._starts: list[int] = []
        self._chunks: list[Content | bytearray] = []
        self._head = 0
        self._acked = RangeSet()
        self._lost = RangeSet()
        self._finished = False
        self._fin_due = False
        self._fin_acked = False

    @property
    def buffered(self) -> int:
        """How many bytes are kept: unsent, or sent and not acknowledged."""
        return self.written - self.acked

    @property
    def finished(self) -> bool:
        """Say whether no more bytes will be written."""
        return self._finished

    @property
    def settled(self) -> bool:
        """Say whether the peer has everything, the end included."""
        return self._fin_acked and self.acked == self.written

    @property
    def repeats(self) -> bool:
        """Say whether something that was sent before, or the end, waits to be sent now."""
        return bool(self._lost) or (self._fin_due and self.sent == self.written)

    def write(self, content: Content) -> None:
        """Append bytes; they are kept, not copied, unless they are few."""
        if not content:
            return
        if self._chunks and self._starts[-1] >= self.sent and len(self._chunks[-1]) < _SMALL:
            last = self._chunks[-1]
            if not isinstance(last, bytearray):
                last = self._chunks[-1] = bytearray(last)
            last += content
        else:
            self._starts.append(self.written)
            self._chunks.append(content)
        self.written += len(content)

    def finish(self) -> None:
        """End the direction after what was written."""
        self._finished = self._fin_due = True

    def take_repeat(self, most: int) -> tuple[int, list[memoryview]] | None:
        """Return the offset and the pieces of at most `most` bytes that were lost, or None."""
        if not self._lost or most <= 0:
            return None
        start, end = self._lost.first()
        end = min(end, start + most)
        self._lost.discard(start, end)
        return start, self._pieces(start, end)

    def take_unsent(self, most: int) -> tuple[int, list[memoryview]] | None:
        """Return the offset and the pieces of at most `most` bytes not sent before, or None."""
        start = self.sent
        end = min(self.written, self.limit, start + most)
        if end <= start:
            return None
        self.sent = end
        return start, self._pieces(start, end)

    def take_fin(self) -> int | None:
        """Return the length of the direction if its end is to be said now, else None."""
        if not self._fin_due or self.sent < self.written:
            return None
        self._fin_due = False
        return self.written

    def on_acked(self, start: int, end: int) -> None:
        """Note that bytes have arrived; what is complete from the first byte on is forgotten."""
        self._lost.discard(start, end)
        if start > self.acked:
            self._acked.add(start, end)
            return
        self.acked = max(self.acked, end)
        if self._acked:
            self._acked.add(0, self.acked)
            self.acked = self._acked.first()[1]
            self._acked.discard(0, self.acked)
        self._forget()

    def on_lost(self, start: int, end: int) -> None:
        """Note that bytes were lost on the way, unless they have arrived otherwise."""
        for first, last in self._acked.missing(max(start, self.acked), end):
            self._lost.add(first, last)

    def on_fin_acked(self) -> None:
        """Note that the end has arrived."""
        self._fin_acked = True
        self._fin_due = False

    def on_fin_lost(self) -> None:
        """Note that the end was lost on the way."""
        self._fin_due = not self._fin_acked

    def abandon(self) -> None:
        """Forget all bytes: the channel is given up, and none is sent any more."""
        self._starts.clear()
        self._chunks.clear()
        self._head = 0
        self._lost = RangeSet()
        self.written = self.acked = self.sent
        self._finished = True
        self._fin_due = False

    def _pieces(self, start: int, end: int) -> list[memoryview]:
        place = bisect_right(self._starts, start, self._head) - 1
        pieces = []
        while start < end:
            first = self._starts[place]
            chunk = self._chunks[place]
            if isinstance(chunk, bytearray):
                chunk = self._chunks[place] = bytes(chunk)  # it leaves, so it grows no more
            piece = memoryview(chunk)[start - first : end - first]
            pieces.append(piece)
            start += len(piece)
            place += 1
        return pieces

    def _forget(self) -> None:
        chunks, starts = self._chunks, self._starts
        head = self._head
        while head < len(chunks) and starts[head] + len(chunks[head]) <= self.acked:
            chunks[head] = b""
            head += 1
        if head == len(chunks):
            chunks.clear()
            starts.clear()
            head = 0
        elif head > 64 and head > len(chunks) // 2:
            del chunks[:head]
            del starts[:head]
            head = 0
        self._head = head
