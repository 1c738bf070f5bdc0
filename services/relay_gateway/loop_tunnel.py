"""A tunnel whose channels are led on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fairlead_tunnel.channel_port import ChannelPort, Port
from fairlead_tunnel.framed_port import FramedPort
from fairlead_tunnel.targets import Target
from fairlead_tunnel.tunnel import Side, Tunnel
from fairlead_tunnel.tunnel_driver import TunnelDriver
from relay_gateway.carried_tunnel import CarriedTunnel, Opening, most_channels
from relay_gateway.ports import ChannelOpening, Connecting
from relay_gateway.tunnel_session import TunnelSession
from relay_gateway.worker_port import WorkerPort


class LoopTunnel(CarriedTunnel):
    """Has a task for each channel that is being opened, and for each that leads to a sandbox."""

    def __init__(
        self,
        *,
        session: TunnelSession,
        opener: ChannelOpening,
        connector: Connecting,
        channel_limit: int,
        is_draining: Callable[[], bool],
        forget: Callable[[], None],
    ) -> None:
        super().__init__(
            session=session,
            opener=opener,
            channel_limit=channel_limit,
            is_draining=is_draining,
            forget=forget,
        )
        self._connector = connector
        tunnel = Tunnel(side=Side.GATEWAY, most_channels=most_channels(channel_limit))
        self.driver: TunnelDriver = TunnelDriver(tunnel=tunnel, user=self)

    def _to_host(self, channel: int, target: Target) -> Opening:
        return asyncio.create_task(self._connect_host(channel, target))

    def _to_sandbox(self, channel: int, target: Target) -> Opening:
        return asyncio.create_task(self._connect_sandbox(channel, target))

    async def _connect_host(self, channel: int, target: Target) -> None:
        """Connect a host; its bytes take no detour over a task."""
        port = ChannelPort(channel, self.driver)
        wanted = self._session.wanted
        await self._connector.connect(wanted, target.host, target.port, lambda: port)
        if self._lead(channel, port):
            self.driver.accept(channel)
        else:
            port.abort()

    async def _connect_sandbox(self, channel: int, target: Target) -> None:
        """Have the worker bring what is in the sandbox, and pass its messages on."""
        reader, writer = await self._opener.open(
            self._session.wanted, target.port, target.execution_id
        )
        far = FramedPort(reader=reader, writer=writer)
        port = WorkerPort(channel=channel, user=self.driver, far=far)
        if self._lead(channel, port):
            await port.run()
        else:
            far.abort()

    def _lead(self, channel: int, port: Port) -> bool:
        self._opening.pop(channel, None)
        return self.driver.connect(channel, port)
