"""Channels to hosts beside the gateway: real sockets, a real gateway and the SDK's real client."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from errno import ECONNREFUSED, EHOSTUNREACH, EMFILE, ENETUNREACH, ETIMEDOUT

import pytest

from chassis.allow_list import parse_allow_list
from chassis.errors import FairleadError
from chassis.own_addresses import is_own
from fairlead_sdk.errors import FairleadError as SdkError
from fairlead_sdk.forwarding import forward, open_tunnel
from relay_gateway.dialler import Dialler
from relay_gateway.session import WantedSession
from relay_gateway.target_rules import TargetRules
from tests.contract.wire.full_server import full_server
from tests.contract.wire.gateway_mesh import LAUNCH, connect, echoed, mesh, until

pytestmark = pytest.mark.asyncio

SESSION = WantedSession("ses_a", "v=0", datetime.now(UTC))
_FOUND_BY_DIALLING = ("dial_refused", "dial_timeout", "host_unreachable")


async def resolved(host: str, port: int) -> list[str]:
    """A name server: `twice.test` has a dead address first, `silent.test` never comes."""
    if host == "silent.test":
        await asyncio.Event().wait()
    if host == "slow.test":
        raise TimeoutError
    found = {"db.test": ["127.0.0.1"], "twice.test": ["127.0.0.77", "127.0.0.1"], "none.test": []}
    if host not in found:
        raise socket.gaierror(-2, "Name or service not known")
    return found[host]


def dialler(*allowed: str, seconds: float = 10.0) -> Dialler:
    rules = TargetRules(allowed=parse_allow_list(allowed), is_own=is_own)
    return Dialler(rules=rules, resolve=resolved, dial_seconds=seconds)


@asynccontextmanager
async def listener() -> AsyncIterator[int]:
    """A server on 127.0.0.1 that echoes."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while content := await reader.read(65536):
                writer.write(content)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server:
        yield int(server.sockets[0].getsockname()[1])


async def judged(subject: Dialler, host: str, port: int) -> Sequence[str]:
    """What a pump is told to dial."""
    address = subject.judge(SESSION, host, port)
    return [address] if address is not None else await subject.resolve(SESSION, host, port)


async def failure(subject: Dialler, host: str, port: int) -> str:
    """Why there is no connection, which is what a pump is told where it dials nothing."""
    with pytest.raises(FairleadError) as caught:
        await subject.dial(SESSION, host, port)
    reason = caught.value.reason
    if reason not in _FOUND_BY_DIALLING:
        with pytest.raises(FairleadError) as caught:
            await judged(subject, host, port)
        assert caught.value.reason == reason
    return reason


async def test_the_address_that_was_judged_is_dialled_without_delay_and_watched() -> None:
    async with listener() as port:
        for host in ("db.test", "twice.test", "127.0.0.1", "[::ffff:127.0.0.1]"):
            allowed = (f"db.test:{port}", f"twice.test:{port}", f"127.0.0.1:{port}")
            reader, writer = await dialler(*allowed).dial(SESSION, host, port)
            plug = writer.get_extra_info("socket")
            assert plug.getpeername()[0].removeprefix("::ffff:") == "127.0.0.1"
            assert plug.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert plug.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            writer.write_eof()
            assert await reader.read() == b""
            writer.close()
            await writer.wait_closed()


async def test_why_a_host_is_not_reached(unused_tcp_port: int) -> None:
    port = unused_tcp_port
    opened = dialler(f"*:{port}", f"127.0.0.1:{port}")
    assert await failure(opened, "db.test", port) == "dial_refused"
    assert await failure(opened, "127.0.0.1", port) == "dial_refused"
    subject = dialler(f"*:{port}", f"db.test:{port}")
    assert await failure(subject, "db.test", port) == "target_denied"
    assert await failure(subject, "nowhere.test", port) == "host_unknown"
    assert await failure(subject, "none.test", port) == "host_unknown"
    assert await failure(subject, "slow.test", port) == "dial_timeout"
    assert await failure(subject, "twice.test", port) == "target_denied"
    assert await failure(subject, "127.0.0.1", port) == "target_denied"
    assert await failure(subject, "db.test", 1) == "target_denied"
    assert await failure(subject, "127.1", port) == "channel_unknown"
    assert await failure(subject, "-", port) == "channel_unknown"
    hasty = dialler(f"*:{port}", seconds=0.05)
    assert await failure(hasty, "silent.test", port) == "dial_timeout"


@pytest.mark.parametrize("host", ["db.test", "127.0.0.1"])
async def test_a_server_that_takes_nobody_is_a_timeout(host: str) -> None:
    with full_server() as port:
        subject = dialler(f"{host}:{port}", f"127.0.0.1:{port}", seconds=0.2)
        assert await failure(subject, host, port) == "dial_timeout"


