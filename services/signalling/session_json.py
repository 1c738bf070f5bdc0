"""The events of sessions as JSON."""

from __future__ import annotations

from signalling.close_reason import CLOSINGS, CloseReason
from signalling.event_stream import Rendered
from signalling.launch_json import time_json
from signalling.session import Session
from signalling.session_event import EventKind
from signalling.session_ports import Happened, Subscribed, Watched


def session_json(session: Session) -> dict[str, object]:
    """Return a session."""
    return {
        "session_id": session.session_id,
        "launch_id": session.launch_id,
        "gateway_id": session.gateway_id,
        "mode": session.mode.value,
        "ice_policy": session.ice_policy.value,
        "state": session.state.value,
        "round": session.round,
        "created_at": time_json(session.created_at),
        "expires_at": time_json(session.expires_at),
        "close_reason": session.close_reason.value if session.close_reason else "",
    }


def watched_line(watched: Watched) -> Rendered:
    """Return one message of a watch as the line that it is sent as."""
    if isinstance(watched, Subscribed):
        members = {
            "type": "subscribed",
            "sequence": watched.cursor,
            "session": session_json(watched.session),
        }
        return Rendered(cursor="", type="subscribed", members=members)
    kind, sequence = watched.event.kind.value, watched.event.sequence
    members = {"type": kind, "sequence": sequence, **_members(watched)}
    return Rendered(cursor=str(sequence), type=kind, members=members)


def _members(happened: Happened) -> dict[str, object]:
    session, event = happened.session, happened.event
    match event.kind:
        case EventKind.STATE:
            return {"state": event.state}
        case EventKind.ANSWER:
            return {"round": event.round, "answer": session.answer}
        case EventKind.CANDIDATES:
            return {
                "round": event.round,
                "candidates": session.gateway_candidates[event.first : event.last],
                "end_of_candidates": event.ended,
            }
        case EventKind.RESTART_WANTED:
            return {"round": event.round}
        case EventKind.CLOSED:
            reason = session.close_reason or CloseReason.UNKNOWN
            closing = CLOSINGS[reason]
            return {
                "reason": reason.value,
                "message": session.close_detail,
                "critical": closing.critical,
                "user_initiated": closing.user_initiated,
                "retryable": closing.retryable,
            }
