"""What is used of a tunnel on the native pump."""

from __future__ import annotations

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
    ) -> None: ...

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