async def test_a_pump_is_told_addresses_that_were_judged_and_tells_what_became_of_them() -> None:
    subject = dialler("*:80", "127.0.0.0/8:80")
    assert await judged(subject, "db.test", 80) == ["127.0.0.1"]
    assert await judged(subject, "twice.test", 80) == ["127.0.0.77", "127.0.0.1"]
    assert await judged(subject, "127.0.0.1", 80) == ["127.0.0.1"]
    assert await judged(subject, "[::ffff:127.0.0.1]", 80) == ["::ffff:7f00:1"]
    errors = (ECONNREFUSED, ETIMEDOUT, EHOSTUNREACH, ENETUNREACH, EMFILE)
    told = [subject.dialled(SESSION, "db.test", 80, error, 0.1) for error in errors]
    assert [each.reason for each in told if each is not None] == [
        "dial_refused",
        "dial_timeout",
        "host_unreachable",
        "host_unreachable",
        "host_unreachable",
    ]
    assert subject.dialled(SESSION, "db.test", 80, 0, 0.1) is None


async def test_a_host_that_is_allowed_is_reached_through_the_gateway() -> None:
    content = os.urandom(2_000_000)
    async with (
        asyncio.timeout(60),
        listener() as port,
        mesh(targets=(f"127.0.0.1:{port}",)) as it,
        open_tunnel(it.sessions, LAUNCH) as tunnel,
    ):
        local = await tunnel.listen(port, remote_host="127.0.0.1")
        assert await echoed(local, content) == content
        inside = await tunnel.listen(it.servers.echo)
        assert await echoed(inside, b"of the sandbox") == b"of the sandbox"
        await until(lambda: not it.gateway.channels)
        # Signalling was asked for the sandbox's port alone.
        assert [each.port for each in it.signalling.ports] == [it.servers.echo]


async def test_a_host_that_is_not_allowed_is_a_reset_that_says_so() -> None:
    refused: list[tuple[str, str]] = []
    async with (
        asyncio.timeout(60),
        listener() as port,
        mesh() as it,
        open_tunnel(it.sessions, LAUNCH) as tunnel,
    ):
        local = await tunnel.listen(
            port,
            remote_host="127.0.0.1",
            on_refusal=lambda reason, message: refused.append((reason, message)),
        )
        with pytest.raises(ConnectionResetError):
            await echoed(local, bytes(100_000))
        await until(lambda: bool(refused))
        ((reason, message),) = refused
        assert reason == "target_denied"
        assert "FAIRLEAD_RELAY_TARGETS" in message
        with pytest.raises(SdkError) as caught:
            await tunnel.listen(80, remote_host="a b")
        assert caught.value.reason == "target_invalid"


async def test_the_end_of_a_session_ends_the_connection_to_the_host() -> None:
    ended = asyncio.Event()

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read()
        except ConnectionResetError:
            ended.set()
        writer.close()

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    port = int(server.sockets[0].getsockname()[1])
    async with asyncio.timeout(60), server, mesh(targets=(f"127.0.0.1:{port}",)) as it:
        async with open_tunnel(it.sessions, LAUNCH) as tunnel:
            local = await tunnel.listen(port, remote_host="127.0.0.1")
            _, writer = await connect(local)
            await until(lambda: it.gateway.channels == 1)
            (session_id,) = it.signalling.wanted
            it.signalling.unwant(session_id)
            await ended.wait()
            writer.close()
        await until(lambda: not it.gateway.sessions)


async def test_one_that_nobody_reads_stalls_only_itself() -> None:
    content = os.urandom(5_000_000)
    async with (
        asyncio.timeout(60),
        listener() as port,
        mesh(targets=(f"127.0.0.1:{port}",)) as it,
        open_tunnel(it.sessions, LAUNCH) as tunnel,
    ):
        local = await tunnel.listen(port, remote_host="127.0.0.1")
        slow, writer = await connect(local)
        writing = asyncio.create_task(_write(writer, content))
        assert await slow.readexactly(1) == content[:1]
        for number in range(5):
            assert await echoed(local, bytes([number]) * 50_000) == bytes([number]) * 50_000
        assert await slow.read() == content[1:]
        await writing
        writer.close()


async def _write(writer: asyncio.StreamWriter, content: bytes) -> None:
    writer.write(content)
    writer.write_eof()
    await writer.drain()


async def test_a_port_of_the_sandbox_needs_no_list() -> None:
    async with (
        asyncio.timeout(60),
        mesh() as it,
        forward(it.sessions, LAUNCH, it.servers.echo) as local,
    ):
        assert await echoed(local, b"x") == b"x"
