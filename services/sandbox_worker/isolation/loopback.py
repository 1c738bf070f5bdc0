"""Connects to servers on the loopback interface of a sandbox.

Runs in the inits: single-threaded, standard library only.
"""

from __future__ import annotations

import errno
import select
import socket
from collections.abc import Callable

_LOOPBACKS = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))
_BACKLOG = 128

Connected = Callable[[bytes, int], None]
"""Told a request and its connected descriptor, which is closed afterwards."""

Refused = Callable[[bytes, int], None]
"""Told a request and the errno of its refusal."""


def listen() -> socket.socket:
    """Return a listener on a free TCP port of 127.0.0.1; raises OSError."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.bind((_LOOPBACKS[0][1], 0))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


class Loopback:
    """Connections that are being made, on a poll object."""

    def __init__(self, *, poll: select.poll, connected: Connected, refused: Refused) -> None:
        self._poll = poll
        self._connected = connected
        self._refused = refused
        self._pending: dict[int, tuple[bytes, socket.socket, int, int]] = {}

    def connect(self, request: bytes, port: int, attempt: int = 0) -> None:
        """Begin to connect; tells of the outcome at once or after `proceed`."""
        family, address = _LOOPBACKS[attempt]
        try:
            connection = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            self._refuse(request, port, attempt, error.errno or errno.ECONNREFUSED)
            return
        connection.setblocking(False)
        outcome = connection.connect_ex((address, port))
        if outcome not in (0, errno.EINPROGRESS):
            connection.close()
            self._refuse(request, port, attempt, outcome)
            return
        self._pending[connection.fileno()] = (request, connection, port, attempt)
        self._poll.register(connection, select.POLLOUT)

    def proceed(self, descriptor: int) -> bool:
        """Take a polled descriptor; says whether it was one of these."""
        if descriptor not in self._pending:
            return False
        request, connection, port, attempt = self._pending.pop(descriptor)
        self._poll.unregister(descriptor)
        outcome = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if outcome == 0:
            self._connected(request, descriptor)
        connection.close()
        if outcome != 0:
            self._refuse(request, port, attempt, outcome)
        return True

    def _refuse(self, request: bytes, port: int, attempt: int, outcome: int) -> None:
        """Try the next loopback address: many development servers listen on ::1 only."""
        if attempt + 1 < len(_LOOPBACKS):
            self.connect(request, port, attempt + 1)
        else:
            self._refused(request, outcome)
