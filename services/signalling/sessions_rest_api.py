"""Routes of sessions: JSON in, broker, JSON or a stream of events out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response, WebSocket
from pydantic import AliasChoices, BaseModel, Field
from starlette.convertors import StringConvertor, register_url_convertor

from signalling.caller import check_admin, current_tenant, listed_tenant
from signalling.event_stream import EventStreams
from signalling.ice_candidate import MOST_IN_A_CALL, CandidateOutcome
from signalling.ice_servers import IcePolicy
from signalling.plain_route import PlainRoute, answered
from signalling.problems import problem_documents
from signalling.rest_parameters import (
    Cursor,
    IdempotencyKey,
    LastEventId,
    PageSize,
    PageToken,
    cursor_number,
    stream_documents,
)
from signalling.rest_types import Answer, Body
from signalling.session import Session, SessionMode
from signalling.session_event import SessionState
from signalling.session_json import watched_line
from signalling.session_ports import Sessions, Watched
from signalling.socket_talks import conversed, received, welcome

SESSION_PROTOCOL = "fairlead.session.v1"

AsAdmin = Annotated[
    bool,
    Query(description="Close it whoever's it is, as `admin_closed`; needs an administrator's key."),
]
Tenant = Annotated[str, Query(description="Another tenant's; needs an administrator's key.")]
Message = Annotated[
    str, Query(description="With `as_admin`: a sentence for whoever has it, 300 characters of it.")
]


class _SessionName(StringConvertor):
    """An id, or a client's own name for a session, which in base64 may have slashes."""

    regex = "[^/]+|[A-Za-z0-9+/]{22,88}={0,2}"


