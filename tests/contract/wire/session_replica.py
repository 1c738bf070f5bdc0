"""One replica of signalling's session half over a real Redis: HTTP and gRPC for clients, gRPC for
gateways.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
from opentelemetry.sdk.trace import TracerProvider

from chassis.clock import SystemClock
from chassis.http_server import serve_http
from chassis.redis_client import open_redis
from chassis.rpc_channel import open_channel
from chassis.rpc_server import serve_grpc
from fairlead.gateway.v1 import gateway_pb2_grpc as gateway_rpc
from fairlead.session.v1 import session_pb2_grpc as rpc
from signalling.api_keys import ApiKeys
from signalling.auth_grpc_api import KeyCheck
from signalling.gateway_grpc_api import GATEWAY_SERVICE, register_gateways
from signalling.open_calls import OpenCalls
from signalling.session_grpc_api import SESSION_SERVICE, register_sessions
from signalling.session_wiring import SessionHalf, open_sessions
from signalling.settings import Settings
from tests.contract.wire.front_door import Door, make_door
from tests.contract.wire.scripted_gateway import ScriptedGateway
from tests.fakes.rate_limits import no_rate_limits
from tests.fakes.sessions import FakeReachedLaunches


@dataclass(frozen=True, kw_only=True)
class Replica:
    """A replica that is served, and how it is reached."""

    door: Door
    port: int
    half: SessionHalf
    grpc: rpc.SessionServiceAsyncStub
    internal: str
    provider: TracerProvider

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.door.key}"),)

    @asynccontextmanager
    async def gateway(self) -> AsyncIterator[ScriptedGateway]:
        async with open_channel(self.internal, tracer_provider=self.provider) as channel:
            stub: gateway_rpc.GatewayServiceAsyncStub = gateway_rpc.GatewayServiceStub(channel)
            stream = stub.Synchronize()
            try:
                yield ScriptedGateway(stream)
            finally:
                stream.cancel()

    @asynccontextmanager
    async def http(self) -> AsyncIterator[httpx2.AsyncClient]:
        async with httpx2.AsyncClient(
            base_url=f"http://127.0.0.1:{self.port}",
            headers={"Authorization": f"Bearer {self.door.key}"},
            timeout=60,
        ) as client:
            yield client

    @asynccontextmanager
    async def events(
        self, session_id: str, cursor: int = 0
    ) -> AsyncIterator[AsyncIterator[Mapping[str, object]]]:
        """Watch a session as NDJSON."""

        async def lines(answer: httpx2.Response) -> AsyncIterator[Mapping[str, object]]:
            async for line in answer.aiter_lines():
                yield json.loads(line)

        path = f"/v1/sessions/{session_id}/events?cursor={cursor}"
        async with self.http() as client, client.stream("GET", path) as answer:
            assert answer.status_code == 200
            yield lines(answer)


@asynccontextmanager
async def open_replica(
    state: Path, redis_url: str, launches: FakeReachedLaunches, *, session_seconds: float = 60.0
) -> AsyncIterator[Replica]:
    """Serve a replica; those of one Redis belong together."""
    provider = TracerProvider()
    settings = Settings(redis_url=redis_url, state=state, session_seconds=session_seconds)
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(open_redis(redis_url))
        clock = SystemClock()
        half = await stack.enter_async_context(
            open_sessions(settings, redis=redis, clock=clock, key=b"k", tracer_provider=provider)
        )
        sessions = half.sessions(launches)
        door = make_door(state, sessions=sessions)
        public = await stack.enter_async_context(
            serve_grpc(
                bind="127.0.0.1:0",
                register=lambda server: register_sessions(server, sessions),
                services=[SESSION_SERVICE],
                tracer_provider=provider,
                interceptors=[
                    KeyCheck(keys=ApiKeys(state=state), calls=OpenCalls(), limits=no_rate_limits())
                ],
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
                    servers=sessions.ice_servers,
                ),
                services=[GATEWAY_SERVICE],
                tracer_provider=provider,
                grace_seconds=0,
            )
        )
        stack.callback(half.switchboard.end_all)
        http = await stack.enter_async_context(serve_http(door.app, bind="127.0.0.1:0"))
        stack.callback(door.streams.close)
        channel = await stack.enter_async_context(
            open_channel(public.address, tracer_provider=provider)
        )
        yield Replica(
            door=door,
            port=http.port,
            half=half,
            grpc=rpc.SessionServiceStub(channel),
            internal=internal.address,
            provider=provider,
        )
