"""Which addresses are this machine's own, whatever interface has them."""

from __future__ import annotations

import errno
import socket
from contextlib import closing

from chassis.public_addresses import Address


def is_own(address: Address) -> bool:
    """Say whether an address is one of this machine's: the kernel lets a socket have it."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with closing(socket.socket(family, socket.SOCK_DGRAM)) as trial:
            trial.bind((str(address), 0))
    except OSError as error:
        # Whatever else went wrong, an address of which nothing is known is not dialled.
        return error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
    return True
