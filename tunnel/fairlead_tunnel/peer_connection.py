"""The port of a peer connection: what a session needs of any WebRTC core, and what it tells.

Cores differ in what they can: one that is `complete` puts all candidates into its descriptions, and
answers `CoreLacks` where candidates one by one or a restart are asked of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeAlias

from fairlead_tunnel.pump import MessagePort


class PeerChannel(MessagePort, Protocol):
    """A data channel."""

    @property
    def queued(self) -> int:
        """How many bytes wait to be sent."""
        ...

    @property
    def has_room(self) -> bool:
        """Say whether `drain` would not wait."""
        ...


class PeerState(StrEnum):
    """How the path to the peer is."""

    CONNECTED = "connected"
    """Channels carry."""
    DISCONNECTED = "disconnected"
    """Nothing was heard for some seconds; it may come back, and a restart may find another path."""
    FAILED = "failed"
    """No path was found, or consent has ended (RFC 7675); channels are lost."""
    CLOSED = "closed"
    """The peer has ended the connection; channels are lost."""


@dataclass(frozen=True, slots=True)
class CandidateFound:
    """A local candidate, `candidate:…` (RFC 8839, section 5.1)."""

    candidate: str


@dataclass(frozen=True, slots=True)
class GatheringDone:
    """No more local candidates come in this round."""


@dataclass(frozen=True, slots=True)
class StateChanged:
    """The path is different now."""

    state: PeerState


@dataclass(frozen=True, slots=True)
class ChannelOpened:
    """The peer has opened a channel; attach to `port` before returning, or lose messages."""

    label: str
    protocol: str
    is_reliable: bool
    """Whether it is ordered, and nothing on it is ever given up."""
    port: PeerChannel


PeerEvent: TypeAlias = CandidateFound | GatheringDone | StateChanged | ChannelOpened


class IcePolicy(StrEnum):
    """Which paths may be taken."""

    ALL = "all"
    RELAY = "relay"
    """Only through a TURN server."""
    DIRECT = "direct"
    """Never through a TURN server."""


@dataclass(frozen=True, slots=True)
class IceServer:
    """A STUN or TURN server (RFC 7064, RFC 7065); name and password are for TURN only."""

    urls: tuple[str, ...]
    username: str = ""
    credential: str = ""


@dataclass(frozen=True, slots=True)
class PeerPlan:
    """How a connection is to be made."""

    trickles: bool = False
    """Whether candidates are told one by one; else descriptions carry them all."""
    policy: IcePolicy = IcePolicy.ALL
    servers: tuple[IceServer, ...] = ()

    @property
    def usable_servers(self) -> tuple[IceServer, ...]:
        """The servers that the policy leaves: without the TURN servers when it is `direct`."""
        if self.policy is not IcePolicy.DIRECT:
            return self.servers
        kept = []
        for server in self.servers:
            urls = tuple(url for url in server.urls if not url.lower().startswith("turn"))
            if urls:
                kept.append(IceServer(urls))
        return tuple(kept)


class CoreError(Exception):
    """What a core refuses; `reason` is lower snake case."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class CoreLacks(CoreError):
    """The core cannot do this at all."""

    def __init__(self, core: str, what: str) -> None:
        super().__init__("unsupported", f"The WebRTC core {core} cannot {what}.")


class DescriptionInvalid(CoreError):
    """A description is not one, or does not fit the state of the negotiation."""

    def __init__(self) -> None:
        super().__init__("sdp_invalid", "It is not a description that fits here.")


class PeerConnection(Protocol):
    """One connection; its steps are taken one after the other.

    The first round is an offer and an answer; a restart is one more of each, by the same peer.
    """

    def listen(self, take: Callable[[PeerEvent], None]) -> None:
        """Tell events from now on, on the event loop; called once, before the first step."""
        ...

    def use_servers(self, servers: tuple[IceServer, ...]) -> None:
        """Ask these servers, as the plan's policy leaves them, from the next round on: the names
        and passwords of the plan's have ended by then.
        """
        ...

    async def offer(self) -> str:
        """Return the SDP offer of the first round; without candidates when it trickles."""
        ...

    async def restart(self) -> str:
        """Return the offer of one more round (RFC 8445, section 9); raises CoreLacks."""
        ...

    async def answer(self, offer: str) -> str:
        """Return the SDP answer; raises DescriptionInvalid, CoreLacks for a second round."""
        ...

    async def accept(self, answer: str) -> None:
        """Take the answer to the last offer; raises DescriptionInvalid."""
        ...

    async def add_candidate(self, candidate: str) -> None:
        """Take a candidate of the peer in this round; one that is of no use changes nothing.

        Raises CoreLacks.
        """
        ...

    async def end_candidates(self) -> None:
        """Note that the peer has no more candidates in this round; raises CoreLacks."""
        ...

    def open_channel(self, label: str, protocol: str) -> PeerChannel:
        """Open an ordered and reliable channel; only once it is connected."""
        ...

    async def close(self) -> None:
        """Free everything, in a bounded time; again changes nothing, and nothing is told after."""
        ...


class PeerCore(Protocol):
    """Makes connections."""

    @property
    def name(self) -> str:
        """What it is called, for people."""
        ...

    @property
    def can_trickle(self) -> bool:
        """Say whether it tells and takes candidates one by one, and restarts."""
        ...

    async def load(self) -> None:
        """Import what it needs, in a thread; raises ImportError."""
        ...

    def connect(self, plan: PeerPlan) -> PeerConnection:
        """Make a connection, once loaded; raises CoreLacks for a plan that it cannot follow."""
        ...
