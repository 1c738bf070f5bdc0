"""SessionService for clients: proto in, broker, proto out."""

from __future__ import annotations

from datetime import datetime

import grpc
from google.protobuf.timestamp_pb2 import Timestamp

from fairlead.session.v1 import session_pb2 as pb
from fairlead.session.v1 import session_pb2_grpc as rpc
from signalling.caller import current_tenant
from signalling.session import Session, SessionState
from signalling.session_ports import Sessions

SESSION_SERVICE = pb.DESCRIPTOR.services_by_name["SessionService"].full_name

_STATES = {
    SessionState.OPENED: pb.SESSION_STATE_OPENED,
    SessionState.OFFERED: pb.SESSION_STATE_OFFERED,
    SessionState.ANSWERED: pb.SESSION_STATE_ANSWERED,
    SessionState.CONNECTED: pb.SESSION_STATE_CONNECTED,
    SessionState.CLOSED: pb.SESSION_STATE_CLOSED,
}
_MODES = {pb.SESSION_MODE_COMPLETE: "complete"}


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
            _MODES.get(request.mode, ""),
            request.idempotency_key or None,
        )
        return pb.OpenSessionResponse(session=_proto(session))

    async def SendOffer(
        self,
        request: pb.SendOfferRequest,
        context: grpc.aio.ServicerContext[pb.SendOfferRequest, pb.SendOfferResponse],
    ) -> pb.SendOfferResponse:
        session = await self._sessions.offer(current_tenant(), request.session_id, request.offer)
        return pb.SendOfferResponse(answer=session.answer, session=_proto(session))

    async def GetSession(
        self,
        request: pb.GetSessionRequest,
        context: grpc.aio.ServicerContext[pb.GetSessionRequest, pb.GetSessionResponse],
    ) -> pb.GetSessionResponse:
        session = await self._sessions.get(current_tenant(), request.session_id)
        return pb.GetSessionResponse(session=_proto(session))

    async def CloseSession(
        self,
        request: pb.CloseSessionRequest,
        context: grpc.aio.ServicerContext[pb.CloseSessionRequest, pb.CloseSessionResponse],
    ) -> pb.CloseSessionResponse:
        session = await self._sessions.close(current_tenant(), request.session_id)
        return pb.CloseSessionResponse(session=_proto(session))


def register_sessions(server: grpc.aio.Server, sessions: Sessions) -> None:
    """Add the service to a server."""
    rpc.add_SessionServiceServicer_to_server(SessionApi(sessions=sessions), server)


def timestamp(moment: datetime) -> Timestamp:
    """Return a time as protobuf has it."""
    stamp = Timestamp()
    stamp.FromDatetime(moment)
    return stamp


def _proto(session: Session) -> pb.Session:
    return pb.Session(
        session_id=session.session_id,
        launch_id=session.launch_id,
        gateway_id=session.gateway_id,
        mode=pb.SESSION_MODE_COMPLETE,
        state=_STATES[session.state],
        created_at=timestamp(session.created_at),
        expires_at=timestamp(session.expires_at),
        close_reason=session.close_reason.value if session.close_reason else "",
    )
