"""Workers' port doors: 32 bytes of token in, one status byte out, then the connection's bytes."""

from __future__ import annotations

import asyncio

from relay_gateway.ports import Stream
from relay_gateway.session import (
    DoorRefused,
    DoorUnreachable,
    PortDoor,
    PortRefused,
    SandboxGone,
)

TOKEN_BYTES = 32
DIAL_SECONDS = 5.0
STATUS_SECONDS = 10.0

_REFUSALS = {1: DoorRefused, 2: PortRefused, 3: SandboxGone}


class SocketDoors:
    """Doors on TCP (`host:port`, `[v6]:port`) and Unix sockets (`unix:/path`)."""

    async def enter(self, door: PortDoor) -> Stream:
        """Dial a door and spend its token.

        Raises DoorUnreachable, and for the door's status 1, 2, 3 DoorRefused, PortRefused,
        SandboxGone.
        """
        if len(door.token) != TOKEN_BYTES:
            raise DoorRefused
        reader, writer = await _dial(door.address)
        try:
            status = await _status(reader, writer, door.token)
            if status != 0:
                raise _REFUSALS.get(status, DoorUnreachable)()
        except BaseException:
            writer.transport.abort()
            raise
        return reader, writer


async def _dial(address: str) -> Stream:
    try:
        async with asyncio.timeout(DIAL_SECONDS):
            if address.startswith("unix:"):
                return await asyncio.open_unix_connection(address.removeprefix("unix:"))
            host, _, port = address.rpartition(":")
            return await asyncio.open_connection(host.strip("[]"), int(port))
    except (OSError, ValueError, TimeoutError) as error:
        raise DoorUnreachable from error


async def _status(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: bytes) -> int:
    try:
        async with asyncio.timeout(STATUS_SECONDS):
            writer.write(token)
            await writer.drain()
            return (await reader.readexactly(1))[0]
    except (OSError, EOFError, TimeoutError) as error:
        raise DoorUnreachable from error
