"""A server that takes nobody."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress


@contextmanager
def full_server() -> Iterator[int]:
    """A port on 127.0.0.1 where connections are neither taken nor refused."""
    with closing(socket.socket()) as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = int(full.getsockname()[1])
        waiting = []
        try:
            for _ in range(3):
                each = socket.socket()
                each.setblocking(False)
                with suppress(BlockingIOError):
                    each.connect(("127.0.0.1", port))
                waiting.append(each)
            yield port
        finally:
            for each in waiting:
                each.close()
