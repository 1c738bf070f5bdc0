"""One gateway's stream: what it last said of itself, and what it is told, in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from chassis.errors import FairleadError
from signalling.gateway import Gateway
from signalling.session import Session

OUTBOX_ORDERS = 4096
"""How many orders wait for a gateway at most."""


@dataclass(frozen=True, slots=True)
class Want:
    """A session is wanted: answer its offer, with all candidates of the client so far, or keep the
    tunnel.
    """

    session: Session


@dataclass(frozen=True, slots=True)
class Give:
    """More candidates of the client, after the `first` ones of the round; what has no more says
    so.
    """

    session_id: str
    round: int
    first: int
    candidates: tuple[str, ...]
    ended: bool


@dataclass(frozen=True, slots=True)
class Unwant:
    """A session is not wanted any more."""

    session_id: str


@dataclass(frozen=True, slots=True)
class Grant:
    """The outcome of a wanted connection: why there is none, or nothing when the worker dialled."""

    request_id: int
    refusal: FairleadError | None = None


Order = Want | Give | Unwant | Grant


class Association:
    """One gateway's stream: what it last said of itself, what it was told of which session, and the
    queue of what it is told.
    """

    def __init__(self, *, gateway: Gateway, heard_at: float) -> None:
        self.gateway = gateway
        self.heard_at = heard_at
        self.end_reason = ""
        self._told: dict[str, Session] | None = None
        self._orders: deque[Order] = deque()
        self._woken = asyncio.Event()

    def welcome(self, wanted: Sequence[Session]) -> None:
        """Note what the welcome says; before it nothing is told."""
        self._told = {session.session_id: session for session in wanted}

    def tell(self, session: Session) -> None:
        """Queue what a session's newest record has and the gateway does not know."""
        if self._told is None:
            return
        told = self._told.get(session.session_id)
        if session.is_closed:
            if self._told.pop(session.session_id, None) is not None:
                self.give(Unwant(session.session_id))
        elif (session.offer or session.is_tunnel) and (told is None or told.offer != session.offer):
            self._told[session.session_id] = session
            self.give(Want(session))
        elif told is not None and session.round == told.round:
            self._told[session.session_id] = session
            first = len(told.client_candidates)
            more = session.client_candidates[first:]
            ends = session.client_ended and not told.client_ended
            if told.offer and (more or ends):
                give = Give(session.session_id, session.round, first, more, session.client_ended)
                self.give(give)

    def forget(self, session_id: str) -> None:
        """Note that the gateway itself has closed a session."""
        if self._told is not None:
            self._told.pop(session_id, None)

    def end(self, reason: str) -> None:
        """Give the stream up; the first reason stays."""
        self.end_reason = self.end_reason or reason
        self._woken.set()

    def give(self, order: Order) -> None:
        """Queue an order; a gateway that does not take its orders is disconnected, and heals when
        it comes back.
        """
        if len(self._orders) >= OUTBOX_ORDERS:
            self.end("too_slow")
            return
        self._orders.append(order)
        self._woken.set()

    async def next_order(self) -> Order | None:
        """Wait for the next order; None once the stream is given up."""
        while not self.end_reason:
            if self._orders:
                return self._orders.popleft()
            self._woken.clear()
            await self._woken.wait()
        return None
