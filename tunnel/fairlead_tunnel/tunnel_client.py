"""The client's end of a tunnel: keeps a carrier attached, and opens channels for whoever asks."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol, TypeAlias

from fairlead_tunnel.carriers import TunnelTicket
from fairlead_tunnel.client_carriers import ClientCarriers, TunnelEnd
from fairlead_tunnel.handshake import AttachRefused
from fairlead_tunnel.pumped_driver import PumpedDriver, PumpedUser
from fairlead_tunnel.tunnel import Side, Tunnel, TunnelFull
from fairlead_tunnel.tunnel_driver import TunnelDriver
from fairlead_tunnel.ways import Way, WaysFailed

HELD_SECONDS: Final = 60.0
"""So long a gateway keeps a tunnel without a carrier."""
_GOODBYE_SECONDS: Final = 1.0

UNREACHABLE: Final = "gateway_unreachable"


class ConnectionUser(Protocol):
    """Whose connections a channel leads; none of these may raise."""

    def ended(self, reason: str, message: str) -> None:
        """Note that a channel has ended; the reason is empty when both directions finished.

        When the tunnel is over too, `is_over` says so a turn of the loop later.
        """
        ...

    def given_back(
        self, connection: socket.socket, early: bytes, reason: str, message: str
    ) -> None:
        """Take the connection of a channel that has ended with nothing done.

        `early` was read of it. Only a pump gives connections back.
        """
        ...


class ChannelUser(ConnectionUser, Protocol):
    """Whose channel it is; none of these may raise."""

    def accepted(self) -> None:
        """Note that the target is connected."""
        ...


class ListenerUser(ConnectionUser, Protocol):
    """Whose socket a pump accepts connections of; none of these may raise."""

    def has_accepted(self, connection: socket.socket) -> bool:
        """Say whether a connection was made to it."""
        ...


ClientDriver: TypeAlias = TunnelDriver | PumpedDriver
"""What runs a client's tunnel."""
MakeDriver: TypeAlias = Callable[[PumpedUser], ClientDriver]
"""Makes one for who is told what happens."""


def on_event_loop(user: PumpedUser) -> TunnelDriver:
    """Make a driver that runs a client's tunnel on the event loop."""
    return TunnelDriver(tunnel=Tunnel(side=Side.CLIENT), user=user)


class TunnelGone(RuntimeError):
    """The tunnel is over for good, or was never attached."""

    def __init__(self, end: TunnelEnd) -> None:
        super().__init__(end.message)
        self.end = end


