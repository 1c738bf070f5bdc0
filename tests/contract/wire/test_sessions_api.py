"""SessionService over gRPC, with a scripted gateway on the other side, on in-process servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from chassis.errors import FairleadError
from chassis.rpc_channel import open_channel
from chassis.rpc_errors import to_error
from chassis.rpc_server import serve_grpc
from fairlead.gateway.v1 import gateway_pb2_grpc as gateway_rpc
from fairlead.session.v1 import session_pb2 as pb
from fairlead.session.v1 import session_pb2_grpc as rpc
from signalling.api_keys import ApiKeys
from signalling.auth_grpc_api import KeyCheck
from signalling.gateway_grpc_api import GATEWAY_SERVICE, register_gateways
from signalling.open_calls import OpenCalls
from signalling.session_book import SessionBook
from signalling.session_grpc_api import SESSION_SERVICE, register_sessions
from signalling.session_timings import SessionTimings
from signalling.session_wiring import SessionHalf
from signalling.switchboard import Switchboard
from tests.contract.wire.scripted_gateway import GATEWAY, ScriptedGateway
from tests.fakes.clock import FakeClock
from tests.fakes.rate_limits import no_rate_limits
from tests.fakes.sessions import (
    ANSWER,
    MEETING,
    NO_SERVERS,
    OFFER,
    FakeGatewayDirectory,
    FakeReachedLaunches,
    FakeSessionStore,
    bare_launch,
    candidate,
    held_launch,
)

pytestmark = pytest.mark.asyncio

SECRET = "stack-secret"
HELD = held_launch()


@dataclass(frozen=True, kw_only=True)
class Desk:
    """Both servers, with everything that a test needs of them."""

    sessions: rpc.SessionServiceAsyncStub
    internal: str
    provider: TracerProvider
    spans: InMemorySpanExporter
    launches: FakeReachedLaunches
    switchboard: Switchboard
    key: str
    other_key: str
    admin_key: str

    @asynccontextmanager
    async def gateway(self, secret: str | None = SECRET) -> AsyncIterator[ScriptedGateway]:
        async with open_channel(
            self.internal, tracer_provider=self.provider, secret=secret
        ) as channel:
            stub: gateway_rpc.GatewayServiceAsyncStub = gateway_rpc.GatewayServiceStub(channel)
            stream = stub.Synchronize()
            try:
                yield ScriptedGateway(stream)
            finally:
                stream.cancel()

    def metadata(self, key: str | None = None) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {key or self.key}"),)

    async def open(self, key: str = "") -> pb.Session:
        request = pb.OpenSessionRequest(
            launch_id=HELD.launch_id, mode=pb.SESSION_MODE_COMPLETE, idempotency_key=key
        )
        return (await self.sessions.OpenSession(request, metadata=self.metadata())).session

    def offer(self, session_id: str, offer: str = OFFER) -> asyncio.Task[pb.SendOfferResponse]:
        async def send() -> pb.SendOfferResponse:
            return await self.sessions.SendOffer(
                pb.SendOfferRequest(session_id=session_id, offer=offer), metadata=self.metadata()
            )

        return asyncio.create_task(send())

    async def get(self, session_id: str) -> pb.Session:
        request = pb.GetSessionRequest(session_id=session_id)
        return (await self.sessions.GetSession(request, metadata=self.metadata())).session


@pytest_asyncio.fixture
async def desk(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Desk]:
    clock = FakeClock()
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    book = SessionBook(store=FakeSessionStore(clock), clock=clock)
    half = SessionHalf(
        book=book,
        switchboard=Switchboard(
            book=book,
            directory=FakeGatewayDirectory(),
            clock=clock,
            heartbeat_seconds=5,
            grace_seconds=15,
        ),
        clock=clock,
        timings=SessionTimings(offer_timeout_seconds=4),
        key=b"",
        servers=NO_SERVERS,
        tracer_provider=provider,
    )
    launches = FakeReachedLaunches()
    launches.put("default", HELD)
    launches.put("default", bare_launch())
    keys = ApiKeys(state=tmp_path)
    async with AsyncExitStack() as stack:
        public = await stack.enter_async_context(
            serve_grpc(
                bind="127.0.0.1:0",
                register=lambda server: register_sessions(server, half.sessions(launches)),
                services=[SESSION_SERVICE],
                tracer_provider=provider,
                interceptors=[KeyCheck(keys=keys, calls=OpenCalls(), limits=no_rate_limits())],
                grace_seconds=0,
            )
        )
        internal = await stack.enter_async_context(
            serve_grpc(
                bind="127.0.0.1:0",
                register=lambda server: register_gateways(
                    server,
                    switchboard=half.switchboard,
                    desk=half.desk(launches),
                    clock=clock,
                    servers=half.sessions(launches).ice_servers,
                ),
                services=[GATEWAY_SERVICE],
                tracer_provider=provider,
                secret=SECRET,
                grace_seconds=0,
            )
        )
        stack.callback(half.switchboard.end_all)
        channel = await stack.enter_async_context(
            open_channel(public.address, tracer_provider=provider)
        )
        yield Desk(
            sessions=rpc.SessionServiceStub(channel),
            internal=internal.address,
            provider=provider,
            spans=exporter,
            launches=launches,
            switchboard=half.switchboard,
            key=keys.add("default"),
            other_key=keys.add("other"),
            admin_key=keys.add("operators", is_admin=True),
        )


def reason_of(error: grpc.aio.AioRpcError) -> str:
    found: FairleadError = to_error(error, peer="signalling")
    return found.reason


async def test_a_client_gets_the_gateways_answer(desk: Desk) -> None:
    async with desk.gateway() as gate:
        assert (await gate.hello()).heartbeat_seconds == 5
        session = await desk.open("key")
        assert session.state == pb.SESSION_STATE_OPENED
        assert session.gateway_id == GATEWAY
        assert (await desk.open("key")).session_id == session.session_id
        offers = [desk.offer(session.session_id) for _ in range(3)]
        wanted = (await gate.next()).wanted
        assert (wanted.session_id, wanted.offer) == (session.session_id, OFFER)
        await gate.answer(session.session_id)
        answers = [(await offer).answer for offer in offers]
        assert answers == [ANSWER] * 3
        await gate.change(session.session_id, connected=True)
        granted = await gate.port(session.session_id, 7)
        assert not granted.HasField("refusal")
        ((_, port, meeting),) = desk.launches.opened
        assert (port, meeting) == (8080, MEETING)
        assert (await desk.get(session.session_id)).state == pb.SESSION_STATE_CONNECTED
        closing = pb.CloseSessionRequest(session_id=session.session_id)
        closed = await desk.sessions.CloseSession(closing, metadata=desk.metadata())
        assert closed.session.close_reason == "requested"
        assert (await gate.next()).unwanted.session_id == session.session_id


async def test_an_administrator_closes_it_and_its_watcher_is_told_why(desk: Desk) -> None:
    async with desk.gateway() as gate:
        await gate.hello()
        session = await desk.open()
        watching = pb.WatchSessionRequest(session_id=session.session_id)
        happenings = aiter(desk.sessions.WatchSession(watching, metadata=desk.metadata()))
        assert (await anext(happenings)).WhichOneof("event") == "subscribed"
        closing = pb.CloseSessionRequest(session_id=session.session_id, as_admin=True)
        closing.message = "Upkeep."
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await desk.sessions.CloseSession(closing, metadata=desk.metadata())
        assert reason_of(caught.value) == "admin_required"
        closed = await desk.sessions.CloseSession(closing, metadata=desk.metadata(desk.admin_key))
        assert closed.session.close_reason == "admin_closed"
        told = (await anext(happenings)).closed
        assert (told.reason, told.message) == ("admin_closed", "Upkeep.")
        assert (told.critical, told.user_initiated, told.retryable) == (False, True, False)


async def test_sessions_are_listed_for_their_tenant_and_for_administrators(desk: Desk) -> None:
    async with desk.gateway() as gate:
        await gate.hello()
        ids = sorted([(await desk.open()).session_id for _ in range(3)])
        asking = pb.ListSessionsRequest(page_size=2)
        first = await desk.sessions.ListSessions(asking, metadata=desk.metadata())
        asking.page_token = first.next_page_token
        second = await desk.sessions.ListSessions(asking, metadata=desk.metadata())
        assert [each.session_id for each in (*first.sessions, *second.sessions)] == ids
        theirs = pb.ListSessionsRequest(tenant="default")
        admin = await desk.sessions.ListSessions(theirs, metadata=desk.metadata(desk.admin_key))
        assert [each.session_id for each in admin.sessions] == ids
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await desk.sessions.ListSessions(theirs, metadata=desk.metadata(desk.other_key))
        assert reason_of(caught.value) == "admin_required"


async def test_the_gateways_work_belongs_to_the_callers_trace(desk: Desk) -> None:
    async with desk.gateway() as gate:
        await gate.hello()
        session = await desk.open()
        offer = desk.offer(session.session_id)
        wanted = (await gate.next()).wanted
        await gate.answer(session.session_id)
        await offer
        await gate.port(session.session_id, 1)
    spans = {span.name: span for span in desk.spans.get_finished_spans()}
    negotiation, channel = spans["session.offer"].context, spans["channel.open"].context
    assert negotiation is not None
    assert channel is not None
    span = f"{negotiation.trace_id:032x}-{negotiation.span_id:016x}"
    assert wanted.traceparent.startswith(f"00-{span}-")
    assert f"{channel.trace_id:032x}" == "a" * 32


async def test_every_step_belongs_to_the_trace_of_the_offer(desk: Desk) -> None:
    async with desk.gateway() as gate:
        await gate.hello(can_trickle=True)
        opening = pb.OpenSessionRequest(launch_id=HELD.launch_id, mode=pb.SESSION_MODE_TRICKLE)
        opened = await desk.sessions.OpenSession(opening, metadata=desk.metadata())
        session_id = opened.session.session_id
        offer = desk.offer(session_id)
        await gate.next()
        await gate.answer(session_id)
        await offer
        adding = pb.AddCandidatesRequest(session_id=session_id, candidates=[candidate(1)])
        await desk.sessions.AddCandidates(adding, metadata=desk.metadata())
        restarting = pb.RestartSessionRequest(session_id=session_id)
        await desk.sessions.RestartSession(restarting, metadata=desk.metadata())
        watching = desk.sessions.WatchSession(
            pb.WatchSessionRequest(session_id=session_id), metadata=desk.metadata()
        )
        assert (await anext(aiter(watching))).WhichOneof("event") == "subscribed"
    spans = {span.name: span for span in desk.spans.get_finished_spans()}
    assert "session.open" in spans
    steps = ("session.offer", "candidates.flush", "session.restart", "session.watch")
    contexts = [spans[name].context for name in steps]
    assert len({context.trace_id for context in contexts if context is not None}) == 1
    assert (spans["candidates.flush"].attributes or {})["fairlead.session.candidates"] == 1


@pytest.mark.parametrize(
    ("launch_id", "mode", "reason"),
    [
        ("lch_unknown", pb.SESSION_MODE_COMPLETE, "launch_not_found"),
        (bare_launch().launch_id, pb.SESSION_MODE_COMPLETE, "launch_not_held"),
        (HELD.launch_id, pb.SESSION_MODE_UNSPECIFIED, "mode_invalid"),
        (HELD.launch_id, 7, "mode_invalid"),
    ],
)
async def test_what_cannot_be_opened(
    desk: Desk, launch_id: str, mode: pb.SessionMode.ValueType, reason: str
) -> None:
    async with desk.gateway() as gate:
        await gate.hello()
        request = pb.OpenSessionRequest(launch_id=launch_id, mode=mode)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await desk.sessions.OpenSession(request, metadata=desk.metadata())
        assert reason_of(caught.value) == reason


async def test_without_a_gateway_there_is_no_session(desk: Desk) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await desk.open()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert reason_of(caught.value) == "gateway_unavailable"


async def test_offers_that_are_refused(desk: Desk) -> None:
    async with desk.gateway() as gate:
        await gate.hello()
        session = await desk.open()
        for offer, reason in (("hello", "sdp_invalid"), ("v=0\r\n" + "x" * 65_536, "sdp_invalid")):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await desk.offer(session.session_id, offer)
            assert reason_of(caught.value) == reason
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await desk.offer("ses_unknown")
        assert reason_of(caught.value) == "session_not_found"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await desk.offer(session.session_id)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert reason_of(caught.value) == "gateway_timeout"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await desk.offer(session.session_id, OFFER.replace("abcd", "efgh"))
        assert reason_of(caught.value) == "offer_conflict"


async def test_calls_need_a_key_and_see_only_their_tenants_sessions(desk: Desk) -> None:
    async with desk.gateway() as gate:
        await gate.hello()
        session = await desk.open()
        request = pb.GetSessionRequest(session_id=session.session_id)
        for metadata, code, reason in (
            ((), grpc.StatusCode.UNAUTHENTICATED, "key_missing"),
            (
                (("authorization", "Bearer flk_" + "x" * 43),),
                grpc.StatusCode.UNAUTHENTICATED,
                "key_invalid",
            ),
            (desk.metadata(desk.other_key), grpc.StatusCode.NOT_FOUND, "session_not_found"),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await desk.sessions.GetSession(request, metadata=metadata)
            assert caught.value.code() is code
            assert reason_of(caught.value) == reason
