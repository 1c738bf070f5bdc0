"""Sockets to listen on."""

from __future__ import annotations

import errno
import os
import socket

from chassis.rpc_server import AddressNotBindable


def listen(bind: str) -> socket.socket:
    """Listen on `host:port`, port 0 for any; raises AddressNotBindable."""
    host, _, port = bind.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, int(port)), family=family, backlog=1024)
        # asyncio sets it only where a socket names its protocol; who is accepted inherits it.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener
    except (OSError, ValueError) as error:
        is_taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        cause = "it is in use" if is_taken else os.strerror(getattr(error, "errno", 0) or 22)
        raise AddressNotBindable(bind, cause) from error
