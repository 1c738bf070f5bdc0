"""Sessions as JSON, for the store."""

from __future__ import annotations

import json
from dataclasses import fields
from datetime import datetime

from signalling.close_reason import CloseReason
from signalling.ice_servers import IcePolicy
from signalling.session import Session, SessionMode
from signalling.session_event import EventKind, SessionEvent, SessionState

# `dataclasses.asdict` copies everything it meets; a record is written at each change.
_NAMES = tuple(field.name for field in fields(Session))
_ENCODER = json.JSONEncoder(separators=(",", ":"))


def session_text(session: Session) -> str:
    """Return the record of a session."""
    record = {name: getattr(session, name) for name in _NAMES}
    record["created_at"] = session.created_at.isoformat()
    record["expires_at"] = session.expires_at.isoformat()
    record["events"] = [
        (
            event.sequence,
            event.kind,
            event.round,
            event.state,
            event.first,
            event.last,
            event.ended,
        )
        for event in session.events
    ]
    return _ENCODER.encode(record)


def session_of(text: str) -> Session:
    """Return the session of a record."""
    record = json.loads(text)
    reason = record["close_reason"]
    return Session(
        session_id=record["session_id"],
        tenant=record["tenant"],
        launch_id=record["launch_id"],
        gateway_id=record["gateway_id"],
        created_at=datetime.fromisoformat(record["created_at"]),
        expires_at=datetime.fromisoformat(record["expires_at"]),
        mode=SessionMode(record["mode"]),
        ice_policy=IcePolicy(record["ice_policy"]),
        state=SessionState(record["state"]),
        round=record["round"],
        connected_round=record["connected_round"],
        offer=record["offer"],
        answer=record["answer"],
        refusal=record["refusal"],
        client_candidates=tuple(record["client_candidates"]),
        client_ended=record["client_ended"],
        gateway_candidates=tuple(record["gateway_candidates"]),
        gateway_ended=record["gateway_ended"],
        spent=tuple(record["spent"]),
        traceparent=record["traceparent"],
        close_reason=None if reason is None else CloseReason(reason),
        close_detail=record["close_detail"],
        events=tuple(_event(members) for members in record["events"]),
        sequence=record["sequence"],
        forgotten=record["forgotten"],
        version=record["version"],
        key_id=record.get("key_id", ""),
    )


def _event(members: tuple[int, str, int, str | None, int, int, bool]) -> SessionEvent:
    sequence, kind, round_number, state, first, last, ended = members
    return SessionEvent(
        sequence=sequence,
        kind=EventKind(kind),
        round=round_number,
        state=None if state is None else SessionState(state),
        first=first,
        last=last,
        ended=ended,
    )
