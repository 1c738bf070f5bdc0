"""GatewayService for relay-gateways: one stream each, proto in and out of switchboard and desk."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence

import grpc

from chassis.clock import Clock
from chassis.errors import FairleadError, InvalidArgument, ResourceExhausted
from chassis.ids import is_id
from fairlead.gateway.v1 import gateway_pb2 as pb
from fairlead.gateway.v1 import gateway_pb2_grpc as rpc
from signalling.association import Association, Give, Grant, Order, Unwant, Want
from signalling.close_reason import close_reason
from signalling.gateway import Gateway, Meeting
from signalling.ice_servers import IceServer
from signalling.session import Session
from signalling.session_messages import timestamp
from signalling.session_tracing import TracedDesk
from signalling.switchboard import Switchboard
from signalling.tunnel import TunnelTerms

log = logging.getLogger(__name__)

GATEWAY_SERVICE = pb.DESCRIPTOR.services_by_name["GatewayService"].full_name
_PORT_REQUESTS = 128
_QUEUED_REPORTS = 256

ServersOf = Callable[[Session], Sequence[IceServer]]

_Context = grpc.aio.ServicerContext[pb.SynchronizeRequest, pb.SynchronizeResponse]


class HelloExpected(InvalidArgument):
    """A gateway's stream does not begin as it must."""

    def __init__(self) -> None:
        super().__init__(
            "The first message must be a hello with a gateway id.", reason="hello_expected"
        )


class PortRequestsExceeded(ResourceExhausted):
    """A gateway wants more connections at once than are looked at."""

    def __init__(self) -> None:
        super().__init__(
            "Too many connections are being opened at once.",
            reason="too_many_port_requests",
            remedy="Try again in a moment.",
        )


