"""A tunnel whose channels are led on the thread of the native pump, past the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from socket import socket

from fairlead_tunnel.framed_port import FramedPort
from fairlead_tunnel.pumped_driver import NativePump, PumpedDriver
from fairlead_tunnel.targets import Target, target_of
from fairlead_tunnel.tunnel import Side
from relay_gateway.carried_tunnel import CarriedTunnel, Opening, most_channels
from relay_gateway.ports import ChannelOpening, Judging
from relay_gateway.pumped_port import PumpedPort, open_pumped_port
from relay_gateway.tunnel_session import TunnelSession
from relay_gateway.worker_port import WorkerPort


class PumpedTunnel(CarriedTunnel):
    """Tells the pump which addresses a channel leads to; or gives it a socket of a pair whose other
    end passes messages of a worker on, in a task.
    """

    def __init__(
        self,
        *,
        session: TunnelSession,
        opener: ChannelOpening,
        judge: Judging,
        pump: NativePump,
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
        self._judge = judge
        self._ports: dict[int, PumpedPort] = {}
        self._late: set[int] = set()
        self._is_over = asyncio.Event()
        self.driver: PumpedDriver = PumpedDriver(
            pump=pump,
            side=Side.GATEWAY,
            user=self,
            most_channels=most_channels(channel_limit),
        )

    @property
    def channels(self) -> int:
        """How many channels are open or being opened, or have bytes that somebody has not got.

        The pump counts a channel until both sides know how it ended, so that it may be among those
        here, whether it is open or late.
        """
        here = len(self._opening) + len(self._ports) + len(self._late)
        return max(here, self.driver.channels)

    async def close(self) -> None:
        """End it with its channels, after telling the client; again changes nothing."""
        await super().close()
        await self._is_over.wait()

    def dialled(self, channel: int, target: str, error: int, seconds: float) -> None:
        """Refuse a channel whose target was not reached; note one that took long."""
        found = target_of(target) or Target()
        failure = self._judge.dialled(self._session.wanted, found.host, found.port, error, seconds)
        if failure is not None:
            self.driver.refuse(channel, failure.reason, failure.message)

    def given_back(
        self, channel: int, connection: socket, early: bytes, reason: str, message: str
    ) -> None:
        """Only clients are told that."""
        raise AssertionError

    def ended(self, channel: int, reason: str, message: str) -> None:
        """Give up what is still being opened, and the worker's end of what did not finish."""
        super().ended(channel, reason, message)
        if port := self._ports.pop(channel, None):
            if not port.is_done:
                self._late.add(channel)
            port.ended(reason)

    def over(self, reason: str, message: str) -> None:
        """Let the session end, whoever ended the tunnel."""
        self._is_over.set()
        super().over(reason, message)

    def _to_host(self, channel: int, target: Target) -> Opening | None:
        address = self._judge.judge(self._session.wanted, target.host, target.port)
        if address is None:
            return asyncio.create_task(self._to_name(channel, target))
        self.driver.dial(channel, (address,), target.port, seconds=self._judge.dial_seconds)
        return None

    async def _to_name(self, channel: int, target: Target) -> None:
        """Resolve a name, and have the addresses dialled that were judged."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        addresses = await self._judge.resolve(self._session.wanted, target.host, target.port)
        del self._opening[channel]
        seconds, spent = self._judge.dial_seconds, loop.time() - began
        self.driver.dial(channel, addresses, target.port, seconds=seconds, spent=spent)

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
