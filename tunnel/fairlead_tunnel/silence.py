"""Has TCP notice a peer that vanished, after half a minute, as an association's path is."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from typing import Final

if sys.platform == "linux":
    import fcntl
    import termios

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


def unarrived(transport: asyncio.Transport | None) -> int:
    """Return how many bytes were written that the peer's kernel has not said to have; those that
    this one has do not count where they are not known.
    """
    if transport is None or transport.is_closing():
        return 0
    return transport.get_write_buffer_size() + _unacknowledged(transport)


def _unacknowledged(transport: asyncio.Transport) -> int:
    plug = transport.get_extra_info("socket")
    if sys.platform == "linux" and plug is not None:
        with contextlib.suppress(OSError):
            found = fcntl.ioctl(plug.fileno(), termios.TIOCOUTQ, bytes(4))  # SIOCOUTQ
            return int.from_bytes(found, sys.byteorder)
    return 0
