"""Routes of sessions: JSON in, broker, JSON or a stream of events out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response, WebSocket
from starlette.convertors import StringConvertor, register_url_convertor

from signalling.caller import check_admin, current_tenant, listed_tenant
from signalling.event_stream import EventStreams
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
from signalling.session import Session
from signalling.session_bodies import (
    AnsweredSession,
    CandidatesAnswer,
    CandidatesBody,
    IceServerAnswer,
    OfferBody,
    OpenBody,
    OpenedSession,
    RestartBody,
    RestartedSession,
    SessionAnswer,
    SessionPage,
    session_answer,
    tunnel_answer,
)
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
        tunnel = await sessions.tunnel(session)
        opened = OpenedSession(
            ice_servers=_servers(sessions, session),
            tunnel=tunnel_answer(tunnel) if tunnel else None,
            **dict(session_answer(session)),
        )
        headers = {"Location": f"/v1/sessions/{session.session_id}"}
        if session.traceparent:  # where the session's spans stand: in the trace of its launch
            headers["traceresponse"] = session.traceparent
        return answered(opened, 201, headers)

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
        return AnsweredSession(answer=session.answer, session=session_answer(session))

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
            session=session_answer(session),
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
        return SessionPage(
            sessions=[session_answer(each) for each in found], next_page_token=following
        )

    # Last, as a name may have slashes.
    @router.get(
        "/{session_id:session}", response_model=SessionAnswer, responses=problem_documents(404)
    )
    async def get_session(session_id: str) -> SessionAnswer:
        """Return a session."""
        return session_answer(await sessions.get(current_tenant(), session_id))

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
            return session_answer(await sessions.close_as_admin(tenant, session_id, message))
        return session_answer(await sessions.close(current_tenant(), session_id))

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
