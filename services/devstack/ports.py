"""Free TCP ports on loopback, such that two stacks which start at the same moment never pick the
same one.

A picked port is held by an abstract Unix socket of that name (Linux), which is gone when the holder
is: no file.
"""

from __future__ import annotations

import errno
import socket
import sys

from devstack.errors import StackError

LOOPBACK = "127.0.0.1"
_BLOCKS = range(0, 2500, 100)


def is_free(port: int, host: str = LOOPBACK) -> bool:
    """Say whether nothing listens on `port`; connections that linger from before do not count."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            if error.errno in {errno.EADDRINUSE, errno.EACCES}:
                return False
            raise StackError(
                f"The address {host}:{port} cannot be listened on: {error.strerror}.",
                remedies=("Name an address of this machine in the FAIRLEAD_*_BIND setting.",),
            ) from error
    return True


class PortReservation:
    """The ports that one stack has picked, held until `close`."""

    def __init__(self) -> None:
        self._held: list[socket.socket] = []

    def pick(self, preferred: int) -> int:
        """Return `preferred` when it is free, else the same port some hundreds higher, else any
        free one.
        """
        for step in _BLOCKS:
            if self._take(preferred + step):
                return preferred + step
        with socket.socket() as probe:
            probe.bind((LOOPBACK, 0))
            port = probe.getsockname()[1]
        return int(port)

    def close(self) -> None:
        """Give all ports back."""
        while self._held:
            self._held.pop().close()

    def _take(self, port: int) -> bool:
        if sys.platform != "linux":
            return is_free(port)
        holder = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            holder.bind(f"\0fairlead-port-{port}")
        except OSError:
            holder.close()
            return False
        if not is_free(port):
            holder.close()
            return False
        self._held.append(holder)
        return True
