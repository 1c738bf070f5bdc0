"""A real gateway between scripted signalling, a fake worker and the SDK's real client."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
from collections.abc import Callable
from datetime import timedelta

import psutil
import pytest

from fairlead.gateway.v1 import gateway_pb2 as pb
from fairlead_sdk.errors import FairleadError
from fairlead_sdk.forwarding import Forwarder, forward, open_tunnel
from fairlead_sdk.session_errors import SessionEnded
from fairlead_tunnel.aiortc_core import AiortcConnection, AiortcCore
from fairlead_tunnel.cores import cores
from tests.contract.wire.gateway_mesh import LAUNCH, Mesh, connect, echoed, mesh, until
from tests.lone_peer import unmet_offer

pytestmark = pytest.mark.slow

CONTENT = os.urandom(5_000_000)


@pytest.fixture(autouse=True, params=[core.name for core in cores()])
def core(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let client and gateway have this core only."""
    found = [core for core in cores() if core.name == request.param]
    monkeypatch.setattr("fairlead_tunnel.cores.cores", lambda: found)


def left_tasks() -> set[str]:
    """Name the tasks of gateway, tunnel and aiortc that are running."""
    return {
        str(task.get_coro())
        for task in asyncio.all_tasks()
        if any(name in str(task.get_coro()) for name in ("RTC", "Connection", "Pump", "_carry"))
    }


def open_udp_sockets() -> int:
    """Count this process's UDP sockets: each association has one for each local address."""
    return sum(found.type == socket.SOCK_DGRAM for found in psutil.Process().net_connections())


@pytest.mark.asyncio
async def test_five_megabytes_each_way_arrive_unharmed() -> None:
    async with asyncio.timeout(60), mesh(CONTENT) as it:
        async with open_tunnel(it.sessions, LAUNCH) as tunnel:
            up = await tunnel.listen(it.servers.digest)
            down = await tunnel.listen(it.servers.source)
            digest = hashlib.sha256(CONTENT).hexdigest().encode()
            assert await echoed(up, CONTENT) == digest
            assert hashlib.sha256(await echoed(down, b"")).hexdigest().encode() == digest
        await until(lambda: not it.gateway.sessions)


@pytest.mark.asyncio
async def test_twenty_connections_at_once_keep_their_bytes_apart() -> None:
    contents = [os.urandom(60_000 + number) for number in range(20)]
    async with asyncio.timeout(60), mesh() as it:
        async with forward(it.sessions, LAUNCH, it.servers.echo) as local:
            async with asyncio.TaskGroup() as tasks:
                answers = [tasks.create_task(echoed(local, content)) for content in contents]
            assert [answer.result() for answer in answers] == contents
            await until(lambda: not (it.gateway.channels or local.connections))
        assert it.worker.entered == 20
        assert it.worker.open_connections == 0


@pytest.mark.asyncio
async def test_a_half_closed_connection_still_answers() -> None:
    async with (
        asyncio.timeout(60),
        mesh() as it,
        forward(it.sessions, LAUNCH, it.servers.digest) as local,
    ):
        assert await echoed(local, b"abc") == hashlib.sha256(b"abc").hexdigest().encode()
        assert await echoed(local, b"") == hashlib.sha256(b"").hexdigest().encode()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (lambda it, port: None, "port_refused"),
        (
            lambda it, port: it.signalling.refusals.update(
                {port: pb.Refusal(reason="launch_not_held", message="Gone.")}
            ),
            "launch_not_held",
        ),
    ],
)
async def test_a_refusal_is_a_reset_with_its_reason(
    prepare: Callable[[Mesh, int], None], reason: str, unused_tcp_port: int
) -> None:
    refused: list[str] = []
    async with asyncio.timeout(60), mesh() as it:
        prepare(it, unused_tcp_port)
        async with forward(
            it.sessions,
            LAUNCH,
            unused_tcp_port,
            on_refusal=lambda reason, message: refused.append(reason),
        ) as local:
            with pytest.raises(ConnectionResetError):
                await echoed(local, b"x" * 100_000)
            await until(lambda: bool(refused))
            assert refused == [reason]
            await until(lambda: not it.gateway.channels)


@pytest.mark.asyncio
async def test_a_worker_that_dies_resets_the_client_with_a_reason() -> None:
    ended: list[str] = []
    async with (
        asyncio.timeout(60),
        mesh() as it,
        forward(
            it.sessions,
            LAUNCH,
            it.servers.echo,
            on_refusal=lambda reason, message: ended.append(reason),
        ) as local,
    ):
        reader, writer = await connect(local)
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        it.worker.die()
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()
        await until(lambda: not (it.gateway.channels or it.worker.open_connections))
        assert await echoed(local, b"again") == b"again"


