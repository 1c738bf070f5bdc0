"""What a gateway and signalling tell each other, as the use cases see it; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from relay_gateway.session import WantedSession


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why something was not done: a machine-readable reason and a sentence."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class TunnelTerms:
    """What tickets of this gateway's tunnels are made with; 32 bytes each, and URLs, best first."""

    public_key: bytes
    ticket_secret: bytes = field(repr=False)
    urls: Sequence[str]


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message: who this is, which sessions it holds, and where workers dial it; `ended`
    says why those ended whose end signalling may have missed.
    """

    gateway_id: str
    session_ids: Sequence[str]
    capacity: int
    workers_address: str
    can_trickle: bool = False
    ended: Sequence[Changed] = ()
    tunnel: TunnelTerms | None = None


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """This gateway is alive, and so loaded."""

    sessions: int
    channels: int
    draining: bool


@dataclass(frozen=True, slots=True)
class Answered:
    """The SDP answer to a session's offer, or why there is none."""

    session_id: str
    outcome: str | Refusal
    round: int = 1


@dataclass(frozen=True, slots=True)
class Candidates:
    """Candidates of one side for one round; `first` counts those that were sent before these.

    From signalling they are the client's, to signalling the gateway's.
    """

    session_id: str
    round: int
    first: int
    candidates: tuple[str, ...]
    ended: bool


@dataclass(frozen=True, slots=True)
class RestartWanted:
    """The session's path is lost: the client is asked to replace this round."""

    session_id: str
    round: int


@dataclass(frozen=True, slots=True)
class Changed:
    """A session is connected by the path of a round, or closed for `close_reason`."""

    session_id: str
    connected: bool
    close_reason: str = ""
    round: int = 0


@dataclass(frozen=True, slots=True)
class PortWanted:
    """A channel wants a connection to a port of the session's sandbox, or to the terminal of an
    execution in it.
    """

    request_id: int
    session_id: str
    port: int
    traceparent: str
    ticket: bytes
    execution_id: str = ""


Report: TypeAlias = Heartbeat | Answered | Candidates | Changed | PortWanted | RestartWanted


@dataclass(frozen=True, slots=True)
class Welcome:
    """Everything that signalling wants here, and how often it wants to hear of this gateway."""

    wanted: Sequence[WantedSession]
    heartbeat_seconds: float


@dataclass(frozen=True, slots=True)
class SessionUnwanted:
    """A session is to be closed."""

    session_id: str


@dataclass(frozen=True, slots=True)
class PortGranted:
    """The answer to a PortWanted; without a refusal the worker has dialled."""

    request_id: int
    refusal: Refusal | None = None


Order: TypeAlias = Welcome | WantedSession | Candidates | SessionUnwanted | PortGranted
