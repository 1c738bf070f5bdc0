"""Routes of sessions: JSON in, broker, JSON out."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from signalling.caller import current_tenant
from signalling.problems import problem_documents
from signalling.rest_parameters import IdempotencyKey
from signalling.rest_types import Body
from signalling.session import Session, SessionState
from signalling.session_ports import Sessions


class OpenBody(Body):
    """Which launch to reach."""

    launch_id: str
    mode: str = Field(
        default="complete",
        description="How candidates travel: all of them inside the descriptions.",
        json_schema_extra={"enum": ["complete"]},
    )


class OfferBody(Body):
    """The client's offer."""

    offer: str = Field(description="SDP (RFC 8866) with its candidates, at most 64 KiB.")


class SessionAnswer(BaseModel):
    """One negotiation between a client and a gateway."""

    session_id: str
    launch_id: str
    gateway_id: str
    mode: Literal["complete"]
    state: SessionState
    created_at: datetime
    expires_at: datetime
    close_reason: str = Field(description="Empty until it is closed.")


class AnsweredSession(BaseModel):
    """The gateway's answer."""

    answer: str = Field(description="SDP answer, with its candidates.")
    session: SessionAnswer


def sessions_router(sessions: Sessions) -> APIRouter:
    """Return the routes of sessions."""
    router = APIRouter(prefix="/v1/sessions", tags=["sessions"])

    @router.post(
        "",
        status_code=201,
        response_model=SessionAnswer,
        responses={
            201: {"headers": {"Location": {"schema": {"type": "string"}}}},
            **problem_documents(404, 409, 413),
        },
    )
    async def open_session(
        body: OpenBody, response: Response, key: IdempotencyKey = None
    ) -> SessionAnswer:
        """Reserve a gateway for a launch that holds a sandbox."""
        session = await sessions.open(current_tenant(), body.launch_id, body.mode, key)
        response.headers["Location"] = f"/v1/sessions/{session.session_id}"
        return _answer(session)

    @router.get("/{session_id}", response_model=SessionAnswer, responses=problem_documents(404))
    async def get_session(session_id: str) -> SessionAnswer:
        """Return a session."""
        return _answer(await sessions.get(current_tenant(), session_id))

    @router.delete("/{session_id}", response_model=SessionAnswer, responses=problem_documents(404))
    async def close_session(session_id: str, key: IdempotencyKey = None) -> SessionAnswer:
        """Close a session and every channel in it; closing a closed one changes nothing."""
        return _answer(await sessions.close(current_tenant(), session_id))

    @router.post(
        "/{session_id}/offer",
        response_model=AnsweredSession,
        responses=problem_documents(404, 409, 413),
    )
    async def send_offer(
        session_id: str, body: OfferBody, key: IdempotencyKey = None
    ) -> AnsweredSession:
        """Have the gateway answer the offer; the same offer gets the same answer."""
        session = await sessions.offer(current_tenant(), session_id, body.offer)
        return AnsweredSession(answer=session.answer, session=_answer(session))

    return router


def _answer(session: Session) -> SessionAnswer:
    return SessionAnswer(
        session_id=session.session_id,
        launch_id=session.launch_id,
        gateway_id=session.gateway_id,
        mode="complete",
        state=session.state,
        created_at=session.created_at,
        expires_at=session.expires_at,
        close_reason=session.close_reason.value if session.close_reason else "",
    )
