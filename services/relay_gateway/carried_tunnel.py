"""A tunnel that a client has attached to, and what its channels lead to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine

from chassis.errors import FairleadError
from fairlead_tunnel.channel_port import ChannelPort, Port
from fairlead_tunnel.framed_port import FramedPort
from fairlead_tunnel.targets import Target, target_of
from fairlead_tunnel.tunnel import Side, Tunnel
from fairlead_tunnel.tunnel_driver import TunnelDriver
from relay_gateway.ports import ChannelOpening, Connecting
from relay_gateway.session import ChannelUnknown, CloseReason, GatewayDraining
from relay_gateway.tunnel_session import TunnelSession
from relay_gateway.worker_port import WorkerPort

log = logging.getLogger(__name__)


class CarriedTunnel:
    """Opens what the client wants, each channel in a task of its own, so that none waits for
    another; `driver` has the carriers.
    """

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
        self._session = session
        self._opener = opener
        self._connector = connector
        self._is_draining = is_draining
        self._forget = forget
        self._tasks: set[asyncio.Task[None]] = set()
        self._opening: dict[int, asyncio.Task[None]] = {}
        self.driver = TunnelDriver(
            tunnel=Tunnel(side=Side.GATEWAY, most_channels=channel_limit), user=self
        )

    @property
    def channels(self) -> int:
        """How many channels are open or being opened."""
        return self.driver.channels

    @property
    def carriers(self) -> int:
        """How many carriers are attached."""
        return self.driver.carriers

    async def close(self) -> None:
        """End it with its channels, after telling the client; again changes nothing."""
        if self._is_draining():
            self.driver.close(CloseReason.DRAINED, "The gateway stops; open another session.")
        else:
            self.driver.close("session_closed", "The session was closed.")
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def wanted(self, channel: int, target: str) -> None:
        """Connect what a channel leads to, or refuse it at once."""
        try:
            found = target_of(target)
            if found is None:
                raise ChannelUnknown
            if self._is_draining():
                raise GatewayDraining
        except FairleadError as error:
            self.driver.refuse(channel, error.reason, error.message)
            return
        opening = self._to_host if found.host else self._to_sandbox
        task = asyncio.create_task(self._open(channel, opening(channel, found)))
        self._opening[channel] = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def accepted(self, channel: int) -> None:
        """Only clients are told that."""
        raise AssertionError

    def ended(self, channel: int, reason: str, message: str) -> None:
        """Give up what is still being opened."""
        if task := self._opening.pop(channel, None):
            task.cancel()

    def over(self, reason: str, message: str) -> None:
        """Let the session end, whoever ended the tunnel."""
        self._forget()
        is_fault = reason == "protocol_error"
        self._session.over(CloseReason.CONNECTION_FAILED if is_fault else CloseReason.PEER_CLOSED)

    async def _open(self, channel: int, opening: Coroutine[None, None, None]) -> None:
        try:
            await opening
        except FairleadError as error:
            self._refuse(channel, error.reason, error.message)
        except Exception:
            log.exception("channel failed", extra={"session_id": self._session.wanted.session_id})
            self._refuse(channel, "gateway_failed", "The gateway failed.")

    def _refuse(self, channel: int, reason: str, message: str) -> None:
        self._opening.pop(channel, None)
        self.driver.refuse(channel, reason, message)

    def _connect(self, channel: int, port: Port) -> bool:
        self._opening.pop(channel, None)
        return self.driver.connect(channel, port)

    async def _to_host(self, channel: int, target: Target) -> None:
        """Connect a host; its bytes take no detour over a task."""
        port = ChannelPort(channel, self.driver)
        wanted = self._session.wanted
        await self._connector.connect(wanted, target.host, target.port, lambda: port)
        if self._connect(channel, port):
            self.driver.accept(channel)
        else:
            port.abort()

    async def _to_sandbox(self, channel: int, target: Target) -> None:
        """Have the worker bring what is in the sandbox, and pass its messages on."""
        reader, writer = await self._opener.open(
            self._session.wanted, target.port, target.execution_id
        )
        far = FramedPort(reader=reader, writer=writer)
        port = WorkerPort(channel=channel, driver=self.driver, far=far)
        if self._connect(channel, port):
            await port.run()
        else:
            far.abort()
