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

    def consume(self, count: int) -> None:
        """Note that `count` bytes have left; a higher limit is due once a quarter has."""
        self._consumed += count
        if self.limit - self._consumed <= self._window * 3 // 4:
            self.limit = self._consumed + self._window
            self.due = True
