"""A session: one negotiation between a client and a gateway, as a pure state machine.

Every change makes a new record; what may follow what is the table TRANSITIONS and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from chassis.errors import AlreadyExists, FailedPrecondition, NotFound


class SessionState(StrEnum):
    """How far a negotiation has come."""

    OPENED = "opened"
    OFFERED = "offered"
    ANSWERED = "answered"
    CONNECTED = "connected"
    CLOSED = "closed"


class CloseReason(StrEnum):
    """Why a session is closed."""

    REQUESTED = "requested"
    LAUNCH_ENDED = "launch_ended"
    PEER_CLOSED = "peer_closed"
    CONNECTION_FAILED = "connection_failed"
    GATEWAY_LOST = "gateway_lost"
    EXPIRED = "expired"
    OFFER_FAILED = "offer_failed"


TRANSITIONS: Final[Mapping[SessionState, frozenset[SessionState]]] = MappingProxyType(
    {
        SessionState.OPENED: frozenset({SessionState.OFFERED, SessionState.CLOSED}),
        SessionState.OFFERED: frozenset({SessionState.ANSWERED, SessionState.CLOSED}),
        SessionState.ANSWERED: frozenset({SessionState.CONNECTED, SessionState.CLOSED}),
        SessionState.CONNECTED: frozenset({SessionState.CLOSED}),
        SessionState.CLOSED: frozenset(),
    }
)


class SessionNotFound(NotFound):
    """No such session, or not the caller's."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            "There is no such session.",
            reason="session_not_found",
            remedy="Open one; sessions are forgotten some minutes after they are closed.",
            fields={"session_id": session_id[:64]},
        )


class SessionClosed(FailedPrecondition):
    """The session is closed for good."""

    def __init__(self, session_id: str, reason: CloseReason) -> None:
        super().__init__(
            f"The session is closed ({reason}).",
            reason="session_closed",
            remedy="Open another session.",
            fields={"session_id": session_id, "close_reason": reason.value},
        )


class OfferRefused(FailedPrecondition):
    """The gateway could not make an answer."""

    def __init__(self, session_id: str, detail: str) -> None:
        super().__init__(
            "The gateway refused the offer" + (f": {detail}" if detail else "."),
            reason="offer_refused",
            remedy="Make a fresh offer and open another session with it.",
            fields={"session_id": session_id},
        )


class OfferConflict(AlreadyExists):
    """The session has another offer already."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            "The session already has another offer.",
            reason="offer_conflict",
            remedy="Send the offer that the session has, or open another session.",
            fields={"session_id": session_id},
        )


class SessionTransitionInvalid(FailedPrecondition):
    """A change does not fit the session's state."""

    def __init__(self, session_id: str, state: SessionState, wanted: SessionState) -> None:
        super().__init__(
            f"A session that is {state} cannot become {wanted}.",
            reason="session_state_invalid",
            remedy="Open another session.",
            fields={"session_id": session_id, "state": state.value},
        )


@dataclass(frozen=True, slots=True)
class Session:
    """One negotiation; `version` counts its changes and starts at 1. Times are in UTC.

    `close_detail` is the gateway's sentence on why it refused the offer, else empty.
    `traceparent` (W3C) is the span that the offer came with; the gateway's work on it belongs to
    that trace.
    """

    session_id: str
    tenant: str
    launch_id: str
    gateway_id: str
    created_at: datetime
    expires_at: datetime
    state: SessionState = SessionState.OPENED
    offer: str = ""
    answer: str = ""
    traceparent: str = ""
    close_reason: CloseReason | None = None
    close_detail: str = ""
    version: int = 1

    @property
    def is_closed(self) -> bool:
        """Say whether it is over."""
        return self.state is SessionState.CLOSED

    @property
    def is_connected(self) -> bool:
        """Say whether its association is up."""
        return self.state is SessionState.CONNECTED

    @property
    def is_negotiated(self) -> bool:
        """Say whether the gateway has answered, so that it holds an association for it."""
        return self.state in (SessionState.ANSWERED, SessionState.CONNECTED)

    def with_offer(self, offer: str, *, traceparent: str = "") -> Session:
        """Take the client's offer; the same one again changes nothing, another one raises
        OfferConflict.
        """
        self._raise_if_closed()
        if self.state is SessionState.OPENED:
            return replace(self._to(SessionState.OFFERED), offer=offer, traceparent=traceparent)
        if self.offer != offer:
            raise OfferConflict(self.session_id)
        return self

    def with_answer(self, answer: str, *, expires_at: datetime) -> Session:
        """Take the gateway's answer; a repeated one changes nothing."""
        self._raise_if_closed()
        if self.is_negotiated:
            return self
        return replace(self._to(SessionState.ANSWERED), answer=answer, expires_at=expires_at)

    def connected(self, *, expires_at: datetime) -> Session:
        """Note that it is connected, and until when that holds without another word."""
        self._raise_if_closed()
        if self.state is SessionState.CONNECTED:
            return replace(self, expires_at=expires_at, version=self.version + 1)
        return replace(self._to(SessionState.CONNECTED), expires_at=expires_at)

    def closed(self, reason: CloseReason, detail: str = "") -> Session:
        """Close it; the first reason stays. What was negotiated is dropped from the record."""
        if self.is_closed:
            return self
        return replace(
            self._to(SessionState.CLOSED),
            close_reason=reason,
            close_detail=detail,
            offer="",
            answer="",
        )

    def _raise_if_closed(self) -> None:
        if self.close_reason is not None:
            raise SessionClosed(self.session_id, self.close_reason)

    def _to(self, state: SessionState) -> Session:
        if state not in TRANSITIONS[self.state]:
            raise SessionTransitionInvalid(self.session_id, self.state, state)
        return replace(self, state=state, version=self.version + 1)