@pytest.mark.asyncio
async def test_fifty_connections_at_once_beside_one_that_nobody_reads() -> None:
    contents = [os.urandom(60_000 + number) for number in range(50)]
    async with asyncio.timeout(60), mesh(CONTENT) as it:
        async with open_tunnel(it.sessions, LAUNCH) as tunnel:
            echo = await tunnel.listen(it.servers.echo)
            source = await tunnel.listen(it.servers.source)
            slow, writer = await connect(source)
            assert await slow.readexactly(1) == CONTENT[:1]
            async with asyncio.TaskGroup() as tasks:
                answers = [tasks.create_task(echoed(echo, content)) for content in contents]
            assert [answer.result() for answer in answers] == contents
            writer.write_eof()
            assert await slow.read() == CONTENT[1:]
            writer.close()
        await until(lambda: not (it.gateway.sessions or it.worker.open_connections))


@pytest.mark.asyncio
async def test_a_local_port_that_cannot_be_had_is_a_typed_error(unused_tcp_port: int) -> None:
    async with asyncio.timeout(60), mesh() as it, open_tunnel(it.sessions, LAUNCH) as tunnel:
        taken = await tunnel.listen(it.servers.echo, unused_tcp_port)
        assert taken.port == unused_tcp_port
        for remote, local, reason in (
            (it.servers.echo, unused_tcp_port, "local_port_unusable"),
            (0, 0, "port_invalid"),
            (80, 65536, "port_invalid"),
        ):
            with pytest.raises(FairleadError) as caught:
                await tunnel.listen(remote, local)
            assert caught.value.reason == reason
        assert await echoed(taken, b"still here") == b"still here"


@pytest.mark.asyncio
async def test_a_lost_signalling_stream_comes_back_and_the_session_stays_up() -> None:
    async with (
        asyncio.timeout(60),
        mesh() as it,
        forward(it.sessions, LAUNCH, it.servers.echo) as local,
    ):
        reader, writer = await connect(local)
        writer.write(b"before ")
        assert await reader.readexactly(7) == b"before "
        it.signalling.is_away = True
        it.signalling.drop_stream()
        await until(lambda: not it.gateway.is_ready)
        writer.write(b"during ")
        assert await reader.readexactly(7) == b"during "
        waiting = asyncio.create_task(echoed(local, b"asked while away"))
        await asyncio.sleep(0.2)
        it.signalling.is_away = False
        await until(lambda: it.gateway.is_ready)
        assert await waiting == b"asked while away"
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
        first, second = it.signalling.hellos
        assert first.gateway_id == second.gateway_id
        assert list(second.session_ids) == list(it.signalling.wanted)


@pytest.mark.asyncio
async def test_an_unwanted_session_is_closed_with_its_connections() -> None:
    async with asyncio.timeout(60), mesh() as it, open_tunnel(it.sessions, LAUNCH) as tunnel:
        local = await tunnel.listen(it.servers.echo)
        reader, writer = await connect(local)
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        (session_id,) = it.signalling.wanted
        it.signalling.unwant(session_id)
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()
        with pytest.raises(SessionEnded):
            await tunnel.wait_lost()
        await it.signalling.until(lambda: bool(it.signalling.closed(session_id)))
        assert it.signalling.closed(session_id) == ["requested"]
        await until(lambda: not (it.gateway.sessions or it.worker.open_connections))


@pytest.mark.asyncio
async def test_what_is_not_in_the_welcome_is_closed() -> None:
    async with asyncio.timeout(60), mesh() as it, open_tunnel(it.sessions, LAUNCH) as tunnel:
        (session_id,) = it.signalling.wanted
        del it.signalling.wanted[session_id]
        it.signalling.drop_stream()
        with pytest.raises(SessionEnded):
            await tunnel.wait_lost()
        await until(lambda: not it.gateway.sessions)


