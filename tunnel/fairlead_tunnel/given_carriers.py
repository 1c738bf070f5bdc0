"""Connections that are given away once their handshakes are done, and who has them then."""

from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import dataclass
from typing import Protocol

from fairlead_tunnel.handshake import Keys


@dataclass(frozen=True, slots=True)
class GivenSocket:
    """A connection, what came that nobody has taken, and what is to be sent over it first."""

    connection: socket.socket
    received: bytes
    unsent: bytes = b""


@dataclass(frozen=True, slots=True)
class GivenCarrier:
    """A connection that carries records, or the frames of a WebSocket with one in each message."""

    given: GivenSocket
    keys: Keys
    is_websocket: bool = False


class Keeper(Protocol):
    """Who has a carrier that was given away."""

    def drop(self) -> None:
        """End it."""
        ...

    def retire(self) -> None:
        """Send nothing more over it."""
        ...

    def look(self) -> tuple[int, int]:
        """Return how many bytes have come, and how many have not arrived as far as is known."""
        ...


def take_socket(transport: asyncio.Transport) -> socket.socket | None:
    """Take the connection from a transport, which reads and writes no more and is lost for its
    protocol. None, and nothing has changed: its bytes are not those of a socket, some have not
    left, or there are too many open files.
    """
    plug = transport.get_extra_info("socket")
    if plug is None or transport.is_closing() or transport.get_write_buffer_size():
        return None
    if transport.get_extra_info("ssl_object") is not None:
        return None
    try:
        connection = socket.socket(fileno=os.dup(plug.fileno()))
    except OSError:
        return None
    transport.abort()
    return connection
