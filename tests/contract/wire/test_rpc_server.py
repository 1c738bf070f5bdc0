"""How a server binds, reports its health, and stops."""

from __future__ import annotations

import asyncio
import stat
from contextlib import closing
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from opentelemetry.sdk.trace import TracerProvider

from chassis.listeners import AddressNotBindable
from chassis.rpc_channel import open_channel
from chassis.rpc_server import serve_grpc
from tests.contract.wire.echo import NAME, health, stream_at, unary_at, wire

REFLECTION = "grpc.reflection.v1alpha.ServerReflection"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def path_of(bind: str) -> Path:
    return Path(bind.removeprefix("unix:"))


@pytest.mark.asyncio
async def test_a_unix_socket_is_the_owners_alone_and_goes_at_the_end(bind: str) -> None:
    async with wire(bind) as w:
        assert stat.S_IMODE(path_of(bind).stat().st_mode) == 0o600
        assert w.server.address == bind
        assert w.server.port == 0
    assert not path_of(bind).exists()


@pytest.mark.asyncio
async def test_the_socket_of_a_dead_process_is_replaced(bind: str) -> None:
    program = f"import socket; socket.socket(socket.AF_UNIX).bind({str(path_of(bind))!r})"
    process = await asyncio.create_subprocess_exec("python3", "-c", program)
    assert await process.wait() == 0
    assert path_of(bind).is_socket()
    async with wire(bind) as w:
        assert await w.unary()(b"a") == b"a"


@pytest.mark.asyncio
async def test_the_socket_of_a_living_process_is_left_alone(bind: str) -> None:
    async with wire(bind) as first:
        with pytest.raises(AddressNotBindable) as caught:
            async with wire(bind):
                pass
        assert caught.value.fields == {"address": bind}
        assert await first.unary()(b"a") == b"a"


@pytest.mark.asyncio
async def test_a_file_that_is_no_socket_is_left_alone(bind: str) -> None:
    path_of(bind).write_text("precious")
    with pytest.raises(AddressNotBindable):
        async with wire(bind):
            pass
    assert path_of(bind).read_text() == "precious"


@pytest.mark.asyncio
async def test_the_sockets_folder_is_made_and_is_private(bind: str) -> None:
    nested = f"unix:{path_of(bind).parent}/run/s"
    async with wire(nested) as w:
        assert await w.unary()(b"a") == b"a"
        assert stat.S_IMODE(path_of(nested).parent.stat().st_mode) == 0o700


@pytest.mark.asyncio
async def test_port_zero_is_any_port_and_two_servers_never_share_one() -> None:
    async with wire("127.0.0.1:0") as w:
        assert w.server.port > 0
        assert w.server.address == f"127.0.0.1:{w.server.port}"
        assert await w.unary()(b"a") == b"a"
        with pytest.raises(AddressNotBindable):
            async with wire(w.server.address):
                pass


@pytest.mark.asyncio
async def test_health_goes_from_serving_to_not_serving_when_it_drains(bind: str) -> None:
    async with wire(bind, secret="right") as w:
        async with open_channel(bind, tracer_provider=w.tracer_provider) as probe:
            assert [await health(probe, name) for name in ("", NAME)] == [SERVING] * 2
            await w.server.drain()
            assert [await health(probe, name) for name in ("", NAME)] == [NOT_SERVING] * 2
        assert await w.unary()(b"still") == b"still"


@pytest.mark.asyncio
async def test_reflection_lists_the_services(bind: str) -> None:
    async with wire(bind) as w:
        request = reflection_pb2.ServerReflectionRequest(list_services="").SerializeToString()
        call = stream_at(w.channel, f"/{REFLECTION}/ServerReflectionInfo")(iter([request]))
        async for raw in call:
            answer = reflection_pb2.ServerReflectionResponse.FromString(raw)
            names = {service.name for service in answer.list_services_response.service}
    assert {NAME, "grpc.health.v1.Health"} <= names


@pytest.mark.asyncio
async def test_a_server_that_takes_connections_late_is_waited_for(bind: str) -> None:
    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            while content := await reader.read(65_536):
                writer.write(content)

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.5)
        inner_reader, inner_writer = await asyncio.open_unix_connection(bind.removeprefix("unix:"))
        await asyncio.gather(pipe(reader, inner_writer), pipe(inner_reader, writer))

    async with wire(bind), await asyncio.start_server(take, "127.0.0.1", 0) as late:
        port = late.sockets[0].getsockname()[1]
        async with open_channel(f"127.0.0.1:{port}", tracer_provider=TracerProvider()) as channel:
            assert await unary_at(channel, f"/{NAME}/Unary")(b"a") == b"a"


@pytest.mark.asyncio
async def test_a_stop_lets_an_open_call_finish_within_the_grace(bind: str) -> None:
    go = asyncio.Event()

    async def waits(request: bytes) -> bytes:
        await go.wait()
        return request

    async with wire(bind, waits) as w, asyncio.TaskGroup() as tasks:

        async def ask() -> bytes:
            return await w.unary()(b"a")

        asking = tasks.create_task(ask())
        await asyncio.wait_for(w.echo.entered.wait(), 60)
        stopping = tasks.create_task(w.server.stop(100))
        go.set()
        assert await asking == b"a"
        await asyncio.wait_for(stopping, 60)
        assert not w.echo.cancelled.is_set()


@pytest.mark.asyncio
async def test_a_stop_cancels_what_is_still_open_after_the_grace(bind: str) -> None:
    async def forever(request: bytes) -> bytes:
        await asyncio.Event().wait()
        return request

    async with wire(bind, forever) as w:

        async def ask() -> bytes:
            return await w.unary()(b"a")

        asking = asyncio.ensure_future(ask())
        await asyncio.wait_for(w.echo.entered.wait(), 60)
        await w.server.stop(0.05)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asking
        await asyncio.wait_for(w.echo.cancelled.wait(), 60)
    assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


@pytest.mark.asyncio
async def test_a_server_whose_start_fails_half_way_leaves_no_socket(bind: str) -> None:
    def register(server: grpc.aio.Server) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        async with serve_grpc(
            bind=bind, register=register, services=[NAME], tracer_provider=TracerProvider()
        ):
            pass
    assert not path_of(bind).exists()