@pytest.mark.asyncio
async def test_a_session_that_the_client_closes_is_reported_and_nothing_is_left() -> None:
    async with asyncio.timeout(60), mesh() as it:
        async with forward(it.sessions, LAUNCH, it.servers.echo) as local:
            await echoed(local, b"warm up")
        await until(lambda: not it.gateway.sessions)
        tasks, sockets = left_tasks(), open_udp_sockets()
        for _ in range(3):
            async with forward(it.sessions, LAUNCH, it.servers.echo) as local:
                _, writer = await connect(local)
                writer.write(b"x" * 1000)
                await until(lambda: it.gateway.channels == 1)
                assert open_udp_sockets() > sockets
            writer.close()
            await until(lambda: not (it.gateway.sessions or it.worker.open_connections))
        await until(lambda: open_udp_sockets() == sockets)
        await until(lambda: left_tasks() == tasks)


@pytest.mark.asyncio
async def test_a_client_that_vanishes_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aioice.ice.CONSENT_INTERVAL", 0.2)
    aiortc = AiortcCore()
    async with (
        asyncio.timeout(60),
        mesh(core=aiortc) as it,
        open_tunnel(it.sessions, LAUNCH, core=aiortc) as tunnel,
    ):
        local = await tunnel.listen(it.servers.echo)
        reader, writer = await connect(local)
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        (session_id,) = it.signalling.wanted
        vanish(tunnel)
        await it.signalling.until(lambda: bool(it.signalling.closed(session_id)))
        assert it.signalling.closed(session_id) == ["connection_failed"]
        await until(lambda: not (it.gateway.sessions or it.worker.open_connections))
        writer.close()


def vanish(tunnel: Forwarder) -> None:
    """Cut a client off without a word: nothing leaves its sockets any more, and nothing is read."""
    peer = tunnel._session._connection
    assert isinstance(peer, AiortcConnection)
    connection = peer._connection
    assert connection.sctp is not None
    for protocol in connection.sctp.transport.transport._connection._protocols:
        protocol.transport.sendto = lambda data, addr=None: None  # type: ignore[method-assign]


@pytest.mark.asyncio
async def test_an_offer_nobody_connects_to_is_given_up() -> None:
    async with asyncio.timeout(60), mesh() as it:
        it.signalling.expiry = timedelta(seconds=3)
        offer = await unmet_offer()
        assert "m=application" in (await it.sessions.send_offer("ses_unmet", offer)).answer
        await it.signalling.until(lambda: bool(it.signalling.closed("ses_unmet")))
        assert it.signalling.closed("ses_unmet") == ["connection_failed"]
        await until(lambda: not it.gateway.sessions)
        it.signalling.want("ses_unmet", offer)
        await it.signalling.until(lambda: len(it.signalling.closed("ses_unmet")) == 2)
        assert it.gateway.sessions == 0


@pytest.mark.asyncio
async def test_limits_of_sessions_and_channels() -> None:
    async with (
        asyncio.timeout(60),
        mesh(sessions=1, channels_per_session=2) as it,
        forward(it.sessions, LAUNCH, it.servers.echo) as local,
    ):
        writers = [(await connect(local))[1] for _ in range(2)]
        await until(lambda: it.gateway.channels == 2)
        waiting = asyncio.ensure_future(echoed(local, b"x" * 100_000))
        await until(lambda: it.gateway.channels == 3)
        assert len(it.signalling.ports) == 2
        writers.pop().close()
        assert await waiting == b"x" * 100_000
        it.signalling.want(
            "ses_second", it.signalling.wanted[next(iter(it.signalling.wanted))].offer
        )
        await it.signalling.until(lambda: "ses_second" in it.signalling.answers)
        assert it.signalling.answers["ses_second"].refusal.reason == "gateway_full"
        for writer in writers:
            writer.close()


@pytest.mark.asyncio
async def test_a_drain_takes_nothing_new_and_waits_for_what_is_open() -> None:
    refused: list[str] = []
    async with (
        asyncio.timeout(60),
        mesh() as it,
        forward(
            it.sessions,
            LAUNCH,
            it.servers.echo,
            on_refusal=lambda reason, message: refused.append(reason),
        ) as local,
    ):
        reader, writer = await connect(local)
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        draining = asyncio.create_task(it.gateway.drain())
        await it.signalling.until(lambda: it.signalling.heartbeats[-1].draining)
        with pytest.raises(ConnectionResetError):
            await echoed(local, b"x" * 100_000)
        it.signalling.want("ses_late", it.signalling.wanted[next(iter(it.signalling.wanted))].offer)
        await it.signalling.until(lambda: "ses_late" in it.signalling.answers)
        assert it.signalling.answers["ses_late"].refusal.reason == "gateway_draining"
        await until(lambda: refused == ["gateway_draining"])
        assert not draining.done()
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
        await draining
