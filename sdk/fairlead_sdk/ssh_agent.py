"""A host's connection by way of the agent, which keeps it for the next launch; by one of our own
where there is no agent.
"""

from __future__ import annotations

import asyncio
import os
import socket
from types import TracebackType

from fairlead_sdk.agent_client import dial
from fairlead_sdk.ssh_address import SshAddress
from fairlead_sdk.ssh_channel import HostChannel
from fairlead_sdk.ssh_frames import encoded
from fairlead_sdk.ssh_kept import KeptSsh


class AgentConnections:
    """Where a program's channel to one host comes from. Use as `async with`.

    Nothing depends on the agent: when it is gone, the connection is our own.
    """

    def __init__(self, *, address: SshAddress) -> None:
        self._address = address
        self._own = KeptSsh(address=address)
        self._plug: socket.socket | None = None
        self._channel: HostChannel | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._following: asyncio.Future[None] | None = None

    async def __aenter__(self) -> AgentConnections:
        self._plug = self._dial()
        if self._plug is None:
            self._own.begin()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._hang_up()
        await self._own.__aexit__(kind, error, traceback)

    async def channel(self, *, patience: float = 0.0) -> HostChannel:
        """Give the channel; see `KeptSsh.channel`."""
        if self._channel is not None and not self._channel.lost.is_set():
            return self._channel
        plug, self._plug = self._plug or self._dial(), None
        if plug is not None:
            channel = await self._by_agent(plug, patience)
            if channel is not None:
                return channel
        return await self._own.channel(patience=patience)

    def _dial(self) -> socket.socket | None:
        plug = dial(os.environ, "ssh", str(self._address))
        return None if plug is None else socket.socket(fileno=plug.detach())

    async def _by_agent(self, plug: socket.socket, patience: float) -> HostChannel | None:
        """Take the agent's connection; `None` where it wants none of us, or leaves."""
        await self._hang_up()
        plug.setblocking(False)
        reader, self._writer = await asyncio.open_unix_connection(sock=plug)
        try:
            if await reader.readline() != b"ok\n":
                return None
            self._writer.write(encoded(0, "open", patience=patience))
            await self._writer.drain()
        except ConnectionError:
            return None
        channel = HostChannel(
            reader=reader, writer=self._writer, destination=self._address.destination
        )
        self._following = asyncio.ensure_future(channel.follow())
        await channel.hello()
        self._channel = channel
        return channel

    async def _hang_up(self) -> None:
        self._channel = None
        if self._plug is not None:
            self._plug.close()
            self._plug = None
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait((self._following,))
            self._following = None
