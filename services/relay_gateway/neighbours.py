"""Signalling over gRPC: the stream that a gateway holds, proto in and out."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TypeAlias

import grpc

from chassis.rpc_channel import closing
from chassis.rpc_errors import PeerUnavailable, neighbour_errors
from fairlead.gateway.v1 import gateway_pb2 as pb
from fairlead.gateway.v1 import gateway_pb2_grpc
from relay_gateway.message import (
    Answered,
    Candidates,
    Changed,
    Heartbeat,
    Hello,
    Order,
    PortGranted,
    PortWanted,
    Refusal,
    Report,
    RestartWanted,
    SessionUnwanted,
    TunnelTerms,
    Welcome,
)
from relay_gateway.session import IceServer, WantedSession

PEER = "signalling"
QUEUED_REPORTS = 4096

Call: TypeAlias = "grpc.aio.StreamStreamCall[pb.SynchronizeRequest, pb.SynchronizeResponse]"


class GrpcSignalling:
    """Signalling's internal address."""

    def __init__(self, *, channel: grpc.aio.Channel) -> None:
        self._stub: gateway_pb2_grpc.GatewayServiceAsyncStub = gateway_pb2_grpc.GatewayServiceStub(
            channel
        )

    @asynccontextmanager
    async def converse(self, hello: Hello) -> AsyncIterator[GrpcConversation]:
        """Open a stream and say hello; leaving the block cancels it."""
        async with closing(self._stub.Synchronize()) as call:
            conversation = GrpcConversation(call=call, hello=hello)
            writing = asyncio.create_task(conversation.write_all())
            try:
                yield conversation
            finally:
                writing.cancel()
                await asyncio.wait((writing,))


class GrpcConversation:
    """One stream."""

    def __init__(self, *, call: Call, hello: Hello) -> None:
        self._call = call
        self._queue: asyncio.Queue[pb.SynchronizeRequest | None] = asyncio.Queue(QUEUED_REPORTS)
        self._queue.put_nowait(
            pb.SynchronizeRequest(
                hello=pb.Hello(
                    gateway_id=hello.gateway_id,
                    session_ids=hello.session_ids,
                    capacity=hello.capacity,
                    workers_address=hello.workers_address,
                    can_trickle=hello.can_trickle,
                    ended=[
                        pb.SessionChanged(session_id=end.session_id, close_reason=end.close_reason)
                        for end in hello.ended
                    ],
                    tunnel=_terms(hello.tunnel) if hello.tunnel is not None else None,
                )
            )
        )

    def tell(self, report: Report) -> None:
        """Queue a report; an overflow breaks the stream, and the next one states all anew."""
        try:
            self._queue.put_nowait(_request(report))
        except asyncio.QueueFull:
            self._call.cancel()

    def finish(self) -> None:
        """Say nothing more after what is queued; signalling then ends the stream."""
        with contextlib.suppress(asyncio.QueueFull):
            self._queue.put_nowait(None)

    async def write_all(self) -> None:
        """Write what is queued until `finish`; a stream that breaks is reported by `orders`."""
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while (request := await self._queue.get()) is not None:
                await self._call.write(request)
            await self._call.done_writing()

    async def orders(self) -> AsyncIterator[Order]:
        """Give what signalling says; raises FairleadError when the stream breaks."""
        with neighbour_errors(PEER):
            try:
                async for response in self._call:
                    if (order := _order(response)) is not None:
                        yield order
            except asyncio.CancelledError:
                # Reading from a call that was cancelled here raises this, without any task being
                # cancelled.
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                raise PeerUnavailable(PEER) from None


def _request(report: Report) -> pb.SynchronizeRequest:
    match report:
        case Heartbeat():
            return pb.SynchronizeRequest(
                heartbeat=pb.Heartbeat(
                    sessions=report.sessions, channels=report.channels, draining=report.draining
                )
            )
        case Answered(session_id, str(answer), number):
            return pb.SynchronizeRequest(
                answered=pb.SessionAnswered(session_id=session_id, answer=answer, round=number)
            )
        case Answered(session_id, Refusal(reason, message), number):
            return pb.SynchronizeRequest(
                answered=pb.SessionAnswered(
                    session_id=session_id,
                    refusal=pb.Refusal(reason=reason, message=message),
                    round=number,
                )
            )
        case Candidates():
            return pb.SynchronizeRequest(
                candidates_found=pb.CandidatesFound(
                    session_id=report.session_id,
                    round=report.round,
                    first=report.first,
                    candidates=report.candidates,
                    end_of_candidates=report.ended,
                )
            )
        case RestartWanted(session_id, number):
            return pb.SynchronizeRequest(
                restart_wanted=pb.RestartWanted(session_id=session_id, round=number)
            )
        case Changed():
            return pb.SynchronizeRequest(
                changed=pb.SessionChanged(
                    session_id=report.session_id,
                    connected=report.connected,
                    close_reason=report.close_reason,
                    round=report.round,
                )
            )
        case PortWanted():
            return pb.SynchronizeRequest(
                port_wanted=pb.PortWanted(
                    request_id=report.request_id,
                    session_id=report.session_id,
                    port=report.port,
                    traceparent=report.traceparent,
                    ticket=report.ticket,
                    execution_id=report.execution_id,
                )
            )
    raise AssertionError(f"no such report: {type(report).__name__}")


def _order(response: pb.SynchronizeResponse) -> Order | None:
    """Return what a response says; None for a kind that this version does not know."""
    match response.WhichOneof("message"):
        case "welcome":
            return Welcome(
                wanted=[_wanted(session) for session in response.welcome.wanted],
                heartbeat_seconds=float(response.welcome.heartbeat_seconds or 5),
            )
        case "wanted":
            return _wanted(response.wanted)
        case "candidates_given":
            given = response.candidates_given
            return Candidates(
                given.session_id,
                given.round,
                given.first,
                tuple(given.candidates),
                given.end_of_candidates,
            )
        case "unwanted":
            return SessionUnwanted(response.unwanted.session_id)
        case "port_granted":
            return _granted(response.port_granted)
        case _:
            return None


def _wanted(session: pb.SessionWanted) -> WantedSession:
    return WantedSession(
        session_id=session.session_id,
        offer=session.offer,
        expires_at=(
            session.expires_at.ToDatetime(tzinfo=UTC)
            if session.HasField("expires_at")
            else datetime.max.replace(tzinfo=UTC)
        ),
        traceparent=session.traceparent,
        round=session.round or 1,
        trickles=session.trickles,
        candidates=tuple(session.candidates),
        ended=session.end_of_candidates,
        ice_servers=tuple(
            IceServer(tuple(server.urls), server.username, server.credential)
            for server in session.ice_servers
        ),
        ice_policy=session.ice_policy or "all",
        is_tunnel=session.is_tunnel,
    )


def _terms(terms: TunnelTerms) -> pb.TunnelTerms:
    return pb.TunnelTerms(
        public_key=terms.public_key, ticket_secret=terms.ticket_secret, urls=terms.urls
    )


def _granted(grant: pb.PortGranted) -> PortGranted:
    if not grant.HasField("refusal"):
        return PortGranted(grant.request_id)
    return PortGranted(grant.request_id, Refusal(grant.refusal.reason, grant.refusal.message))
