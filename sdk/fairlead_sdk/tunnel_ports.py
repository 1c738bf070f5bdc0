"""Local ports and sockets that lead into a tunnel."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from fairlead_sdk.forwarding import LocalPortUnusable, TargetInvalid
from fairlead_sdk.local_connection import (
    MOST_CONNECTIONS,
    LocalConnection,
    OnRefusal,
    SocksConnection,
)
from fairlead_sdk.local_sockets import listening_at
from fairlead_sdk.local_traffic import Traffic
from fairlead_sdk.tunnel_line import TunnelLine
from fairlead_tunnel.socks5 import Credentials
from fairlead_tunnel.targets import Target, target_of

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
        self._servers: list[asyncio.Server] = []
        self._paths: list[Path] = []

    async def listen(self, target: Target, *, host: str, port: int) -> int:
        """Lead a local port (0: a free one) to a target; returns the port.

        Raises LocalPortUnusable and TargetInvalid.
        """
        _check(target)
        return await self._listen(lambda: self._connection(target), host, port)

    async def listen_socks(self, *, host: str, port: int, credentials: Credentials | None) -> int:
        """Serve SOCKS5 on a local port (0: a free one); returns the port.

        Raises LocalPortUnusable.
        """

        def connection() -> SocksConnection:
            return SocksConnection(
                line=self._line,
                traffic=self.traffic,
                on_refusal=self._on_refusal,
                credentials=credentials,
                most=self._most,
            )

        return await self._listen(connection, host, port)

    async def listen_at(self, target: Target, path: Path) -> None:
        """Lead a socket in the file system, this user's alone, to a target.

        Raises LocalPathUnusable and TargetInvalid.
        """
        _check(target)
        plug = listening_at(path)
        self._paths.append(path)
        loop = asyncio.get_running_loop()
        server = await loop.create_unix_server(lambda: self._connection(target), sock=plug)
        self._servers.append(server)

    async def close(self) -> None:
        """Take no new connections, and give open ones a second."""
        for server in self._servers:
            server.close()
        for path in self._paths:
            path.unlink(missing_ok=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GRACE_SECONDS):
                await self.traffic.wait_idle()

    def _connection(self, target: Target) -> LocalConnection:
        return LocalConnection(
            line=self._line,
            target=target,
            traffic=self.traffic,
            on_refusal=self._on_refusal,
            most=self._most,
        )

    async def _listen(
        self, connection: Callable[[], asyncio.Protocol], host: str, port: int
    ) -> int:
        loop = asyncio.get_running_loop()
        try:
            server = await loop.create_server(connection, host, port, backlog=_QUEUED)
        except OSError as error:
            cause = error.strerror or "it cannot be bound"
            raise LocalPortUnusable(host, port, cause) from error
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])


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
