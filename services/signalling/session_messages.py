"""Sessions and their events as protobuf."""

from __future__ import annotations

from datetime import datetime

from google.protobuf.timestamp_pb2 import Timestamp

from fairlead.session.v1 import session_pb2 as pb
from signalling.close_reason import CLOSINGS, CloseReason
from signalling.ice_candidate import CandidateOutcome
from signalling.ice_servers import IcePolicy
from signalling.session import Session, SessionMode
from signalling.session_event import EventKind, SessionState
from signalling.session_ports import Happened, Subscribed, Watched
from signalling.tunnel import Tunnel

_STATES = {
    SessionState.OPENED: pb.SESSION_STATE_OPENED,
    SessionState.OFFERED: pb.SESSION_STATE_OFFERED,
    SessionState.ANSWERED: pb.SESSION_STATE_ANSWERED,
    SessionState.CONNECTED: pb.SESSION_STATE_CONNECTED,
    SessionState.CLOSED: pb.SESSION_STATE_CLOSED,
}
_MODES = {
    SessionMode.COMPLETE: pb.SESSION_MODE_COMPLETE,
    SessionMode.TRICKLE: pb.SESSION_MODE_TRICKLE,
    SessionMode.TUNNEL: pb.SESSION_MODE_TUNNEL,
}
_POLICIES = {
    IcePolicy.ALL: pb.ICE_POLICY_ALL,
    IcePolicy.RELAY: pb.ICE_POLICY_RELAY,
    IcePolicy.DIRECT: pb.ICE_POLICY_DIRECT,
}
_OUTCOMES = {
    CandidateOutcome.ACCEPTED: pb.CANDIDATE_OUTCOME_ACCEPTED,
    CandidateOutcome.DUPLICATE: pb.CANDIDATE_OUTCOME_DUPLICATE,
    CandidateOutcome.INVALID: pb.CANDIDATE_OUTCOME_INVALID,
    CandidateOutcome.STALE: pb.CANDIDATE_OUTCOME_STALE,
    CandidateOutcome.LATE: pb.CANDIDATE_OUTCOME_LATE,
    CandidateOutcome.TOO_MANY: pb.CANDIDATE_OUTCOME_TOO_MANY,
}


def mode_of(mode: pb.SessionMode.ValueType) -> str:
    """Return the word for a mode; an unknown one has none."""
    return next((word.value for word, number in _MODES.items() if number == mode), "")


def policy_of(policy: pb.IcePolicy.ValueType) -> str:
    """Return the word for a policy, of an unknown one its number; unspecified has none."""
    if policy == pb.ICE_POLICY_UNSPECIFIED:
        return ""
    return next((word.value for word, number in _POLICIES.items() if number == policy), str(policy))


def outcome_proto(outcome: CandidateOutcome) -> pb.CandidateOutcome.ValueType:
    """Return the outcome of a candidate."""
    return _OUTCOMES[outcome]


def timestamp(moment: datetime) -> Timestamp:
    """Return a time as protobuf has it."""
    stamp = Timestamp()
    stamp.FromDatetime(moment)
    return stamp


def session_proto(session: Session) -> pb.Session:
    """Return a session."""
    return pb.Session(
        session_id=session.session_id,
        launch_id=session.launch_id,
        gateway_id=session.gateway_id,
        mode=_MODES[session.mode],
        state=_STATES[session.state],
        created_at=timestamp(session.created_at),
        expires_at=timestamp(session.expires_at),
        close_reason=session.close_reason.value if session.close_reason else "",
        round=session.round,
        ice_policy=_POLICIES[session.ice_policy],
    )


def tunnel_proto(tunnel: Tunnel) -> pb.Tunnel:
    """Return what a client attaches with."""
    return pb.Tunnel(
        tunnel_id=tunnel.tunnel_id,
        ticket=tunnel.ticket,
        secret=tunnel.secret,
        gateway_key=tunnel.gateway_key,
        urls=tunnel.urls,
        expires_at=timestamp(tunnel.expires_at),
    )


def watched_proto(watched: Watched) -> pb.WatchSessionResponse:
    """Return one message of a watch."""
    if isinstance(watched, Subscribed):
        return pb.WatchSessionResponse(
            sequence=watched.cursor,
            subscribed=pb.SessionSubscribed(session=session_proto(watched.session)),
        )
    return _happened(watched)


def _happened(happened: Happened) -> pb.WatchSessionResponse:
    session, event = happened.session, happened.event
    message = pb.WatchSessionResponse(sequence=event.sequence)
    match event.kind:
        case EventKind.STATE:
            state = event.state or session.state
            message.state.CopyFrom(pb.SessionStateChanged(state=_STATES[state]))
        case EventKind.ANSWER:
            answer = pb.SessionAnswerReady(round=event.round, answer=session.answer)
            message.answer.CopyFrom(answer)
        case EventKind.CANDIDATES:
            found = pb.SessionCandidatesFound(
                round=event.round,
                candidates=session.gateway_candidates[event.first : event.last],
                end_of_candidates=event.ended,
            )
            message.candidates.CopyFrom(found)
        case EventKind.RESTART_WANTED:
            message.restart_wanted.CopyFrom(pb.SessionRestartWanted(round=event.round))
        case EventKind.CLOSED:
            reason = session.close_reason or CloseReason.UNKNOWN
            closing = CLOSINGS[reason]
            ended = pb.SessionEnded(
                reason=reason.value,
                message=session.close_detail,
                critical=closing.critical,
                user_initiated=closing.user_initiated,
                retryable=closing.retryable,
            )
            message.closed.CopyFrom(ended)
    return message
