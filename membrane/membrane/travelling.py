"""What a thread has under way on its lanes: kept for each thread, whichever lane it is on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Travelling:
    """What one thread has sent and has no answer to yet: `kept` alive, `told` classes known to be
    told afterwards, and `payloads` that are taken back if their frame is not sent.

    `decoding` says that it reads a frame just now, and so cannot ask the other side; `encoding`
    that it makes one, so that what is collected meanwhile asks aside of it; `replying` that what it
    encodes answers the other side, as it does while it runs `confined` requests.
    """

    __slots__ = ("confined", "decoding", "encoding", "kept", "payloads", "replying", "told")

    def __init__(self) -> None:
        self.kept: list[object] = []
        self.told: list[int] = []
        self.payloads: list[list[object]] = []
        self.decoding = False
        self.encoding = False
        self.replying = False
        self.confined = 0


class Threads(threading.local):
    """Finds what the thread that asks has under way."""

    def __init__(self) -> None:
        self.travelling = Travelling()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Keep what is under way as it is, and begin with nothing meanwhile."""
        outer, self.travelling = self.travelling, Travelling()
        try:
            yield
        finally:
            self.travelling = outer
