"""What happens to a channel of a tunnel while it is opened, moved, drained or closed."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket

import pytest

from fairlead_tunnel.endpoints import Endpoint
from fairlead_tunnel.websocket_pipe import connect_websocket
from tests.contract.tunnel.http_world import attach_pipe, polls
from tests.contract.tunnel.talks import SIZE, reset
from tests.contract.wire.full_server import full_server
from tests.contract.wire.gateway_mesh import mesh, until
from tests.contract.wire.tunnel_client import TunnelClient, tunnel_client, want_tunnel
from tests.eventually import SECONDS

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("each_pump")]


async def opened(client: TunnelClient, target: str) -> asyncio.StreamWriter:
    """Open a channel with some bytes."""
    port = await client.listen(target)
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"early")
    return writer


def descriptors() -> int:
    """How many descriptors this process has."""
    return len(os.listdir("/proc/self/fd"))


async def test_a_tunnel_moves_from_carrier_to_carrier_under_its_channels() -> None:
    async with asyncio.timeout(SECONDS), mesh() as it, tunnel_client(it) as client:
        url = f"http://127.0.0.1:{it.gateway.http_port}"
        await client.attach()
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", await client.listen(f"tcp:{it.servers.echo}")
        )

        async def echoed() -> None:
            content = secrets.token_bytes(SIZE // 8)
            writer.write(content)
            assert await reader.readexactly(len(content)) == content

        await echoed()
        writer.write(b"under way")
        client.carriers[-1].stream.abort()
        pipe = await connect_websocket(url)
        over_socket = await attach_pipe(client.end.driver, client.ticket, pipe)
        assert await reader.readexactly(9) == b"under way"
        await echoed()
        writer.write(b"under way")
        over_socket.stream.abort()
        async with polls(client.end.driver, client.ticket, Endpoint(url)):
            assert await reader.readexactly(9) == b"under way"
            await echoed()
            writer.write(b"under way")
        await client.attach()
        assert await reader.readexactly(9) == b"under way"
        await echoed()
        writer.close()
        await until(lambda: it.gateway.channels == 0)


async def test_a_drain_waits_for_what_a_sandbox_has_not_read() -> None:
    content = secrets.token_bytes(6 * 1024 * 1024)
    may_read = asyncio.Event()
    found: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write_eof()
        await may_read.wait()
        found.set_result(await reader.read())
        writer.close()

    plug = socket.create_server(("127.0.0.1", 0))
    plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    server = await asyncio.start_server(late, sock=plug)
    async with (
        asyncio.timeout(SECONDS),
        server,
        mesh() as it,
        tunnel_client(it) as client,
    ):
        await client.attach()
        target = f"tcp:{plug.getsockname()[1]}"
        reader, writer = await asyncio.open_connection("127.0.0.1", await client.listen(target))
        writer.write(content)
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
        await until(lambda: client.end.endings == [(1, "")])
        draining = asyncio.ensure_future(it.gateway.drain())
        await it.signalling.until(lambda: it.signalling.heartbeats[-1].draining)
        assert it.gateway.channels == 1
        may_read.set()
        await draining
        assert await found == content


async def test_a_reason_of_the_worker_reaches_the_client() -> None:
    async with asyncio.timeout(SECONDS), mesh() as it, tunnel_client(it) as client:
        await client.attach()
        port = await client.listen(f"tcp:{it.servers.echo}")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        await it.worker.close()
        with pytest.raises(ConnectionResetError):
            await reader.read()
        assert client.end.endings == [(1, "sandbox_released")]
        writer.close()
        await until(lambda: it.gateway.channels == 0)


@pytest.mark.parametrize("to_sandbox", [False, True])
async def test_a_client_that_gives_up_what_is_being_opened_leaves_nothing(
    to_sandbox: bool,
) -> None:
    with full_server() as port:
        async with (
            asyncio.timeout(SECONDS),
            mesh(targets=(f"127.0.0.1:{port}",)) as it,
            tunnel_client(it) as client,
        ):
            it.worker.silent = True
            await client.attach()
            known = descriptors()
            target = f"tcp:{it.servers.echo}" if to_sandbox else f"tcp:127.0.0.1:{port}"
            writer = await opened(client, target)
            await until(lambda: it.gateway.channels == 1)
            reset(writer)
            await until(lambda: it.gateway.channels == 0)
            for server in client.servers:
                server.close()
            await until(lambda: descriptors() <= known)


@pytest.mark.parametrize("to_sandbox", [False, True])
async def test_a_session_that_ends_while_a_channel_is_opened_leaves_nothing(
    to_sandbox: bool,
) -> None:
    with full_server() as port:
        async with asyncio.timeout(SECONDS), mesh(targets=(f"127.0.0.1:{port}",)) as it:
            it.worker.silent = True
            async with tunnel_client(it) as client:
                known = descriptors()
                want_tunnel(it, "ses_a")
                await client.attach()
                target = f"tcp:{it.servers.echo}" if to_sandbox else f"tcp:127.0.0.1:{port}"
                writer = await opened(client, target)
                await until(lambda: it.gateway.channels == 1)
                it.signalling.unwant("ses_a")
                await it.signalling.until(lambda: it.signalling.closed("ses_a") == ["requested"])
                await client.carriers[0].gone
                assert client.end.endings == [(1, "session_closed")]
                writer.close()
                for server in client.servers:
                    server.close()
            await until(lambda: descriptors() <= known)


async def test_a_session_that_ends_cuts_what_is_under_way_to_the_sandbox(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with asyncio.timeout(SECONDS), mesh() as it, tunnel_client(it) as client:
        want_tunnel(it, "ses_a")
        await client.attach()
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", await client.listen(f"tcp:{it.servers.echo}")
        )
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        it.signalling.unwant("ses_a")
        await it.servers.reset_seen.wait()
        await until(lambda: it.worker.open_connections == 0)
        writer.close()
    assert not [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