class GatewayApi(rpc.GatewayServiceServicer):
    """Serves GatewayService."""

    def __init__(
        self, *, switchboard: Switchboard, desk: TracedDesk, clock: Clock, servers: ServersOf
    ) -> None:
        self._switchboard = switchboard
        self._desk = desk
        self._clock = clock
        self._servers = servers

    # grpc.aio also takes a coroutine that writes; the generated stub only knows generators.
    async def Synchronize(  # type: ignore[override]
        self, request_iterator: AsyncIterator[pb.SynchronizeRequest], context: _Context
    ) -> None:
        """Hold one gateway's association until either side ends it."""
        hello = await _hello(request_iterator)
        gateway = Gateway(
            gateway_id=hello.gateway_id,
            connected_at=self._clock.now(),
            capacity=max(0, hello.capacity),
            sessions=len(hello.session_ids),
            can_trickle=hello.can_trickle,
            tunnel=_terms(hello.tunnel) if hello.HasField("tunnel") else None,
        )
        association, wanted = await self._switchboard.connect(
            gateway,
            frozenset(hello.session_ids),
            {each.session_id: close_reason(each.close_reason) for each in hello.ended},
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                reading = tasks.create_task(self._read(request_iterator, association, hello))
                await context.write(
                    pb.SynchronizeResponse(
                        welcome=pb.Welcome(
                            wanted=[self._wanted(session) for session in wanted],
                            heartbeat_seconds=self._switchboard.heartbeat_seconds,
                        )
                    )
                )
                while (order := await association.next_order()) is not None:
                    await context.write(self._proto(order))
                reading.cancel()
        finally:
            await self._switchboard.disconnect(association)

    async def _read(
        self,
        requests: AsyncIterator[pb.SynchronizeRequest],
        association: Association,
        hello: pb.Hello,
    ) -> None:
        open_ports = asyncio.Semaphore(_PORT_REQUESTS)
        renewing: asyncio.Task[None] | None = None
        # Reports are taken in order, beside the requests for ports: a port does not wait for a
        # report of another session that waits for the store.
        reports: asyncio.Queue[pb.SynchronizeRequest | None] = asyncio.Queue(_QUEUED_REPORTS)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._take_all(reports, association))
                async for request in requests:
                    kind = request.WhichOneof("message")
                    if kind == "heartbeat":
                        beat = request.heartbeat
                        self._switchboard.heard(
                            association,
                            sessions=beat.sessions,
                            channels=beat.channels,
                            draining=beat.draining,
                        )
                        # What comes behind it does not wait for a store that hangs.
                        if renewing is None or renewing.done():
                            renewing = tasks.create_task(self._renew(association))
                    elif kind != "port_wanted":
                        await reports.put(request)
                    elif open_ports.locked():
                        association.give(
                            Grant(request.port_wanted.request_id, PortRequestsExceeded())
                        )
                    else:
                        await open_ports.acquire()
                        task = tasks.create_task(
                            self._open_port(request.port_wanted, association, hello.workers_address)
                        )
                        task.add_done_callback(lambda _: open_ports.release())
                await reports.put(None)
                if renewing is not None:
                    renewing.cancel()
        finally:
            association.end("closed")

    async def _take_all(
        self, reports: asyncio.Queue[pb.SynchronizeRequest | None], association: Association
    ) -> None:
        while (report := await reports.get()) is not None:
            await self._take(report, association)

    async def _renew(self, association: Association) -> None:
        """Renew the lease of a gateway and then its sessions, if the store is there."""
        try:
            if await self._switchboard.renew(association):
                await self._desk.keep_connected(association.gateway.gateway_id)
        except FairleadError as error:
            _give_up(association, error)

    async def _take(self, request: pb.SynchronizeRequest, association: Association) -> None:
        gateway_id = association.gateway.gateway_id
        try:
            match request.WhichOneof("message"):
                case "answered":
                    await self._take_outcome(gateway_id, request.answered)
                case "candidates_found":
                    found = request.candidates_found
                    await self._desk.take_candidates(
                        gateway_id,
                        found.session_id,
                        found.candidates,
                        round_number=found.round,
                        first=found.first,
                        ended=found.end_of_candidates,
                    )
                case "restart_wanted":
                    wish = request.restart_wanted
                    await self._desk.take_wish(gateway_id, wish.session_id, wish.round)
                case "changed":
                    changed = request.changed
                    await self._desk.take_change(
                        gateway_id,
                        changed.session_id,
                        connected=changed.connected,
                        reason=changed.close_reason,
                        round_number=changed.round,
                    )
        except FairleadError as error:
            _give_up(association, error)

    async def _take_outcome(self, gateway_id: str, answered: pb.SessionAnswered) -> None:
        round_number = answered.round or 1
        if answered.WhichOneof("outcome") == "answer":
            await self._desk.take_answer(
                gateway_id, answered.session_id, answered.answer, round_number=round_number
            )
        else:
            await self._desk.take_refusal(
                gateway_id,
                answered.session_id,
                answered.refusal.message,
                reason=answered.refusal.reason,
                round_number=round_number,
            )

    async def _open_port(
        self, wanted: pb.PortWanted, association: Association, workers_address: str
    ) -> None:
        try:
            await self._desk.open_port(
                association.gateway.gateway_id,
                wanted.session_id,
                wanted.port,
                Meeting(workers_address, wanted.ticket, wanted.execution_id),
                traceparent=wanted.traceparent,
            )
        except FairleadError as error:
            association.give(Grant(wanted.request_id, error))
        else:
            association.give(Grant(wanted.request_id))

    def _wanted(self, session: Session) -> pb.SessionWanted:
        return pb.SessionWanted(
            session_id=session.session_id,
            offer=session.offer,
            expires_at=timestamp(session.expires_at),
            traceparent=session.traceparent,
            round=session.round,
            trickles=session.trickles,
            candidates=session.client_candidates,
            end_of_candidates=session.client_ended,
            ice_policy=session.ice_policy.value,
            is_tunnel=session.is_tunnel,
            ice_servers=[
                pb.IceServer(
                    urls=server.urls,
                    username=server.username,
                    credential=server.credential,
                    expires_at=timestamp(server.expires_at) if server.expires_at else None,
                )
                for server in self._servers(session)
            ],
        )

    def _proto(self, order: Order) -> pb.SynchronizeResponse:
        match order:
            case Want(session):
                return pb.SynchronizeResponse(wanted=self._wanted(session))
            case Give(session_id, round_number, first, candidates, ended):
                given = pb.CandidatesGiven(
                    session_id=session_id,
                    round=round_number,
                    first=first,
                    candidates=candidates,
                    end_of_candidates=ended,
                )
                return pb.SynchronizeResponse(candidates_given=given)
            case Unwant(session_id):
                return pb.SynchronizeResponse(unwanted=pb.SessionUnwanted(session_id=session_id))
            case Grant(request_id, refusal):
                granted = pb.PortGranted(request_id=request_id)
                if refusal is not None:
                    granted.refusal.CopyFrom(
                        pb.Refusal(reason=refusal.reason, message=refusal.message)
                    )
                return pb.SynchronizeResponse(port_granted=granted)


def register_gateways(
    server: grpc.aio.Server,
    *,
    switchboard: Switchboard,
    desk: TracedDesk,
    clock: Clock,
    servers: ServersOf,
) -> None:
    """Add the service to a server; `servers` gives the STUN and TURN servers of a session."""
    rpc.add_GatewayServiceServicer_to_server(
        GatewayApi(switchboard=switchboard, desk=desk, clock=clock, servers=servers), server
    )


def _give_up(association: Association, error: FairleadError) -> None:
    """End a stream of which something was lost, so that hello and welcome put it right."""
    log.warning("gateway not heard", extra={"reason": error.reason})
    association.end("not_heard")


async def _hello(requests: AsyncIterator[pb.SynchronizeRequest]) -> pb.Hello:
    first = await anext(aiter(requests), None)
    if first is None or first.WhichOneof("message") != "hello":
        raise HelloExpected
    if not is_id("gtw", first.hello.gateway_id):
        raise HelloExpected
    return first.hello


def _terms(terms: pb.TunnelTerms) -> TunnelTerms:
    return TunnelTerms(
        public_key=terms.public_key, ticket_secret=terms.ticket_secret, urls=tuple(terms.urls)
    )
