"""Bodies of the session routes."""

from __future__ import annotations

from datetime import datetime

from pydantic import AliasChoices, BaseModel, Field

from fairlead_limits.table import CANDIDATES
from fairlead_tunnel.base64url import base64url
from signalling.ice_candidate import CandidateOutcome
from signalling.ice_servers import IcePolicy
from signalling.rest_types import Answer, Body
from signalling.session import Session, SessionMode
from signalling.session_event import SessionState
from signalling.tunnel import Tunnel


class OpenBody(Body):
    """Which launch to reach, and how."""

    target: str = Field(
        validation_alias=AliasChoices("target", "launch_id"),
        description="Id of a launch, or of a sandbox that has a lease of its own; or of a session,"
        " for its launch by the same gateway. `launch_id` is another name for it.",
    )
    mode: str = Field(
        default=SessionMode.COMPLETE.value,
        description="How the peers meet: with candidates inside the descriptions, as they are"
        " found, or by a ticket.",
        json_schema_extra={"enum": [mode.value for mode in SessionMode]},
    )
    ice_policy: str = Field(
        default=IcePolicy.ALL.value,
        description="Which paths it may take: any, only through a TURN server, never through one.",
        json_schema_extra={"enum": [policy.value for policy in IcePolicy]},
    )
    conversation_id: str = Field(
        default="",
        description="The client's own name for it, 16 to 64 random bytes in base64url or base64;"
        " the same name is the same session.",
    )


class OfferBody(Body):
    """The client's offer."""

    offer: str = Field(
        description="SDP (RFC 8866), at most 64 KiB, in mode complete with its candidates; or what"
        " the peers have sealed."
    )


class CandidatesBody(Body):
    """Candidates of the client."""

    candidates: list[str] = Field(
        default=[],
        description="`candidate:…` (RFC 8839) or sealed, in the order in which they were found.",
        json_schema_extra={**CANDIDATES.schema},
    )
    end_of_candidates: bool = Field(default=False, description="No more come in this round.")
    round: int = Field(
        default=0,
        ge=0,
        le=2**31 - 1,
        description="Round that they belong to; 0 for the one under way.",
    )


class CandidatesAnswer(BaseModel):
    """What became of the candidates."""

    outcomes: list[CandidateOutcome] = Field(description="One for each, in the same order.")


class RestartBody(Body):
    """The offer of a new round."""

    offer: str = Field(
        default="",
        description="SDP with new ICE credentials, or sealed; without one only fresh servers are"
        " handed out.",
    )


class SessionAnswer(BaseModel):
    """One negotiation between a client and a gateway, or one tunnel."""

    session_id: str
    launch_id: str
    gateway_id: str
    mode: SessionMode
    ice_policy: IcePolicy
    state: SessionState
    round: int = Field(description="From 1; each restart is one more.")
    created_at: datetime
    expires_at: datetime
    close_reason: str = Field(description="Empty until it is closed.")


class IceServerAnswer(Answer):
    """STUN or TURN servers, as in WebRTC's RTCIceServer."""

    urls: list[str]
    username: str = Field(description="Empty for STUN.")
    credential: str = Field(description="Empty for STUN.")
    expires_at: datetime | None = Field(description="When name and password end.")


class SessionPage(BaseModel):
    """Sessions, by id."""

    sessions: list[SessionAnswer]
    next_page_token: str = Field(description="Empty on the last page.")


class TunnelAnswer(BaseModel):
    """What a client attaches to a gateway with; bytes are base64url without padding."""

    tunnel_id: str = Field(description="32 hexadecimal digits.")
    ticket: str = Field(description="What the gateway is shown; good once, and for it alone.")
    secret: str = Field(description="What client and gateway share (psk), 32 bytes; like a key.")
    gateway_key: str = Field(description="The gateway's static public key (X25519), 32 bytes.")
    urls: list[str] = Field(description="Where its carriers are, best first.")
    expires_at: datetime = Field(
        description="When the ticket ends; a tunnel that was attached goes on."
    )


class OpenedSession(SessionAnswer):
    """A session that was opened, with the servers that its client may gather candidates with, or
    with what it attaches with.
    """

    ice_servers: list[IceServerAnswer]
    tunnel: TunnelAnswer | None = Field(
        default=None, description="Of mode tunnel; nothing else ever shows it."
    )


class AnsweredSession(BaseModel):
    """The gateway's answer."""

    answer: str = Field(description="SDP answer, in mode complete with its candidates.")
    session: SessionAnswer


class RestartedSession(AnsweredSession):
    """The gateway's answer in a new round; empty without an offer."""

    ice_servers: list[IceServerAnswer] = Field(description="With fresh credentials.")


class SessionLine(BaseModel):
    """One event of a session: `subscribed` first, the last one is always `closed`."""

    type: str = Field(
        json_schema_extra={
            "enum": ["subscribed", "state", "answer", "candidates", "restart_wanted", "closed"]
        }
    )
    sequence: int = Field(description="Number of the event, the cursor to go on from.")
    session: SessionAnswer | None = Field(default=None, description="Of `subscribed`.")
    state: SessionState | None = Field(default=None, description="Of `state`.")
    round: int | None = Field(default=None, description="Of what belongs to a round.")
    answer: str | None = Field(default=None, description="Of `answer`.")
    candidates: list[str] | None = Field(default=None, description="Of `candidates`.")
    end_of_candidates: bool | None = Field(default=None, description="Of `candidates`.")
    reason: str | None = Field(default=None, description="Of `closed`, as all that follow.")
    message: str | None = None
    critical: bool | None = None
    user_initiated: bool | None = None
    retryable: bool | None = None


def session_answer(session: Session) -> SessionAnswer:
    """Return a session."""
    return SessionAnswer(
        session_id=session.session_id,
        launch_id=session.launch_id,
        gateway_id=session.gateway_id,
        mode=session.mode,
        ice_policy=session.ice_policy,
        state=session.state,
        round=session.round,
        created_at=session.created_at,
        expires_at=session.expires_at,
        close_reason=session.close_reason.value if session.close_reason else "",
    )


def tunnel_answer(tunnel: Tunnel) -> TunnelAnswer:
    """Return what a client attaches with."""
    return TunnelAnswer(
        tunnel_id=tunnel.tunnel_id,
        ticket=base64url(tunnel.ticket),
        secret=base64url(tunnel.secret),
        gateway_key=base64url(tunnel.gateway_key),
        urls=list(tunnel.urls),
        expires_at=tunnel.expires_at,
    )
