"""Has TCP notice a peer that vanished, after half a minute, as an association's path is."""

from __future__ import annotations

import socket
from typing import Final

_KEEP_ALIVE: Final = (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
_UNREAD_MS: Final = 30_000


def notice_silence(plug: socket.socket | None, *, always_reads: bool = False) -> None:
    """Set keep-alive on a TCP socket; anything else needs no such thing.

    With `always_reads` the peer is one that never stops reading: one that takes nothing for half a
    minute is gone too (RFC 5482), for which keep-alive alone waits while bytes are under way.
    """
    if plug is None or plug.family not in (socket.AF_INET, socket.AF_INET6):
        return
    plug.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = (*_KEEP_ALIVE, ("TCP_USER_TIMEOUT", _UNREAD_MS)) if always_reads else _KEEP_ALIVE
    for name, value in options:
        option = getattr(socket, name, None)  # some systems lack one or the other
        if option is not None:
            plug.setsockopt(socket.IPPROTO_TCP, option, value)
