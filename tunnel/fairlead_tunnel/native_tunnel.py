"""What is used of a tunnel on the native pump."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence
from typing import Protocol


class NativeTunnel(Protocol):
    """What is used of `fairlead_native.PumpedTunnel`."""

    @property
    def channels(self) -> int: ...

    @property
    def bytes_read(self) -> int: ...

    @property
    def bytes_written(self) -> int: ...

    def take(self, batch: bytes) -> None: ...

    def first_batch(self, carrier: int, most: int, *, restate: bool = False) -> bytes: ...

    def attach(
        self,
        carrier: int,
        connection: socket.socket,
        *,
        suite: int,
        send: bytes,
        receive: bytes,
        received: bytes,
        unsent: bytes,
        is_websocket: bool,
    ) -> None: ...

    def retire(self, carrier: int) -> None: ...

    def attach_foreign(self, carrier: int) -> None: ...

    def take_batch(self, carrier: int, most: int) -> bytes | None: ...

    def detach(self, carrier: int, *, heard: bool = False, reached: bool = True) -> None: ...

    def listen(self, listener: socket.socket, target: str, *, hold_seconds: float) -> int: ...

    def listen_socks(
        self, listener: socket.socket, credentials: tuple[bytes, bytes] | None, *, seconds: float
    ) -> int: ...

    def stop_listening(self, listener: int) -> None: ...

    def open(self, target: str, *, hold_seconds: float) -> int | None: ...

    def connect(
        self, channel: int, connection: socket.socket, early: bytes, reply: bytes
    ) -> None: ...

    def dial(
        self, channel: int, addresses: Sequence[str], port: int, *, seconds: float, spent: float
    ) -> None: ...

    def refuse(self, channel: int, reason: str, message: str) -> None: ...

    def recall(self) -> None: ...

    def look(self, carrier: int) -> tuple[int, int] | None: ...

    def ping(self) -> None: ...

    def close(self, reason: str, message: str) -> None: ...


class PumpedCarrier:
    """A carrier that the pump has, for whoever gave it."""

    def __init__(self, tunnel: NativeTunnel, number: int) -> None:
        self._tunnel = tunnel
        self._number = number

    def drop(self) -> None:
        """End it."""
        self._tunnel.detach(self._number)

    def retire(self) -> None:
        """Send nothing more over it."""
        self._tunnel.retire(self._number)

    def look(self) -> tuple[int, int]:
        """Return how many bytes have come, and how many have not arrived as far as is known."""
        with contextlib.suppress(RuntimeError):  # the pump has failed, which is about to be told
            return self._tunnel.look(self._number) or (0, 0)
        return 0, 0
