"""Signalling as a gateway sees it: a real GatewayService over gRPC whose wishes a test scripts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import grpc

from fairlead.gateway.v1 import gateway_pb2 as pb
from fairlead.gateway.v1 import gateway_pb2_grpc as rpc
from tests.eventually import SECONDS
from tests.fakes.port_worker import PortWorkerFake

_Context = grpc.aio.ServicerContext[pb.SynchronizeRequest, pb.SynchronizeResponse]


class ScriptedSignalling(rpc.GatewayServiceServicer):
    """Wants what `wanted` says; has `worker` bring ports, or refuses those in `refusals`."""

    def __init__(self, *, worker: PortWorkerFake) -> None:
        self.worker = worker
        self.wanted: dict[str, pb.SessionWanted] = {}
        self.refusals: dict[int, pb.Refusal] = {}
        self.hellos: list[pb.Hello] = []
        self.heartbeats: list[pb.Heartbeat] = []
        self.answers: dict[str, pb.SessionAnswered] = {}
        self.changes: list[pb.SessionChanged] = []
        self.ports: list[pb.PortWanted] = []
        self.said: list[object] = []
        """Every message of the gateway, in order; repeated ones once."""
        self.expiry = timedelta(seconds=60)
        self.traceparent = ""
        self.is_away = False
        self._changed = asyncio.Condition()
        self._orders: asyncio.Queue[pb.SynchronizeResponse | None] | None = None

    @property
    def is_connected(self) -> bool:
        """Say whether a gateway holds a stream."""
        return self._orders is not None

    # The generated stub knows only generators, grpc.aio also takes a coroutine that writes.
    async def Synchronize(  # type: ignore[override]
        self, request_iterator: AsyncIterator[pb.SynchronizeRequest], context: _Context
    ) -> None:
        if self.is_away:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "away")
        hello = await anext(aiter(request_iterator))
        self.hellos.append(hello.hello)
        orders: asyncio.Queue[pb.SynchronizeResponse | None] = asyncio.Queue()
        self._orders = orders
        reading = asyncio.create_task(self._read(request_iterator, orders))
        try:
            welcome = pb.Welcome(wanted=self.wanted.values(), heartbeat_seconds=1)
            await context.write(pb.SynchronizeResponse(welcome=welcome))
            await self.tell()
            while (order := await orders.get()) is not None:
                await context.write(order)
        finally:
            self._orders = None
            reading.cancel()
            await asyncio.wait((reading,))

    async def _read(
        self,
        requests: AsyncIterator[pb.SynchronizeRequest],
        orders: asyncio.Queue[pb.SynchronizeResponse | None],
    ) -> None:
        bringing: set[asyncio.Task[None]] = set()
        async for request in requests:
            said = getattr(request, request.WhichOneof("message") or "heartbeat")
            if said not in self.said[-64:]:
                self.said.append(said)
            match request.WhichOneof("message"):
                case "heartbeat":
                    self.heartbeats.append(request.heartbeat)
                case "answered":
                    self.answers[request.answered.session_id] = request.answered
                case "changed":
                    self.changes.append(request.changed)
                case "port_wanted":
                    self.ports.append(request.port_wanted)
                    task = asyncio.create_task(self._grant(request.port_wanted, orders))
                    bringing.add(task)
                    task.add_done_callback(bringing.discard)
            await self.tell()
        orders.put_nowait(None)

    async def _grant(
        self, wanted: pb.PortWanted, orders: asyncio.Queue[pb.SynchronizeResponse | None]
    ) -> None:
        refusal = self.refusals.get(wanted.port)
        if refusal is None:
            address = self.hellos[-1].workers_address
            if not await self.worker.bring(address, wanted.ticket, wanted.port):
                refusal = pb.Refusal(reason="port_refused", message="Nothing listens.")
        granted = pb.PortGranted(request_id=wanted.request_id, refusal=refusal)
        orders.put_nowait(pb.SynchronizeResponse(port_granted=granted))

    async def tell(self) -> None:
        """Have everybody look who waits."""
        async with self._changed:
            self._changed.notify_all()

    async def until(self, fact: Callable[[], bool], seconds: float = SECONDS) -> None:
        """Wait until `fact` holds, looking whenever a gateway said something."""
        async with asyncio.timeout(seconds), self._changed:
            await self._changed.wait_for(fact)

    def drop_stream(self) -> None:
        """End the gateway's stream."""
        assert self._orders is not None
        self._orders.put_nowait(None)

    def unwant(self, session_id: str) -> None:
        """Want a session no more, and say so."""
        del self.wanted[session_id]
        assert self._orders is not None
        unwanted = pb.SessionUnwanted(session_id=session_id)
        self._orders.put_nowait(pb.SynchronizeResponse(unwanted=unwanted))

    def want(
        self,
        session_id: str,
        offer: str,
        *,
        of_round: int = 1,
        trickles: bool = False,
        ice_servers: Sequence[pb.IceServer] = (),
    ) -> None:
        """Want a round of a session, and say so when a gateway is there."""
        wanted = pb.SessionWanted(
            session_id=session_id,
            offer=offer,
            traceparent=self.traceparent,
            round=of_round,
            trickles=trickles,
            ice_servers=ice_servers,
        )
        wanted.expires_at.FromDatetime(datetime.now(UTC) + self.expiry)
        self.say_wanted(wanted)

    def say_wanted(self, wanted: pb.SessionWanted) -> None:
        """Want a session, and say so when a gateway is there."""
        self.wanted[wanted.session_id] = wanted
        if self._orders is not None:
            self._orders.put_nowait(pb.SynchronizeResponse(wanted=wanted))

    def give(self, session_id: str, candidates: list[str], *, ended: bool) -> None:
        """Give more candidates of the client."""
        wanted = self.wanted[session_id]
        first = len(wanted.candidates)
        wanted.candidates.extend(candidates)
        wanted.end_of_candidates = wanted.end_of_candidates or ended
        if self._orders is not None:
            given = pb.CandidatesGiven(
                session_id=session_id,
                round=wanted.round,
                first=first,
                candidates=candidates,
                end_of_candidates=ended,
            )
            self._orders.put_nowait(pb.SynchronizeResponse(candidates_given=given))

    def closed(self, session_id: str) -> list[str]:
        """Return the close reasons that were reported of a session."""
        return [
            change.close_reason
            for change in self.changes
            if change.session_id == session_id and not change.connected
        ]

    def is_up(self, session_id: str) -> bool:
        """Say whether a session was reported as connected."""
        return any(change.session_id == session_id and change.connected for change in self.changes)


@asynccontextmanager
async def serve_signalling(
    worker: PortWorkerFake, address: str
) -> AsyncIterator[ScriptedSignalling]:
    """Serve scripted signalling at `address`, such as `unix:/path`."""
    signalling = ScriptedSignalling(worker=worker)
    server = grpc.aio.server()
    rpc.add_GatewayServiceServicer_to_server(signalling, server)
    server.add_insecure_port(address)
    await server.start()
    try:
        yield signalling
    finally:
        await server.stop(0.5)
