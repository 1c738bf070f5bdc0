"""A server that takes nobody, until it is opened."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Crowd:
    """A server that neither takes nor refuses connections; `open` has it echo what comes first."""

    def __init__(self, host: str, port: int) -> None:
        self._full = socket.socket()
        self._full.bind((host, port))
        self._full.listen(0)
        self.port = int(self._full.getsockname()[1])
        self.place = f"{host}:{self.port}"
        self._waiting = [socket.socket() for _ in range(3)]
        for each in self._waiting:
            each.setblocking(False)
            with suppress(BlockingIOError):
                each.connect(self._full.getsockname())
        self.heard: list[bytes] = []

    async def open(self) -> asyncio.Server:
        """Take who comes from now on, and keep what each of them says."""
        for each in self._waiting:
            each.close()
        return await asyncio.start_server(self._talk, sock=self._full.dup(), backlog=100)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said = await reader.read(100)
        if said:  # those that were waiting have nothing to say
            self.heard.append(said)
        writer.write(said)
        writer.close()

    def close(self) -> None:
        """Free its sockets."""
        for each in (self._full, *self._waiting):
            each.close()


@contextmanager
def crowd(host: str = "127.0.0.1", port: int = 0) -> Iterator[Crowd]:
    """A server where connections are neither taken nor refused for now."""
    made = Crowd(host, port)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def full_server() -> Iterator[int]:
    """A port on 127.0.0.1 where connections are neither taken nor refused."""
    with crowd() as full:
        yield full.port
