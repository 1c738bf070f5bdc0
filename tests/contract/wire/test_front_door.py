"""The whole front door over a real Redis: what it serves and needs, how it starts and stops."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import grpc
import httpx2
import pytest
import uvicorn
from grpc_health.v1 import health_pb2
from opentelemetry.sdk.trace import TracerProvider
from starlette.types import Receive, Scope, Send

from chassis.errors import FairleadError
from chassis.http_server import serve_http
from chassis.listeners import listen_on
from chassis.rpc_channel import open_channel
from fairlead.gateway.v1 import gateway_pb2 as gateway
from fairlead.gateway.v1 import gateway_pb2_grpc as gateway_rpc
from fairlead.launch.v1 import launch_pb2, launch_pb2_grpc
from signalling.front_door import FrontDoor
from signalling.settings import Settings
from signalling.wiring import build
from tests.contract.wire.front_door import LAUNCH, assert_problem
from tests.contract.wire.scripted_gateway import GATEWAY, ScriptedGateway
from tests.contract.wire.test_sessions_api import reason_of
from tests.redis_fixture import RedisServer

pytestmark = pytest.mark.asyncio


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory with a path short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="fld-") as directory:
        yield Path(directory)


def settings_of(place: Path, redis_url: str, **changes: str) -> Settings:
    return Settings.model_validate(
        {
            "redis_url": redis_url,
            "http_bind": "127.0.0.1:0",
            "grpc_bind": "127.0.0.1:0",
            "internal_bind": f"unix:{place / 'gateways.sock'}",
            "state": place / "state",
            "bootstrap_key_file": place / "key",
        }
        | changes
    )


@asynccontextmanager
async def client_of(door: FrontDoor, place: Path) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(
        base_url=f"http://127.0.0.1:{door.http_port}",
        headers={"Authorization": f"Bearer {(place / 'key').read_text().strip()}"},
        trust_env=False,
        # Of one write: a busy machine takes long for twenty megabytes.
        timeout=60,
    ) as client:
        yield client


async def test_it_serves_rest_grpc_and_gateways(place: Path, redis_url: str) -> None:
    provider = TracerProvider()
    async with AsyncExitStack() as stack:
        door = await stack.enter_async_context(build(settings_of(place, redis_url)))
        client = await stack.enter_async_context(client_of(door, place))
        assert (await client.get("/readyz")).status_code == 200
        assert (await client.get("/v1/hosts")).json() == {"hosts": []}
        refused = await client.post("/v1/launches", json=LAUNCH)
        assert_problem(refused, 503, "no_host")

        assert door.public is not None
        channel = await stack.enter_async_context(
            open_channel(f"127.0.0.1:{door.public.port}", tracer_provider=provider)
        )
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        answer = await check(health_pb2.HealthCheckRequest())
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        launches: launch_pb2_grpc.LaunchServiceAsyncStub = launch_pb2_grpc.LaunchServiceStub(
            channel
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await launches.ListLaunches(launch_pb2.ListLaunchesRequest())
        assert reason_of(caught.value) == "key_missing"
        key = client.headers["authorization"]
        page = await launches.ListLaunches(
            launch_pb2.ListLaunchesRequest(), metadata=(("authorization", key),)
        )
        assert list(page.launches) == []

        internal = await stack.enter_async_context(
            open_channel(f"unix:{place / 'gateways.sock'}", tracer_provider=provider)
        )
        stub: gateway_rpc.GatewayServiceAsyncStub = gateway_rpc.GatewayServiceStub(internal)
        gate = ScriptedGateway(stub.Synchronize())
        assert isinstance(await gate.hello(), gateway.Welcome)
        listed = (await client.get("/v1/gateways")).json()["gateways"]
        assert [found["gateway_id"] for found in listed] == [GATEWAY]

        await door.drain()
        assert_problem(await client.get("/readyz"), 503, "not_ready")
        answer = await check(health_pb2.HealthCheckRequest())
        assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING


async def test_a_redis_that_goes_away_is_said_and_forgotten(
    place: Path, own_redis: RedisServer
) -> None:
    settings = settings_of(place, own_redis.url)
    async with build(settings) as door, client_of(door, place) as client:
        own_redis.stop()
        assert_problem(await client.get("/readyz"), 503, "not_ready")
        assert_problem(await client.get("/v1/gateways"), 503, "redis_unavailable")
        own_redis.start()
        assert (await client.get("/readyz")).status_code == 200
        assert (await client.get("/v1/gateways")).status_code == 200


async def test_a_large_body_gets_its_answer_over_a_real_connection(
    place: Path, redis_url: str
) -> None:
    async with build(settings_of(place, redis_url)) as door, client_of(door, place) as client:

        async def body() -> AsyncIterator[bytes]:
            for _ in range(20):
                yield bytes(1_000_000)

        for content in (bytes(20_000_000), body()):
            async with asyncio.timeout(120):
                assert_problem(
                    await client.post("/v1/launches", content=content), 413, "body_too_large"
                )


@pytest.mark.parametrize("setting", ["http_bind", "grpc_bind"])
async def test_a_taken_address_is_an_error_that_names_its_setting(
    place: Path, redis_url: str, setting: str
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        settings = settings_of(place, redis_url, **{setting: f"127.0.0.1:{taken.getsockname()[1]}"})
        with pytest.raises((FairleadError, ExceptionGroup)) as caught:
            async with build(settings):
                pass
    error: BaseException = caught.value
    while isinstance(error, ExceptionGroup):
        (error,) = error.exceptions
    assert isinstance(error, FairleadError)
    assert error.reason == "address_not_bindable"
    assert f"FAIRLEAD_SIGNALLING_{setting.upper()}" in error.message + error.remedy
    assert not (place / "gateways.sock").exists()


async def test_a_server_that_fails_to_start_is_an_error_and_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail(*_: object) -> None:
        raise OSError("no room for a socket")

    monkeypatch.setattr(uvicorn.Server, "startup", fail)
    with pytest.raises(OSError, match="no room"):
        async with serve_http(rest_of_nothing, bind="127.0.0.1:0"):
            pass


async def rest_of_nothing(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that is never asked."""


async def test_gateways_over_tcp_need_a_secret(place: Path, redis_url: str) -> None:
    with pytest.raises(FairleadError) as caught:
        async with build(settings_of(place, redis_url, internal_bind="127.0.0.1:0")):
            pass
    assert caught.value.reason == "secret_required"
    assert "FAIRLEAD_SECRET_FILE" in caught.value.remedy


async def test_answers_on_a_kept_connection_do_not_wait_for_acknowledgements() -> None:
    taken: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = writer.get_extra_info("socket")
        taken.set_result(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    listener = listen_on("127.0.0.1:0")
    async with await asyncio.start_server(take, sock=listener):
        _, writer = await asyncio.open_connection(*listener.getsockname())
        assert await taken
        writer.close()