class TunnelClient:
    """One tunnel, run by what `make_driver` makes, over `ways` to its gateway.

    `uniform` gives a random number between two, as `random.uniform`. `changed` is told whenever a
    carrier is lost (False) or attached again (True), `carried` of the way of each new carrier.
    """

    def __init__(
        self,
        *,
        ticket: TunnelTicket,
        ways: Sequence[Way],
        uniform: Callable[[float, float], float],
        make_driver: MakeDriver = on_event_loop,
        changed: Callable[[bool], None] = lambda attached: None,
        carried: Callable[[Way], None] = lambda way: None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        held_seconds: float = HELD_SECONDS,
    ) -> None:
        self._changed = changed
        self._held_seconds = held_seconds
        self._driver = make_driver(self)
        self._users: dict[int, ChannelUser] = {}
        self._listeners: list[ListenerUser] = []
        self._is_ended = False
        self._over: asyncio.Future[TunnelEnd] = asyncio.get_running_loop().create_future()
        self._carriers = ClientCarriers(
            ticket=ticket,
            driver=self._driver,
            ways=ways,
            over=self._over,
            uniform=uniform,
            sleep=sleep,
            carried=carried,
        )

    @property
    def carrier(self) -> str:
        """The name of the newest carrier; empty before the first one."""
        way = self._carriers.way
        return way.kind.carrier if way is not None else ""

    @property
    def is_over(self) -> bool:
        """Say whether no channel can be opened any more."""
        return self._is_ended or self._driver.is_over

    @property
    def is_attached(self) -> bool:
        """Say whether there is a carrier, as far as is known here."""
        return self._carriers.is_attached

    @property
    def driver(self) -> ClientDriver:
        """What connections of its channels are led by."""
        return self._driver

    # Carriers

    async def attach(self, seconds: float) -> None:
        """Attach the first carrier; gives up `seconds` after it began.

        Raises TunnelGone: refused, or `gateway_unreachable`.
        """
        try:
            await self._carriers.attach(seconds)
        except (AttachRefused, WaysFailed) as error:
            raise TunnelGone(self._end_by(error)) from error

    async def keep(self) -> TunnelEnd:
        """Attach another carrier whenever one is lost, and move to better ones, until the tunnel is
        over; says why.
        """
        try:
            await self._carriers.keep(self._held_seconds, self._tell)
        except (AttachRefused, WaysFailed) as error:
            end = self._end_by(error)
            self._end(end.reason, end.message)
        return await self._over

    async def close(self, reason: str, message: str) -> None:
        """End the tunnel and its channels, and give the gateway a second to be told."""
        self._end(reason, message)
        await self._carriers.close(_GOODBYE_SECONDS)

    def _tell(self, attached: bool) -> None:
        self._changed(attached)
        if not attached:
            self._driver.recall()  # who opened them may go on elsewhere

    def _end_by(self, error: AttachRefused | WaysFailed) -> TunnelEnd:
        if self._over.done():
            return self._over.result()
        if isinstance(error, AttachRefused):
            return TunnelEnd(error.reason, error.message)
        return TunnelEnd(UNREACHABLE, f"The gateway cannot be reached: {error}.")

    # Channels

    def open(self, target: str, user: ChannelUser, *, hold_seconds: float = 0.0) -> int:
        """Open a channel and return its number; its OPEN waits for its first bytes for at most
        `hold_seconds`.

        Raises TunnelGone once it is over, and TunnelFull.
        """
        if self.is_over:
            raise TunnelGone(self._end_so_far())
        try:
            channel = self._driver.open(target, hold_seconds=hold_seconds)
        except TunnelFull:
            if self._driver.channels:
                raise
            raise TunnelGone(self._end_so_far()) from None  # the pump is about to tell
        self._users[channel] = user
        return channel

    def add_listener(self, user: ListenerUser) -> None:
        """Tell somebody of the channels of connections that the driver has accepted itself."""
        self._listeners.append(user)

    # What the driver tells

    def wanted(self, channel: int, target: str) -> None:
        """Never comes: gateways open no channels."""

    def accepted(self, channel: int) -> None:
        """Tell whose channel it is."""
        user = self._users.get(channel)
        if user is not None:
            user.accepted()

    def dialled(self, channel: int, target: str, error: int, seconds: float) -> None:
        """Never comes: clients dial nothing."""

    def ended(self, channel: int, reason: str, message: str) -> None:
        """Tell whose channel it was, or who listens where nobody has opened it."""
        user: ConnectionUser | None = self._users.pop(channel, None) or next(
            iter(self._listeners), None
        )
        if user is not None:
            user.ended(reason, message)

    def given_back(
        self, channel: int, connection: socket.socket, early: bytes, reason: str, message: str
    ) -> None:
        """Give it to whose channel it was, or to whose socket it was made to."""
        user: ConnectionUser | None = self._users.pop(channel, None)
        if user is None:
            listeners = self._listeners
            user = next((each for each in listeners if each.has_accepted(connection)), None)
        if user is not None:
            user.given_back(connection, early, reason, message)
        else:
            connection.close()

    def over(self, reason: str, message: str) -> None:
        """Note it; the channels have ended before."""
        if not self._over.done():
            self._over.set_result(TunnelEnd(reason, message))

    def _end(self, reason: str, message: str) -> None:
        if not self._driver.is_over:
            self._is_ended = True
            self._driver.close(reason, message)

    def _end_so_far(self) -> TunnelEnd:
        if self._over.done():
            return self._over.result()
        return TunnelEnd("tunnel_over", "The tunnel is over.")
