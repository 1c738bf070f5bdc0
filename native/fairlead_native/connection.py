"""One WebRTC connection with data channels only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from fairlead_native.channel import Channel

if TYPE_CHECKING:
    from fairlead_native._core import Core, Outlet


class State(StrEnum):
    """Where a connection is; it leaves `closed` never, and `failed` only by a restart."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    DISCONNECTED = "disconnected"
    FAILED = "failed"
    CLOSED = "closed"


class Reason(StrEnum):
    """Why a connection is in its state."""

    NONE = ""
    SILENT = "silent"
    """The peer was not heard for too long, or no path works any more."""
    UNREACHABLE = "unreachable"
    """No path ever worked."""
    PEER = "peer"
    """The peer said goodbye."""
    LOCAL = "local"
    """This side closed it."""
    PROTOCOL = "protocol"
    """The peer broke a protocol, or is not who its description says; a restart cannot help."""


@dataclass(frozen=True, slots=True)
class StunServer:
    """A STUN server over UDP; `host` is an IPv4 or IPv6 address."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class TurnServer:
    """A TURN server over UDP, as `StunServer`, with a long-term credential (RFC 8489, 9.2)."""

    host: str
    port: int
    username: str
    credential: str = field(repr=False)


def _ignore_line(_: str) -> None:
    """Do nothing: nobody has asked to be told."""


def _ignore() -> None:
    """Do nothing: nobody has asked to be told."""


def _refuse(channel: Channel) -> None:
    """Close a channel that nobody has asked for."""
    channel.close()


class Connection:
    """A connection; made by `Engine.connect`. Its callbacks are set before anything happens."""

    def __init__(self, *, core: Core, relay_only: bool) -> None:
        self._core = core
        self.number = core.connect(relay_only)
        self._state = State.CONNECTING
        self._reason = Reason.NONE
        self._changed = asyncio.Event()
        self._gathered = asyncio.Event()
        self._channels: dict[int, Channel] = {}
        self.on_candidate: Callable[[str], None] = _ignore_line
        self.on_gathered: Callable[[], None] = _ignore
        self.on_state: Callable[[], None] = _ignore
        self.on_channel: Callable[[Channel], None] = _refuse

    @property
    def state(self) -> State:
        """Where the connection is."""
        return self._state

    @property
    def reason(self) -> Reason:
        """Why it is there."""
        return self._reason

    def use_servers(
        self, *, stun: Iterable[StunServer] = (), turn: Iterable[TurnServer] = ()
    ) -> None:
        """Ask these servers, and no other, from the next offer, answer or restart on.

        Given anew with fresh credentials, those are asked that have no relay for this connection;
        one that works stays. Raises ValueError for an address that is none.
        """
        asked = [(server.host, server.port) for server in stun]
        relays = [(server.host, server.port, server.username, server.credential) for server in turn]
        self._core.use_servers(self.number, asked, relays)

    def offer(self) -> str:
        """Return the first offer, without candidates: `on_candidate` gives them.

        Raises NegotiationRefused after an offer or an answer, ConnectionOver.
        """
        self._gathered.clear()
        return self._core.offer(self.number)

    def answer(self, offer: str) -> str:
        """Return the answer to an offer, the first or one that restarts ICE, as `offer` does.

        An offer of this side that waits for its answer is taken back.
        Raises DescriptionInvalid, ConnectionOver.
        """
        self._gathered.clear()
        return self._core.answer(self.number, offer)

    def accept_answer(self, answer: str) -> bool:
        """Take the answer to the last offer; says whether one was waited for, else it is ignored.

        Raises DescriptionInvalid, ConnectionOver.
        """
        return self._core.accept_answer(self.number, answer)

    def restart(self) -> str:
        """Return an offer that restarts ICE; a working path is used until the new one works.

        Raises NegotiationRefused before the first answer, ConnectionOver.
        """
        self._gathered.clear()
        return self._core.restart(self.number)

    def description(self) -> str:
        """Return the last offer or answer of this side with the candidates that are known.

        After `wait_gathered` it needs no trickle. Raises ConnectionOver.
        """
        return self._core.description(self.number)

    def add_candidate(self, line: str) -> None:
        """Take a candidate of the peer (RFC 8839, section 5.1, with `a=` or without).

        It may come at any time, also twice, and before the description that it belongs to. One
        that is not understood is ignored, as an address of multicast DNS is.
        """
        self._core.add_candidate(self.number, line)

    def end_of_candidates(self) -> None:
        """Take note that the peer has no more candidates (RFC 8838, section 13)."""
        self._core.end_of_candidates(self.number)

    def open_channel(self, label: str, *, protocol: str = "") -> Channel:
        """Open an ordered, reliable channel, now or as soon as there is an association.

        Raises ValueError for a label or a protocol of more than 256 bytes, ConnectionOver.
        """
        outlet = self._core.open_channel(self.number, label, protocol)
        channel = Channel(outlet=outlet, label=label, protocol=protocol, is_open=False)
        self._channels[outlet.number] = channel
        return channel

    async def wait_gathered(self) -> None:
        """Wait until all local candidates of the last offer or answer are known."""
        await self._gathered.wait()

    async def wait_state(self, *states: State) -> State:
        """Wait until the connection is in one of `states` and return which."""
        while self._state not in states:
            self._changed.clear()
            await self._changed.wait()
        return self._state

    def close(self) -> None:
        """Say goodbye, close all channels and free the sockets; again changes nothing."""
        self._core.close(self.number)

    def take_candidate(self, line: str) -> None:
        """Take a local candidate."""
        self.on_candidate(line)

    def take_gathered(self) -> None:
        """Take note that there are no more local candidates."""
        self._gathered.set()
        self.on_gathered()

    def take_state(self, state: str, reason: str) -> None:
        """Take a change of the state."""
        self._state, self._reason = State(state), Reason(reason)
        self._changed.set()
        self.on_state()

    def take_channel(
        self, outlet: Outlet, label: str, protocol: str, ordered: bool, reliable: bool
    ) -> None:
        """Take a channel that the peer opened."""
        channel = Channel(
            outlet=outlet,
            label=label,
            protocol=protocol,
            is_open=True,
            ordered=ordered,
            reliable=reliable,
        )
        self._channels[outlet.number] = channel
        self.on_channel(channel)

    def find_channel(self, number: int) -> Channel | None:
        """Return a channel by its number."""
        return self._channels.get(number)

    def take_closed(self, number: int) -> None:
        """Forget a channel that is over."""
        if channel := self._channels.pop(number, None):
            channel.take_closed()
