"""What sessions need of the rest (a store, the gateways' directory, launches), and what they are to
the API layers.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol

from signalling.gateway import Gateway, Meeting
from signalling.ice_candidate import CandidateOutcome
from signalling.ice_servers import IceServer
from signalling.session import Session
from signalling.session_event import SessionEvent
from signalling.tunnel import Tunnel


@dataclass(frozen=True, slots=True)
class Notice:
    """Another replica has changed a session."""

    session_id: str
    gateway_id: str


class SessionStore(Protocol):
    """Session records with compare-and-set and a time to live; each change is told to the other
    replicas.
    """

    async def get(self, session_id: str) -> Session | None:
        """Return the record, or None when there is none (any more)."""
        ...

    async def get_many(self, session_ids: Sequence[str]) -> Sequence[Session]:
        """Return the records that there are."""
        ...

    async def save(self, session: Session, *, ttl_seconds: float, restore: bool = False) -> bool:
        """Write a record if the stored one is its predecessor, and say whether that was so.

        Version 1 needs that nothing is stored, and raises LaunchNotHeld once the launch has ended;
        with `restore` a lost record is written whatever its version.
        """
        ...

    async def end_launch(self, launch_id: str, *, remembered_seconds: float) -> None:
        """Let nobody, at whatever replica, open another session of a launch from now on."""
        ...

    async def of_gateway(self, gateway_id: str) -> Sequence[Session]:
        """Return the sessions of a gateway that are not closed, by id."""
        ...

    async def of_launch(self, launch_id: str) -> Sequence[Session]:
        """Return the sessions of a launch that are not closed, by id."""
        ...

    async def of_tenant(
        self, tenant: str, *, after: str, size: int
    ) -> tuple[Sequence[Session], str]:
        """Return sessions of a tenant that are not closed, by id, and the id to go on after, which
        is empty after the last; there may be fewer than `size` although others follow.
        """
        ...

    def changes(self) -> AsyncGenerator[Sequence[Notice] | None, None]:
        """Yield what other replicas changed; None when it is unknown what was changed before."""
        ...


class GatewayDirectory(Protocol):
    """Registrations of connected gateways, each under a lease."""

    async def put(self, gateway: Gateway) -> None:
        """Register a gateway or renew its lease."""
        ...

    async def remove(self, gateway_id: str) -> None:
        """Forget a gateway; an unknown one is no error."""
        ...

    async def list(self) -> Sequence[Gateway]:
        """Return the registered gateways, by id."""
        ...


@dataclass(frozen=True, slots=True)
class Reached:
    """What a session leads to, as far as sessions care; `traceparent` (W3C) is the trace that
    sessions belong to, empty where they have their own.
    """

    has_sandbox: bool
    is_over: bool
    traceparent: str = ""

    @property
    def held(self) -> bool:
        """Say whether there is a sandbox to reach."""
        return self.has_sandbox and not self.is_over


class ReachedLaunches(Protocol):
    """Launches as sessions see them, and sandboxes that need none: an id says which."""

    async def reached(self, tenant: str, launch_id: str) -> Reached:
        """Say what there is, which may not hold a sandbox yet; raises LaunchNotFound and
        SandboxNotFound.
        """
        ...

    def traceparent(self, tenant: str, launch_id: str) -> str:
        """Return the trace that sessions belong to, where that is known without asking anybody."""
        ...

    async def open_port(self, tenant: str, launch_id: str, port: int, meeting: Meeting) -> None:
        """Have the host's worker bring one connection into the sandbox to a gateway."""
        ...


class Targets(Protocol):
    """Launches and sandboxes, as their hosts have them."""

    async def is_gone(self, tenant: str, launch_id: str) -> bool:
        """Say whether a launch or sandbox is over, also where only its host knows; raises where
        that cannot be said.
        """
        ...


@dataclass(frozen=True, slots=True)
class Subscribed:
    """A watcher that has seen all up to the cursor is there: the session as it is."""

    session: Session
    cursor: int


@dataclass(frozen=True, slots=True)
class Happened:
    """An event, with the session that holds what it speaks of."""

    session: Session
    event: SessionEvent


Watched = Subscribed | Happened


class Sessions(Protocol):
    """Sessions from the client's side."""

    async def open(
        self,
        tenant: str,
        launch_id: str,
        mode: str,
        key: str | None,
        *,
        policy: str = "",
        conversation_id: str = "",
    ) -> Session:
        """Reserve a gateway for a launch that holds a sandbox; a key gives one session, and so does
        a conversation.
        """
        ...

    def ice_servers(self, session: Session) -> Sequence[IceServer]:
        """Return the servers that the peers of a session may use, with fresh credentials."""
        ...

    async def tunnel(self, session: Session) -> Tunnel | None:
        """Return what the client of a session attaches with, if it is a tunnel and not closed. For
        the answer of the call that opens it alone.
        """
        ...

    async def offer(self, tenant: str, session_id: str, offer: str) -> Session:
        """Have the gateway answer an offer; the session returned holds the answer."""
        ...

    async def add_candidates(
        self,
        tenant: str,
        session_id: str,
        candidates: Sequence[str],
        *,
        ended: bool,
        round_number: int = 0,
    ) -> Sequence[CandidateOutcome]:
        """Give candidates of the client to the gateway; one outcome for each."""
        ...

    async def restart(self, tenant: str, session_id: str, offer: str) -> Session:
        """Begin a round; the session returned holds its answer. Nothing begins without an offer."""
        ...

    def watch(self, tenant: str, session_id: str, cursor: int) -> AsyncGenerator[Watched, None]:
        """Yield Subscribed, then the events after the cursor until the session is closed."""
        ...

    async def get(self, tenant: str, session_id: str) -> Session:
        """Return a session; raises SessionNotFound."""
        ...

    async def list(
        self, tenant: str, page_size: int, page_token: str
    ) -> tuple[Sequence[Session], str]:
        """Return a page of the sessions that are not closed, and the token of the next one."""
        ...

    async def close(self, tenant: str, session_id: str) -> Session:
        """Close a session; closing a closed one changes nothing."""
        ...

    async def close_as_admin(self, tenant: str, session_id: str, message: str) -> Session:
        """Close a session of any tenant, with a sentence for whoever has it."""
        ...

    async def answer(self, tenant: str, launch_id: str, offer: str) -> tuple[str, str]:
        """Open the session of a launch's own offer and return its id and the answer."""
        ...

    async def close_launch(self, launch_id: str) -> None:
        """Close every session of a launch, also one that is being opened."""
        ...
