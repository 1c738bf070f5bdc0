"""SessionService for clients: proto in, broker, proto out."""

from __future__ import annotations

import grpc

from fairlead.session.v1 import session_pb2 as pb
from fairlead.session.v1 import session_pb2_grpc as rpc
from signalling.caller import check_admin, current_tenant, listed_tenant
from signalling.session import Session
from signalling.session_messages import (
    mode_of,
    outcome_proto,
    policy_of,
    session_proto,
    timestamp,
    tunnel_proto,
    watched_proto,
)
from signalling.session_ports import Sessions

SESSION_SERVICE = pb.DESCRIPTOR.services_by_name["SessionService"].full_name


class SessionApi(rpc.SessionServiceServicer):
    """Serves SessionService."""

    def __init__(self, *, sessions: Sessions) -> None:
        self._sessions = sessions

    async def OpenSession(
        self,
        request: pb.OpenSessionRequest,
        context: grpc.aio.ServicerContext[pb.OpenSessionRequest, pb.OpenSessionResponse],
    ) -> pb.OpenSessionResponse:
        session = await self._sessions.open(
            current_tenant(),
            request.launch_id,
            mode_of(request.mode),
            request.idempotency_key or None,
            policy=policy_of(request.ice_policy),
            conversation_id=request.conversation_id,
        )
        tunnel = await self._sessions.tunnel(session)
        return pb.OpenSessionResponse(
            session=session_proto(session),
            ice_servers=self._servers(session),
            tunnel=tunnel_proto(tunnel) if tunnel else None,
        )

    async def SendOffer(
        self,
        request: pb.SendOfferRequest,
        context: grpc.aio.ServicerContext[pb.SendOfferRequest, pb.SendOfferResponse],
    ) -> pb.SendOfferResponse:
        session = await self._sessions.offer(current_tenant(), request.session_id, request.offer)
        return pb.SendOfferResponse(answer=session.answer, session=session_proto(session))

    async def AddCandidates(
        self,
        request: pb.AddCandidatesRequest,
        context: grpc.aio.ServicerContext[pb.AddCandidatesRequest, pb.AddCandidatesResponse],
    ) -> pb.AddCandidatesResponse:
        outcomes = await self._sessions.add_candidates(
            current_tenant(),
            request.session_id,
            request.candidates,
            ended=request.end_of_candidates,
            round_number=request.round,
        )
        return pb.AddCandidatesResponse(outcomes=[outcome_proto(outcome) for outcome in outcomes])

    async def RestartSession(
        self,
        request: pb.RestartSessionRequest,
        context: grpc.aio.ServicerContext[pb.RestartSessionRequest, pb.RestartSessionResponse],
    ) -> pb.RestartSessionResponse:
        session = await self._sessions.restart(current_tenant(), request.session_id, request.offer)
        return pb.RestartSessionResponse(
            answer=session.answer if request.offer else "",
            session=session_proto(session),
            ice_servers=self._servers(session),
        )

    # grpc.aio also takes a coroutine that writes, which is smaller than a generator around one; the
    # generated stub only knows generators.
    async def WatchSession(  # type: ignore[override]
        self,
        request: pb.WatchSessionRequest,
        context: grpc.aio.ServicerContext[pb.WatchSessionRequest, pb.WatchSessionResponse],
    ) -> None:
        happenings = self._sessions.watch(
            current_tenant(), request.session_id, max(0, request.cursor)
        )
        try:
            async for watched in happenings:
                await context.write(watched_proto(watched))
                del watched  # the next one may be hours away
        finally:
            await happenings.aclose()

    async def GetSession(
        self,
        request: pb.GetSessionRequest,
        context: grpc.aio.ServicerContext[pb.GetSessionRequest, pb.GetSessionResponse],
    ) -> pb.GetSessionResponse:
        session = await self._sessions.get(current_tenant(), request.session_id)
        return pb.GetSessionResponse(session=session_proto(session))

    async def ListSessions(
        self,
        request: pb.ListSessionsRequest,
        context: grpc.aio.ServicerContext[pb.ListSessionsRequest, pb.ListSessionsResponse],
    ) -> pb.ListSessionsResponse:
        found, following = await self._sessions.list(
            listed_tenant(request.tenant), request.page_size, request.page_token
        )
        return pb.ListSessionsResponse(
            sessions=[session_proto(session) for session in found], next_page_token=following
        )

    async def CloseSession(
        self,
        request: pb.CloseSessionRequest,
        context: grpc.aio.ServicerContext[pb.CloseSessionRequest, pb.CloseSessionResponse],
    ) -> pb.CloseSessionResponse:
        tenant, session_id = current_tenant(), request.session_id
        if request.as_admin:
            check_admin()
            session = await self._sessions.close_as_admin(tenant, session_id, request.message)
        else:
            session = await self._sessions.close(tenant, session_id)
        return pb.CloseSessionResponse(session=session_proto(session))

    def _servers(self, session: Session) -> list[pb.IceServer]:
        return [
            pb.IceServer(
                urls=server.urls,
                username=server.username,
                credential=server.credential,
                expires_at=timestamp(server.expires_at) if server.expires_at else None,
            )
            for server in self._sessions.ice_servers(session)
        ]


def register_sessions(server: grpc.aio.Server, sessions: Sessions) -> None:
    """Add the service to a server."""
    rpc.add_SessionServiceServicer_to_server(SessionApi(sessions=sessions), server)
