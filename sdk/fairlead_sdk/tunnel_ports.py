"""Local ports and sockets that lead into a tunnel."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from fairlead_sdk.doors import Door, Make
from fairlead_sdk.forwarding import LocalPortUnusable, TargetInvalid
from fairlead_sdk.local_connection import (
    Listen,
    LocalConnection,
    OnRefusal,
    SocksConnection,
    lead_to,
    lead_where_asked,
)
from fairlead_sdk.local_sockets import listening_at
from fairlead_sdk.local_traffic import Traffic
from fairlead_sdk.tunnel_drivers import MOST_CONNECTIONS
from fairlead_sdk.tunnel_line import TunnelLine
from fairlead_tunnel.socks5 import Credentials
from fairlead_tunnel.targets import Target, target_of
from fairlead_tunnel.tunnel_client import TunnelClient

GRACE_SECONDS: Final = 1.0
_QUEUED = 512


class TunnelPorts:
    """What is listened on for one line; `traffic` counts for all of it together."""

    def __init__(
        self, *, line: TunnelLine, on_refusal: OnRefusal, most: int = MOST_CONNECTIONS
    ) -> None:
        self.traffic = Traffic()
        self._line = line
        self._on_refusal = on_refusal
        self._most = most
        self._doors: list[Door] = []
        self._paths: list[Path] = []

    async def listen(self, target: Target, *, host: str, port: int) -> int:
        """Lead a local port (0: a free one) to a target; returns the port.

        Raises LocalPortUnusable and TargetInvalid.
        """
        _check(target)
        plugs = await _bound(host, port)
        for plug in plugs:
            self._open(plug, target)
        return int(plugs[0].getsockname()[1])

    async def listen_socks(self, *, host: str, port: int, credentials: Credentials | None) -> int:
        """Serve SOCKS5 on a local port (0: a free one); returns the port.

        Raises LocalPortUnusable.
        """

        def make(door: Door, client: TunnelClient | None) -> SocksConnection:
            return SocksConnection(
                line=self._line,
                traffic=self.traffic,
                on_refusal=self._on_refusal,
                adopt=door.adopt,
                credentials=credentials,
                most=self._most,
                client=client,
            )

        plugs = await _bound(host, port)
        for plug in plugs:
            self._add(plug, lead_where_asked(credentials), make)
        return int(plugs[0].getsockname()[1])

    async def listen_at(self, target: Target, path: Path) -> None:
        """Lead a socket in the file system, this user's alone, to a target.

        Raises LocalPathUnusable and TargetInvalid.
        """
        _check(target)
        plug = listening_at(path)
        self._paths.append(path)
        self._open(plug, target)

    def stop(self, local: int | Path) -> None:
        """Listen no more on a local port or at a path; connections that are open go on."""
        for door in [each for each in self._doors if each.local == local]:
            self._doors.remove(door)
            door.close()
        if isinstance(local, Path) and local in self._paths:
            self._paths.remove(local)
            local.unlink(missing_ok=True)

    async def close(self) -> None:
        """Take no new connections, and give open ones a second."""
        for door in self._doors:
            door.close()
        for path in self._paths:
            path.unlink(missing_ok=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GRACE_SECONDS):
                await self.traffic.wait_idle()

    def _open(self, plug: socket.socket, target: Target) -> None:
        def make(door: Door, client: TunnelClient | None) -> LocalConnection:
            return LocalConnection(
                line=self._line,
                target=target,
                traffic=self.traffic,
                on_refusal=self._on_refusal,
                adopt=door.adopt,
                most=self._most,
                client=client,
            )

        self._add(plug, lead_to(target), make)

    def _add(self, plug: socket.socket, listen: Listen, make: Make) -> None:
        door = Door(
            plug=plug,
            listen=listen,
            make=make,
            line=self._line,
            traffic=self.traffic,
            on_refusal=self._on_refusal,
        )
        self._doors.append(door)
        door.open()


async def _bound(host: str, port: int) -> list[socket.socket]:
    """Return sockets that listen, at each address of the host."""
    made: list[socket.socket] = []
    try:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for family, address in dict.fromkeys((each[0], each[4]) for each in found):
            made.append(socket.create_server(address, family=family, backlog=_QUEUED))
    except OSError as error:
        for each in made:
            each.close()
        cause = error.strerror or "it cannot be bound"
        raise LocalPortUnusable(host, port, cause) from error
    return made


def _check(target: Target) -> None:
    if target_of(target.label) != target:
        raise TargetInvalid(target.host)


@asynccontextmanager
async def open_ports(line: TunnelLine, on_refusal: OnRefusal) -> AsyncIterator[TunnelPorts]:
    """Have ports that lead into a line; they close at the end of the block."""
    ports = TunnelPorts(line=line, on_refusal=on_refusal)
    try:
        yield ports
    finally:
        await ports.close()
