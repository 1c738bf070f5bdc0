"""A tunnel whose channels are led on the thread of the native pump, past the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from socket import socket

from fairlead_tunnel.framed_port import FramedPort
from fairlead_tunnel.pumped_driver import NativePump, PumpedDriver
from fairlead_tunnel.targets import Target
from fairlead_tunnel.tunnel import Side
from relay_gateway.carried_tunnel import CarriedTunnel, Opening
from relay_gateway.ports import ChannelOpening, Connecting
from relay_gateway.pumped_port import PumpedPort, open_pumped_port
from relay_gateway.tunnel_session import TunnelSession
from relay_gateway.worker_port import WorkerPort


class PumpedTunnel(CarriedTunnel):
    """Gives the pump a socket for each channel: of a host, or of a pair whose other end passes
    messages of a worker on, in a task.
    """

    def __init__(
        self,
        *,
        session: TunnelSession,
        opener: ChannelOpening,
        connector: Connecting,
        pump: NativePump,
        channel_limit: int,
        is_draining: Callable[[], bool],
        forget: Callable[[], None],
    ) -> None:
        super().__init__(session=session, opener=opener, is_draining=is_draining, forget=forget)
        self._connector = connector
        self._ports: dict[int, PumpedPort] = {}
        self._count = 0
        self._late: set[int] = set()
        self._is_over = asyncio.Event()
        self.driver: PumpedDriver = PumpedDriver(
            pump=pump, side=Side.GATEWAY, user=self, most_channels=channel_limit
        )

    @property
    def channels(self) -> int:
        """How many channels are open or being opened, or have bytes that somebody has not got."""
        return max(self._count, self.driver.channels) + len(self._late)

    async def close(self) -> None:
        """End it with its channels, after telling the client; again changes nothing."""
        await super().close()
        await self._is_over.wait()

    def wanted(self, channel: int, target: str) -> None:
        """Connect what a channel leads to, or refuse it at once."""
        self._count += 1
        super().wanted(channel, target)

    def dial_failed(self, channel: int, error: int) -> None:
        """Nothing is dialled there, since nobody would be told when that is done."""
        raise AssertionError

    def given_back(
        self, channel: int, connection: socket, early: bytes, reason: str, message: str
    ) -> None:
        """Only clients are told that."""
        raise AssertionError

    def ended(self, channel: int, reason: str, message: str) -> None:
        """Give up what is still being opened, and the worker's end of what did not finish."""
        self._count -= 1
        super().ended(channel, reason, message)
        if port := self._ports.pop(channel, None):
            if not port.is_done:
                self._late.add(channel)
            port.ended(reason)

    def over(self, reason: str, message: str) -> None:
        """Let the session end, whoever ended the tunnel."""
        self._is_over.set()
        super().over(reason, message)

    def _to_host(self, channel: int, target: Target) -> Opening:
        connecting = self._connector.connect_socket(self._session.wanted, target.host, target.port)
        connecting.add_done_callback(partial(self._lead, channel))
        return connecting

    def _lead(self, channel: int, connecting: asyncio.Future[socket]) -> None:
        """Have the pump take a connection; it closes one of a channel that has ended."""
        if not connecting.cancelled() and connecting.exception() is None:
            self._opening.pop(channel, None)
            self.driver.connect(channel, connecting.result())

    def _to_sandbox(self, channel: int, target: Target) -> Opening:
        return asyncio.create_task(self._connect_sandbox(channel, target))

    async def _connect_sandbox(self, channel: int, target: Target) -> None:
        """Have the worker bring what is in the sandbox, and pass its messages on."""
        reader, writer = await self._opener.open(
            self._session.wanted, target.port, target.execution_id
        )
        far = FramedPort(reader=reader, writer=writer)
        try:
            port = await open_pumped_port(self.driver)
        except BaseException:
            far.abort()
            raise
        worker = port.worker = WorkerPort(channel=channel, user=port, far=far)
        del self._opening[channel]
        self._ports[channel] = port
        try:
            await worker.run()
        finally:
            port.is_done = True
            self._late.discard(channel)
