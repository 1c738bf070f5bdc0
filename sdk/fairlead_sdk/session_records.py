"""Sessions as the front door shows them, and what their watch tells."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeAlias

from fairlead_sdk import json_form as form
from fairlead_sdk.errors import Internal
from fairlead_sdk.json_form import JsonObject

COMPLETE = "complete"
TRICKLE = "trickle"
TUNNEL = "tunnel"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRecord:
    """One negotiation or one tunnel.

    `mode` is `complete`, `trickle` or `tunnel`, `ice_policy` is `all`, `relay` or `direct`,
    `state` is `opened`, `offered`, `answered`, `connected` or `closed`.
    """

    session_id: str
    launch_id: str = ""
    gateway_id: str = ""
    mode: str = COMPLETE
    ice_policy: str = "all"
    state: str = "opened"
    round: int = 1
    created_at: datetime | None = None
    expires_at: datetime | None = None
    close_reason: str = ""
    document: JsonObject = field(default_factory=dict, repr=False, compare=False)
    """The JSON form that it was read from."""

    @classmethod
    def read(cls, document: JsonObject) -> SessionRecord:
        """Read the JSON form."""
        return cls(
            session_id=form.text(document, "session_id"),
            launch_id=form.text(document, "launch_id"),
            gateway_id=form.text(document, "gateway_id"),
            mode=form.text(document, "mode") or COMPLETE,
            ice_policy=form.text(document, "ice_policy") or "all",
            state=form.text(document, "state"),
            round=form.number(document, "round") or 1,
            created_at=form.time(document, "created_at"),
            expires_at=form.time(document, "expires_at"),
            close_reason=form.text(document, "close_reason"),
            document=document,
        )


@dataclass(frozen=True, slots=True)
class SessionServer:
    """A STUN or TURN server for one session; name and password are for TURN only."""

    urls: tuple[str, ...]
    username: str = ""
    credential: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionTunnel:
    """What a client attaches to a gateway with, once, until `expires_at`; `ticket` and `secret`
    (the psk, 32 bytes) are like a key, and do not show when it is printed.

    `tunnel_id` has 32 hexadecimal digits, `gateway_key` (X25519) 32 bytes; `urls` are the gateway's
    carriers, best first.
    """

    tunnel_id: str
    ticket: bytes = field(repr=False)
    secret: bytes = field(repr=False)
    gateway_key: bytes
    urls: tuple[str, ...]
    expires_at: datetime | None = None

    @classmethod
    def read(cls, document: JsonObject) -> SessionTunnel:
        """Read the JSON form; raises Internal (`answer_invalid`) for what is none."""
        try:
            return cls(
                tunnel_id=form.text(document, "tunnel_id"),
                ticket=_decoded(form.text(document, "ticket")),
                secret=_decoded(form.text(document, "secret")),
                gateway_key=_decoded(form.text(document, "gateway_key")),
                urls=form.texts(document, "urls"),
                expires_at=form.time(document, "expires_at"),
            )
        except ValueError:
            raise Internal(
                "The front door's answer has a tunnel that cannot be read.",
                reason="answer_invalid",
            ) from None


@dataclass(frozen=True, slots=True)
class OpenedSession:
    """A session with the servers to gather candidates with; in mode tunnel, unless it is closed,
    with what to attach with.
    """

    session: SessionRecord
    servers: tuple[SessionServer, ...] = ()
    tunnel: SessionTunnel | None = None

    @property
    def has_relay(self) -> bool:
        """Say whether a server has a name and a password, which end."""
        return any(server.credential for server in self.servers)

    @classmethod
    def read(cls, document: JsonObject) -> OpenedSession:
        """Read the JSON form: the session's members, `ice_servers`, and `tunnel`."""
        session = form.child(document, "session") or document
        # What the record keeps may be shown.
        shown = {name: member for name, member in session.items() if name != "tunnel"}
        tunnel = form.child(document, "tunnel")
        return cls(
            SessionRecord.read(shown),
            _servers(document),
            SessionTunnel.read(tunnel) if tunnel else None,
        )


@dataclass(frozen=True, slots=True)
class OfferReply:
    """The gateway's answer, and the round that it belongs to; 0 when the mesh does not say."""

    answer: str
    round: int = 0

    @classmethod
    def read(cls, document: JsonObject) -> OfferReply:
        """Read the JSON form."""
        session = form.child(document, "session") or {}
        return cls(form.text(document, "answer"), form.number(session, "round"))


@dataclass(frozen=True, slots=True)
class Subscribed:
    """The watch is there: nothing that happens from now on is missed."""

    session: SessionRecord


@dataclass(frozen=True, slots=True)
class SessionBecame:
    """The session has another state."""

    state: str


@dataclass(frozen=True, slots=True)
class AnswerCame:
    """The gateway answered the offer of a round."""

    round: int
    answer: str


@dataclass(frozen=True, slots=True)
class CandidatesCame:
    """The gateway found candidates in a round."""

    round: int
    candidates: tuple[str, ...]
    ended: bool


@dataclass(frozen=True, slots=True)
class RestartAsked:
    """The gateway asks for the next round."""

    round: int


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """The session is over; the last event."""

    reason: str
    message: str = ""
    critical: bool = False
    user_initiated: bool = False
    retryable: bool = False


SessionHappening: TypeAlias = (
    Subscribed | SessionBecame | AnswerCame | CandidatesCame | RestartAsked | SessionClosed
)


@dataclass(frozen=True, slots=True)
class SessionEvent:
    """Something that happened; `sequence` is the cursor to go on from."""

    sequence: int
    happening: SessionHappening

    @classmethod
    def read(cls, document: JsonObject) -> SessionEvent | None:
        """Read the JSON form; None for a kind that is not known here."""
        happening = _happening(document)
        return cls(form.number(document, "sequence"), happening) if happening else None


def _happening(document: JsonObject) -> SessionHappening | None:
    number = form.number(document, "round")
    match form.text(document, "type"):
        case "subscribed":
            return Subscribed(SessionRecord.read(form.child(document, "session") or {}))
        case "state":
            return SessionBecame(form.text(document, "state"))
        case "answer":
            return AnswerCame(number, form.text(document, "answer"))
        case "candidates":
            return CandidatesCame(
                number,
                form.texts(document, "candidates"),
                form.flag(document, "end_of_candidates"),
            )
        case "restart_wanted":
            return RestartAsked(number)
        case "closed":
            return SessionClosed(
                form.text(document, "reason"),
                form.text(document, "message"),
                form.flag(document, "critical"),
                form.flag(document, "user_initiated"),
                form.flag(document, "retryable"),
            )
        case _:
            return None


def _decoded(text: str) -> bytes:
    """Read base64url without padding (RFC 4648, section 5); raises ValueError."""
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


def _servers(document: JsonObject) -> tuple[SessionServer, ...]:
    return tuple(
        SessionServer(
            form.texts(server, "urls"),
            form.text(server, "username"),
            form.text(server, "credential"),
        )
        for server in form.children(document, "ice_servers")
    )
