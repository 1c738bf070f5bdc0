"""A tunnel that a client has attached to, and what its channels lead to."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol, TypeAlias

from chassis.errors import FairleadError
from fairlead_tunnel.driver_sides import CarrierDriver
from fairlead_tunnel.targets import Target, target_of
from fairlead_tunnel.tunnel import MOST_CHANNELS
from relay_gateway.ports import ChannelOpening
from relay_gateway.session import ChannelUnknown, CloseReason, GatewayDraining
from relay_gateway.tunnel_session import TunnelSession

Opening: TypeAlias = asyncio.Future[None]
"""The way to what a channel leads to; what it raises is why there is none."""

GOODBYE_SECONDS: Final = 1.0
"""For clients to take what ends their tunnels when a gateway stops."""
_LOOK_SECONDS: Final = 0.01

log = logging.getLogger(__name__)


def most_channels(channel_limit: int) -> int:
    """Return how many channels a tunnel has, those included that wait; more are refused."""
    return max(2 * channel_limit, MOST_CHANNELS)


class ChannelDriver(CarrierDriver, Protocol):
    """A driver whose channels can be given up."""

    def refuse(self, channel: int, reason: str, message: str, /) -> None:
        """Give a channel up, and drop its connection."""
        ...


class CarriedTunnel:
    """Opens what the client wants: up to `channel_limit` channels at once, each by itself; those
    beyond wait, in order, until others have ended.

    `driver` has the carriers, and is told of targets by who extends this for it: `_to_host` and
    `_to_sandbox` begin to connect one, and take it out of `_opening` when a channel leads there;
    they return None where that is all that is to be done.
    """

    driver: ChannelDriver

    def __init__(
        self,
        *,
        session: TunnelSession,
        opener: ChannelOpening,
        channel_limit: int,
        is_draining: Callable[[], bool],
        forget: Callable[[], None],
    ) -> None:
        self._channel_limit = channel_limit
        self._led: set[int] = set()
        self._waiting: dict[int, Target] = {}
        self._session = session
        self._opener = opener
        self._is_draining = is_draining
        self._forget = forget
        self._opening: dict[int, Opening] = {}
        self._tasks: set[Opening] = set()

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
        if self._is_draining():  # this process is about to end, and its connections with it
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GOODBYE_SECONDS):
                    while self.driver.carriers:  # noqa: ASYNC110 - once in a life
                        await asyncio.sleep(_LOOK_SECONDS)

    def wanted(self, channel: int, target: str) -> None:
        """Connect what a channel leads to, or have it wait, or refuse it at once."""
        try:
            found = target_of(target)
            if found is None:
                raise ChannelUnknown
            if self._is_draining():
                raise GatewayDraining
        except FairleadError as error:
            self.driver.refuse(channel, error.reason, error.message)
            return
        if len(self._led) < self._channel_limit and not self._waiting:
            self._lead_to(channel, found)
        else:
            self._waiting[channel] = found

    def _lead_to(self, channel: int, target: Target) -> None:
        self._led.add(channel)
        connect = self._to_host if target.host else self._to_sandbox
        try:
            if self._is_draining():
                raise GatewayDraining
            opening = connect(channel, target)
        except FairleadError as error:
            self.driver.refuse(channel, error.reason, error.message)
            return
        if opening is None:
            return
        self._opening[channel] = opening
        self._tasks.add(opening)
        opening.add_done_callback(partial(self._settle, channel))

    def accepted(self, channel: int) -> None:
        """Only clients are told that."""
        raise AssertionError

    def ended(self, channel: int, reason: str, message: str) -> None:
        """Give up what is still being opened, and let another channel take its place."""
        self._waiting.pop(channel, None)
        self._led.discard(channel)
        if self._waiting:
            # Not here: a channel that is refused ends at once, too.
            asyncio.get_running_loop().call_soon(self._lead_waiting)
        if opening := self._opening.pop(channel, None):
            opening.cancel()

    def _lead_waiting(self) -> None:
        while self._waiting and len(self._led) < self._channel_limit:
            channel = next(iter(self._waiting))
            self._lead_to(channel, self._waiting.pop(channel))

    def over(self, reason: str, message: str) -> None:
        """Let the session end, whoever ended the tunnel."""
        self._waiting.clear()
        self._forget()
        is_fault = reason == "protocol_error"
        self._session.over(CloseReason.CONNECTION_FAILED if is_fault else CloseReason.PEER_CLOSED)

    def _to_host(self, channel: int, target: Target) -> Opening | None:
        raise NotImplementedError

    def _to_sandbox(self, channel: int, target: Target) -> Opening:
        raise NotImplementedError

    def _settle(self, channel: int, opening: Opening) -> None:
        """Refuse a channel that leads nowhere."""
        self._tasks.discard(opening)
        if opening.cancelled():
            return
        error = opening.exception()
        if error is None:
            return
        self._opening.pop(channel, None)
        if isinstance(error, FairleadError):
            self.driver.refuse(channel, error.reason, error.message)
            return
        session_id = self._session.wanted.session_id
        log.error("channel failed", extra={"session_id": session_id}, exc_info=error)
        self.driver.refuse(channel, "gateway_failed", "The gateway failed.")