class OpenBody(Body):
    """Which launch to reach, and how."""

    target: str = Field(
        validation_alias=AliasChoices("target", "launch_id"),
        description="Id of a launch, or of a sandbox that has a lease of its own;"
        " `launch_id` is another name for it.",
    )
    mode: str = Field(
        default=SessionMode.COMPLETE.value,
        description="How candidates travel: inside the descriptions, or as they are found.",
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
        json_schema_extra={"maxItems": MOST_IN_A_CALL},
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
    """One negotiation between a client and a gateway."""

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


class OpenedSession(SessionAnswer):
    """A session that was opened, with the servers that its client may gather candidates with."""

    ice_servers: list[IceServerAnswer]


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


def sessions_router(sessions: Sessions, streams: EventStreams) -> APIRouter:
    """Return the routes of sessions."""
    register_url_convertor("session", _SessionName())
    router = APIRouter(prefix="/v1/sessions", tags=["sessions"], route_class=PlainRoute)

    @router.post(
        "",
        status_code=201,
        response_model=OpenedSession,
        responses={
            201: {"headers": {"Location": {"schema": {"type": "string"}}}},
            **problem_documents(404, 409, 413),
        },
    )
    async def open_session(body: OpenBody, key: IdempotencyKey = None) -> Response:
        """Reserve a gateway for a launch that holds a sandbox."""
        session = await sessions.open(
            current_tenant(),
            body.target,
            body.mode,
            key,
            policy=body.ice_policy,
            conversation_id=body.conversation_id,
        )
        servers = _servers(sessions, session)
        opened = OpenedSession(ice_servers=servers, **dict(_answer(session)))
        return answered(opened, 201, {"Location": f"/v1/sessions/{session.session_id}"})

    @router.post(
        "/{session_id:session}/offer",
        response_model=AnsweredSession,
        responses=problem_documents(404, 409, 413),
    )
    async def send_offer(
        session_id: str, body: OfferBody, key: IdempotencyKey = None
    ) -> AnsweredSession:
        """Have the gateway answer the offer; the same offer gets the same answer."""
        session = await sessions.offer(current_tenant(), session_id, body.offer)
        return AnsweredSession(answer=session.answer, session=_answer(session))

    @router.post(
        "/{session_id:session}/candidates",
        response_model=CandidatesAnswer,
        responses=problem_documents(404, 409, 413),
    )
    async def add_candidates(
        session_id: str, body: CandidatesBody, key: IdempotencyKey = None
    ) -> CandidatesAnswer:
        """Give candidates to the gateway, each once; the call may be repeated."""
        outcomes = await sessions.add_candidates(
            current_tenant(),
            session_id,
            body.candidates,
            ended=body.end_of_candidates,
            round_number=body.round,
        )
        return CandidatesAnswer(outcomes=list(outcomes))

    @router.post(
        "/{session_id:session}/restart",
        response_model=RestartedSession,
        responses=problem_documents(404, 409, 413),
    )
    async def restart_session(
        session_id: str, body: RestartBody, key: IdempotencyKey = None
    ) -> RestartedSession:
        """Negotiate anew (ICE restart); the path in use goes on until the new one works."""
        session = await sessions.restart(current_tenant(), session_id, body.offer)
        return RestartedSession(
            answer=session.answer if body.offer else "",
            session=_answer(session),
            ice_servers=_servers(sessions, session),
        )

    @router.get(
        "/{session_id:session}/events",
        response_class=Response,
        responses={
            **stream_documents("SessionLine", "Events, the last line is `closed`."),
            **problem_documents(404, 410),
        },
    )
    async def watch_events(
        session_id: str,
        request: Request,
        cursor: Cursor = None,
        last_event_id: LastEventId = None,
    ) -> Response:
        """Stream what happens to a session; closing the stream closes nothing else."""
        after = cursor_number(cursor or last_event_id or "0")
        source = sessions.watch(current_tenant(), session_id, after)
        accept = request.headers.get("accept", "")
        return await streams.respond(source, watched_line, accept=accept)

    @router.get("", response_model=SessionPage, responses=problem_documents(403))
    async def list_sessions(
        page_size: PageSize = 0, page_token: PageToken = "", tenant: Tenant = ""
    ) -> SessionPage:
        """List the caller's sessions that are not closed; a page may have fewer than asked for."""
        found, following = await sessions.list(listed_tenant(tenant), page_size, page_token)
        return SessionPage(sessions=[_answer(each) for each in found], next_page_token=following)

    # Last, as a name may have slashes.
    @router.get(
        "/{session_id:session}", response_model=SessionAnswer, responses=problem_documents(404)
    )
    async def get_session(session_id: str) -> SessionAnswer:
        """Return a session."""
        return _answer(await sessions.get(current_tenant(), session_id))

    @router.delete(
        "/{session_id:session}", response_model=SessionAnswer, responses=problem_documents(403, 404)
    )
    async def close_session(
        session_id: str,
        as_admin: AsAdmin = False,
        message: Message = "",
        key: IdempotencyKey = None,
    ) -> SessionAnswer:
        """Close a session and every channel in it; closing a closed one changes nothing."""
        if as_admin:
            check_admin()
            tenant = current_tenant()
            return _answer(await sessions.close_as_admin(tenant, session_id, message))
        return _answer(await sessions.close(current_tenant(), session_id))

    return router


def session_watch_router(sessions: Sessions) -> APIRouter:
    """Return the WebSocket that watches a session; its key is checked before it."""
    register_url_convertor("session", _SessionName())
    router = APIRouter()

    async def watch_session(socket: WebSocket) -> None:
        """Send what happens to a session; the first message is `subscribed`."""
        session_id, cursor = socket.path_params["session_id"], socket.query_params.get("cursor")
        await welcome(socket, SESSION_PROTOCOL)
        await conversed(socket, _watch(socket, sessions, session_id, cursor))

    # Not as a path operation: what FastAPI keeps for each open socket is for dependencies.
    router.add_websocket_route("/v1/sessions/{session_id:session}/watch", watch_session)
    return router


async def _watch(
    socket: WebSocket, sessions: Sessions, session_id: str, cursor: str | None
) -> None:
    watching = sessions.watch(current_tenant(), session_id, cursor_number(cursor or "0"))
    tasks = [asyncio.ensure_future(_send(socket, watching)), asyncio.ensure_future(_left(socket))]
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in ended:
        task.result()


async def _send(socket: WebSocket, watching: AsyncGenerator[Watched, None]) -> None:
    async with aclosing(watching) as happenings:
        async for watched in happenings:
            await socket.send_text(json.dumps(watched_line(watched).members))


async def _left(socket: WebSocket) -> None:
    """Wait until the client leaves, with WebSocketDisconnect; what it says means nothing."""
    while True:
        await received(socket)


def _servers(sessions: Sessions, session: Session) -> list[IceServerAnswer]:
    return [IceServerAnswer.model_validate(server) for server in sessions.ice_servers(session)]


def _answer(session: Session) -> SessionAnswer:
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
