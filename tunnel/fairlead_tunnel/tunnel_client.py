"""The client's end of a tunnel: keeps a carrier attached, and opens channels for whoever asks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import urlsplit

from fairlead_tunnel.carriers import TunnelTicket
from fairlead_tunnel.channel_port import ChannelPort
from fairlead_tunnel.driver_sides import CarrierDriver, OrderedCarrier
from fairlead_tunnel.handshake import AttachRefused, HandshakeInvalid
from fairlead_tunnel.records import RecordInvalid
from fairlead_tunnel.tunnel import Side, Tunnel
from fairlead_tunnel.tunnel_driver import TunnelDriver

HELD_SECONDS: Final = 60.0
"""So long a gateway keeps a tunnel without a carrier."""
LEAST_PAUSE: Final = 0.1
MOST_PAUSE: Final = 5.0
_GOODBYE_SECONDS: Final = 1.0

UNREACHABLE: Final = "gateway_unreachable"


class AttachedCarrier(Protocol):
    """A carrier that the driver uses, such as a `ClientCarrier`."""

    @property
    def gone(self) -> asyncio.Future[None]:
        """Done once it has ended, for whatever reason."""
        ...

    @property
    def stream(self) -> OrderedCarrier:
        """What it sends through."""
        ...


class CarrierDialler(Protocol):
    """Attaches carriers of one kind."""

    async def attach(
        self, url: str, *, ticket: TunnelTicket, driver: CarrierDriver
    ) -> AttachedCarrier:
        """Attach one to a tunnel.

        Raises AttachRefused where the gateway says why not; OSError, HandshakeInvalid and
        RecordInvalid where it cannot be reached this way now.
        """
        ...


class ChannelUser(Protocol):
    """Whose channel it is; neither may raise."""

    def accepted(self) -> None:
        """Note that the target is connected."""
        ...

    def ended(self, reason: str, message: str) -> None:
        """Note that it has ended; the reason is empty when both directions finished."""
        ...


@dataclass(frozen=True, slots=True)
class TunnelEnd:
    """Why a tunnel is over; `reason` is lower snake case."""

    reason: str
    message: str


class TunnelGone(RuntimeError):
    """The tunnel is over for good, or was never attached."""

    def __init__(self, end: TunnelEnd) -> None:
        super().__init__(end.message)
        self.end = end


class TunnelClient:
    """One tunnel; `urls` of schemes without a dialler are passed over.

    `uniform` gives a random number between two, as `random.uniform`. `changed` is told whenever a
    carrier is lost (False) or attached again (True).
    """

    def __init__(
        self,
        *,
        ticket: TunnelTicket,
        urls: Sequence[str],
        diallers: Mapping[str, CarrierDialler],
        uniform: Callable[[float, float], float],
        changed: Callable[[bool], None] = lambda attached: None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        held_seconds: float = HELD_SECONDS,
    ) -> None:
        self._ticket = ticket
        known = ((url, diallers.get(urlsplit(url).scheme)) for url in urls)
        self._ways = [(url, dialler) for url, dialler in known if dialler is not None]
        self._uniform = uniform
        self._changed = changed
        self._sleep = sleep
        self._held_seconds = held_seconds
        self._tunnel = Tunnel(side=Side.CLIENT)
        self._driver = TunnelDriver(tunnel=self._tunnel, user=self)
        self._users: dict[int, ChannelUser] = {}
        self._carrier: AttachedCarrier | None = None
        self._over: asyncio.Future[TunnelEnd] = asyncio.get_running_loop().create_future()

    @property
    def is_over(self) -> bool:
        """Say whether no channel can be opened any more."""
        return self._tunnel.over is not None

    @property
    def is_attached(self) -> bool:
        """Say whether there is a carrier, as far as is known here."""
        return self._carrier is not None and not self._carrier.gone.done()

    @property
    def driver(self) -> TunnelDriver:
        """What connections of its channels are led by."""
        return self._driver

    # Carriers

    async def attach(self, seconds: float) -> None:
        """Attach the first carrier; gives up `seconds` after it began.

        Raises TunnelGone: refused, or `gateway_unreachable`.
        """
        self._carrier = await self._attached(seconds)

    async def keep(self) -> TunnelEnd:
        """Attach another carrier whenever one is lost, until the tunnel is over; says why."""
        while self._carrier is not None and not self._over.done():
            # Both outlast this wait, also when it is cancelled.
            await asyncio.wait(
                (self._carrier.gone, self._over), return_when=asyncio.FIRST_COMPLETED
            )
            if self._over.done():
                break
            self._changed(False)
            try:
                self._carrier = await self._attached(self._held_seconds)
            except TunnelGone as gone:
                self._end(gone.end.reason, gone.end.message)
            else:
                self._changed(True)
        return await self._over

    async def close(self, reason: str, message: str) -> None:
        """End the tunnel and its channels, and give the gateway a second to be told."""
        self._end(reason, message)
        if self._carrier is not None:
            self._carrier.stream.close()
            await asyncio.wait((self._carrier.gone,), timeout=_GOODBYE_SECONDS)

    async def _attached(self, seconds: float) -> AttachedCarrier:
        """Attach over the first way that goes, in rounds with random pauses (full jitter)."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        most = LEAST_PAUSE
        fault = "it has no carrier that is known here"
        while True:
            for url, dialler in self._ways:
                try:
                    return await dialler.attach(url, ticket=self._ticket, driver=self._driver)
                except AttachRefused as error:
                    if error.reason != "attach_replayed":
                        raise TunnelGone(TunnelEnd(error.reason, error.message)) from error
                    fault = error.message
                except (OSError, HandshakeInvalid, RecordInvalid) as error:
                    fault = f"{url}: {error or type(error).__name__}"
                if self._over.done():
                    raise TunnelGone(self._over.result())
            pause = self._uniform(0.0, most)
            if not self._ways or loop.time() + pause >= deadline:
                message = f"The gateway cannot be reached: {fault}."
                raise TunnelGone(TunnelEnd(UNREACHABLE, message))
            most = min(2 * most, MOST_PAUSE)
            await self._sleep(pause)

    # Channels

    def open(self, target: str, user: ChannelUser, *, hold_seconds: float = 0.0) -> int:
        """Open a channel and return its number; its OPEN waits for its first bytes for at most
        `hold_seconds`.

        Raises TunnelGone once it is over, and TunnelFull.
        """
        over = self._tunnel.over
        if over is not None:
            raise TunnelGone(TunnelEnd(over.reason, over.message))
        channel = self._driver.open(target, hold_seconds=hold_seconds)
        self._users[channel] = user
        return channel

    def lead(self, channel: int, port: ChannelPort) -> bool:
        """Lead what the gateway sends to a connection; False when the channel has ended."""
        return self._driver.connect(channel, port)

    # What the driver tells

    def wanted(self, channel: int, target: str) -> None:
        """Never comes: gateways open no channels."""

    def accepted(self, channel: int) -> None:
        """Tell whose channel it is."""
        user = self._users.get(channel)
        if user is not None:
            user.accepted()

    def ended(self, channel: int, reason: str, message: str) -> None:
        """Tell whose channel it was."""
        user = self._users.pop(channel, None)
        if user is not None:
            user.ended(reason, message)

    def over(self, reason: str, message: str) -> None:
        """Note it; the channels have ended before."""
        if not self._over.done():
            self._over.set_result(TunnelEnd(reason, message))

    def _end(self, reason: str, message: str) -> None:
        if self._tunnel.over is None:
            self._driver.close(reason, message)
