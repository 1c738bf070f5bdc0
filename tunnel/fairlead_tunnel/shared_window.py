"""The limit on all channels of a tunnel together, in both directions."""

from __future__ import annotations

from fairlead_tunnel.inbound import FlowViolation


class SharedWindow:
    """How many bytes may be sent in all channels together, and how many are taken.

    `credit` is how many new bytes this side may send, `limit` the offset that the peer is told:
    at most `window` bytes of all channels are here and not consumed.
    """

    def __init__(self, *, window: int) -> None:
        self._window = window
        self.credit = window
        self._credit_limit = window
        self.limit = window
        self._received = 0
        self._consumed = 0
        self.due = False

    def widen(self, limit: int) -> bool:
        """Take a limit of the peer; say whether it is a higher one."""
        if limit <= self._credit_limit:
            return False
        self.credit += limit - self._credit_limit
        self._credit_limit = limit
        return True

    def receive(self, count: int) -> None:
        """Note that the peer sent `count` more bytes; FlowViolation when that passes the limit."""
        self._received += count
        if self._received > self.limit:
            raise FlowViolation("more was sent than the tunnel takes")
        self._move()

    def consume(self, count: int) -> None:
        """Note that `count` bytes have left; see `_move`."""
        self._consumed += count
        self._move()

    def _move(self) -> None:
        """Have a limit told that is higher by a quarter, or by what the peer has left if less.

        So what slow readers leave for long stops no other channel while there is any room.
        """
        more = self._consumed + self._window - self.limit
        if more >= max(min(self._window // 4, self.limit - self._received), 1):
            self.limit += more
            self.due = True
