"""What one side receives of a channel: put in order by offset, in bounded memory."""

from __future__ import annotations

from fairlead_tunnel.frames import Content
from fairlead_tunnel.ranges import RangeSet

_MOST_PIECES = 8192
"""More than a sender has batches under way, which may all wait for the first one."""


class FlowViolation(ValueError):
    """The peer sent past what it may, or says two different ends: a fault of the peer."""


class Inbound:
    """The bytes of one direction; at most `window` are here and not consumed.

    `highest` is one past the last byte that the peer is known to have sent, `received` one past the
    last byte that is here with all before it, `limit` what the peer was told that it may send to.
    """

    __slots__ = ("_early", "_here", "_window", "consumed", "highest", "length", "limit", "received")

    def __init__(self, *, window: int) -> None:
        self._window = window
        self.limit = window
        self.highest = 0
        self.received = 0
        self.consumed = 0
        self.length: int | None = None
        self._here = RangeSet()
        self._early: dict[int, bytes] = {}

    @property
    def early(self) -> int:
        """How many pieces wait for others before them."""
        return len(self._early)

    @property
    def complete(self) -> bool:
        """Say whether the end is known and every byte before it is here."""
        return self.received == self.length

    def take(self, offset: int, content: Content) -> list[Content]:
        """Note bytes that came, in any order and as often as they like; return what is in order.

        FlowViolation: they pass the limit or the end, or more than 8192 pieces wait for others.
        """
        end = offset + len(content)
        if end > self.limit or (self.length is not None and end > self.length):
            raise FlowViolation("bytes were sent past the limit or the end")
        self.highest = max(self.highest, end)
        if end <= self.received:
            return []
        if offset > self.received:
            for first, last in self._here.missing(offset, end):
                self._early[first] = bytes(content[first - offset : last - offset])
            self._here.add(offset, end)
            if len(self._early) > _MOST_PIECES:
                raise FlowViolation("bytes were sent in more pieces than are kept")
            return []
        found: list[Content] = []
        if not self._here:
            found.append(_light(content[self.received - offset :]))
            self.received = end
            return found
        for first, last in self._here.missing(self.received, end):
            self._early[first] = bytes(content[first - offset : last - offset])
        self._here.add(self.received, end)
        while (piece := self._early.pop(self.received, None)) is not None:
            found.append(piece)
            self.received += len(piece)
        self._here.discard(0, self.received)
        return found

    def finish(self, length: int) -> None:
        """Note where the peer's bytes end; FlowViolation when that contradicts what came."""
        if length < self.highest or length > self.limit or self.length not in (None, length):
            raise FlowViolation("the end is before bytes that came, or was another one")
        self.length = length
        self.highest = length

    def consume(self, count: int) -> bool:
        """Note that `count` bytes have left; say whether the limit has moved enough to be told."""
        if not 0 <= count <= self.received - self.consumed:
            raise ValueError("more was consumed than received")
        self.consumed += count
        if self.length is not None or self.limit - self.consumed > self._window * 3 // 4:
            return False
        self.limit = self.consumed + self._window
        return True

    def abandon(self) -> int:
        """Forget what is here; returns how many bytes were sent and not consumed."""
        left = self.highest - self.consumed
        self.consumed = self.received = self.highest
        self._early.clear()
        self._here = RangeSet()
        return left


def _light(content: Content) -> Content:
    """Return bytes that may wait for a slow reader: a copy where they hold a much longer batch."""
    if isinstance(content, memoryview) and 4 * len(content) < memoryview(content.obj).nbytes:
        return bytes(content)
    return content
