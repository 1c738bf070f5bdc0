"""Tunnels at a real gateway: what their channels lead to, and how sessions of them end."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from fairlead.gateway.v1 import gateway_pb2 as pb
from fairlead_tunnel.handshake import AttachRefused
from fairlead_tunnel.pumped_driver import PumpedDriver
from tests.contract.tunnel.talks import SIZE, echo, reset
from tests.contract.tunnel.tunnel_world import Hop, Talk
from tests.contract.wire.gateway_mesh import Mesh, mesh, until
from tests.contract.wire.tunnel_client import TunnelClient, tunnel_client, want_tunnel
from tests.eventually import SECONDS

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("each_pump")]

EXECUTION = "exe_" + "a" * 26


@asynccontextmanager
async def host(talk: Talk) -> AsyncIterator[str]:
    """Serve beside the gateway; gives its address."""
    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_host_that_is_allowed_is_reached_both_ways() -> None:
    async with asyncio.timeout(SECONDS), host(echo) as place, mesh(targets=(place,)) as it:
        async with tunnel_client(it) as client:
            await client.attach()
            content = secrets.token_bytes(SIZE)
            assert await client.ask(f"tcp:{place}", content) == content
            await until(lambda: it.gateway.channels == 0)
            assert client.end.endings == [(1, "")]
        await it.signalling.until(lambda: it.signalling.closed("ses_a") == ["peer_closed"])


async def test_ports_of_the_sandbox_are_reached_both_ways() -> None:
    content = secrets.token_bytes(SIZE)
    async with asyncio.timeout(SECONDS), mesh(content) as it, tunnel_client(it) as client:
        await client.attach()
        assert await client.ask(f"tcp:{it.servers.echo}", content) == content
        said = await client.ask(f"tcp:{it.servers.digest}", content)
        assert said.decode() == hashlib.sha256(content).hexdigest()
        assert await client.ask(f"tcp:{it.servers.source}", b"") == content
        await until(lambda: it.gateway.channels == 0)
        assert client.end.endings == [(1, ""), (2, ""), (3, "")]
        assert [each.session_id for each in it.signalling.ports] == ["ses_a"] * 3


async def test_what_stands_in_the_way_is_a_typed_reset() -> None:
    async with asyncio.timeout(SECONDS), mesh(targets=("127.0.0.1:9",)) as it:
        it.signalling.refusals[81] = pb.Refusal(reason="port_refused", message="Nothing listens.")
        it.signalling.refusals[0] = pb.Refusal(reason="execution_ended", message="It has ended.")
        async with tunnel_client(it) as client:
            await client.attach()
            assert await client.reason_of("tcp:127.0.0.1:9") == "dial_refused"
            assert await client.reason_of("tcp:127.0.0.1:10") == "target_denied"
            assert await client.reason_of("tcp:81") == "port_refused"
            assert await client.reason_of(f"terminal:{EXECUTION}") == "execution_ended"
            assert it.signalling.ports[-1].execution_id == EXECUTION
            assert await client.reason_of("udp:53") == "channel_unknown"


async def test_a_target_that_does_not_answer_delays_no_other() -> None:
    async with asyncio.timeout(SECONDS), mesh() as it, tunnel_client(it) as client:
        it.worker.silent = True
        await client.attach()
        silent = asyncio.ensure_future(client.ask("tcp:80", b"hello"))
        await it.signalling.until(lambda: len(it.signalling.ports) == 1)
        it.worker.silent = False
        assert await client.ask(f"tcp:{it.servers.echo}", b"hello") == b"hello"
        assert not silent.done()
        silent.cancel()
        await asyncio.wait((silent,))


async def test_a_worker_that_is_lost_resets_the_channel() -> None:
    async with asyncio.timeout(SECONDS), mesh() as it, tunnel_client(it) as client:
        await client.attach()
        port = await client.listen(f"tcp:{it.servers.echo}")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        it.worker.die()
        with pytest.raises(ConnectionResetError):
            await reader.read()
        assert client.end.endings == [(1, "host_lost")]
        writer.close()


async def test_a_client_that_resets_ends_the_connection_in_the_sandbox() -> None:
    async with asyncio.timeout(SECONDS), mesh() as it, tunnel_client(it) as client:
        await client.attach()
        port = await client.listen(f"tcp:{it.servers.echo}")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        reset(writer)
        await it.servers.reset_seen.wait()
        await until(lambda: it.worker.open_connections == 0)
        await until(lambda: it.gateway.channels == 0)


@pytest.mark.parametrize("in_sandbox", [False, True])
async def test_who_reads_nothing_stalls_the_sender_and_gets_all_in_the_end(
    in_sandbox: bool,
) -> None:
    content = secrets.token_bytes(4 * SIZE)

    async def source(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(content)
        await writer.drain()
        writer.close()

    async with (
        asyncio.timeout(SECONDS),
        host(source) as place,
        mesh(content, targets=(place,)) as it,
        tunnel_client(it) as client,
    ):
        await client.attach()
        port = await client.listen(f"tcp:{it.servers.source if in_sandbox else place}")
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=65536)
        assert await reader.readexactly(1) == content[:1]
        for _ in range(3):  # others go on meanwhile
            said = await client.ask(f"tcp:{it.servers.echo}", content[:SIZE])
            assert said == content[:SIZE]
        await until(lambda: it.gateway.channels == 1)
        assert await reader.read() == content[1:]
        writer.close()


async def test_a_tunnel_survives_its_carrier_and_its_signalling() -> None:
    async with asyncio.timeout(SECONDS), mesh() as it, tunnel_client(it) as client:
        want_tunnel(it, "ses_a")
        await client.attach()
        await it.signalling.until(lambda: it.signalling.is_up("ses_a"))
        assert it.signalling.changes[-1].round == 1
        port = await client.listen(f"tcp:{it.servers.echo}")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"one")
        assert await reader.readexactly(3) == b"one"
        client.carriers[0].stream.abort()
        it.signalling.changes.clear()
        it.signalling.drop_stream()
        await it.signalling.until(lambda: it.signalling.is_up("ses_a"))
        assert list(it.signalling.hellos[-1].session_ids) == ["ses_a"]
        writer.write(b"two")
        await client.attach()
        assert await reader.readexactly(3) == b"two"
        writer.close()


async def test_a_ticket_may_come_before_signallings_word() -> None:
    async with asyncio.timeout(SECONDS), mesh() as it, tunnel_client(it) as client:
        await client.attach()
        await it.signalling.until(lambda: it.signalling.is_up("ses_a"))
        want_tunnel(it, "ses_a")
        it.signalling.unwant("ses_a")
        await it.signalling.until(lambda: it.signalling.closed("ses_a") == ["requested"])
        await client.carriers[0].gone
        assert client.end.over_reason == "session_closed"
        async with tunnel_client(it) as again:
            assert await _refused(again) == "session_closed"


async def _refused(client: TunnelClient) -> str:
    with pytest.raises(AttachRefused) as refused:
        await client.attach()
    return refused.value.reason


async def test_a_tunnel_to_which_nobody_comes_is_given_up() -> None:
    async with asyncio.timeout(SECONDS), mesh() as it:
        it.signalling.expiry = timedelta(seconds=0.05)
        want_tunnel(it, "ses_a")
        await it.signalling.until(lambda: it.signalling.closed("ses_a") == ["connection_failed"])
        assert it.gateway.sessions == 0


async def test_tunnels_count_among_the_sessions() -> None:
    async with asyncio.timeout(SECONDS), mesh(sessions=1, channels_per_session=2) as it:
        async with tunnel_client(it) as client, tunnel_client(it, "ses_b") as other:
            await client.attach()
            assert await _refused(other) == "gateway_full"
            assert other.end.over_reason == "gateway_full"
            port = await client.listen(f"tcp:{it.servers.echo}")
            writers = []
            for _ in range(2):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"x")
                assert await reader.readexactly(1) == b"x"
                writers.append(writer)
            waiting = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
            for _, writer in waiting:
                writer.write(b"y")
            await it.signalling.until(lambda: _load(it) == (1, 6))
            assert len(it.signalling.ports) == 2
            await leave(writers[0])  # whose place is taken at once, and so on
            for reader, writer in waiting:
                assert await reader.readexactly(1) == b"y"
                await leave(writer)
            writers[1].close()
        await it.signalling.until(lambda: _load(it) == (0, 0))


async def test_ends_of_channels_to_hosts_make_room() -> None:
    async with (
        asyncio.timeout(SECONDS),
        host(echo) as place,
        mesh(targets=(place,), channels_per_session=2) as it,
        tunnel_client(it) as client,
    ):
        await client.attach()
        for number in range(7):
            content = bytes([number]) * 1000
            assert await client.ask(f"tcp:{place}", content) == content
        asked = [client.ask(f"tcp:{place}", bytes([number])) for number in range(7)]
        assert await asyncio.gather(*asked) == [bytes([number]) for number in range(7)]


async def leave(writer: asyncio.StreamWriter) -> None:
    writer.close()
    await writer.wait_closed()


def _load(it: Mesh) -> tuple[int, int]:
    last = it.signalling.heartbeats[-1]
    return last.sessions, last.channels


async def test_a_drain_lets_open_channels_finish_and_takes_nothing_else() -> None:
    async with asyncio.timeout(SECONDS), mesh() as it:
        async with tunnel_client(it) as client, tunnel_client(it, "ses_b") as other:
            await client.attach()
            port = await client.listen(f"tcp:{it.servers.echo}")
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"one")
            assert await reader.readexactly(3) == b"one"
            draining = asyncio.ensure_future(it.gateway.drain())
            await it.signalling.until(lambda: it.signalling.heartbeats[-1].draining)
            assert await _refused(other) == "gateway_draining"
            assert await client.reason_of(f"tcp:{it.servers.echo}") == "gateway_draining"
            client.carriers[0].stream.abort()
            await client.attach()
            writer.write(b"two")
            writer.write_eof()
            assert await reader.read() == b"two"
            writer.close()
            await draining
        await it.signalling.until(lambda: it.signalling.closed("ses_a") == ["peer_closed"])


async def test_a_drain_waits_until_the_last_bytes_have_arrived() -> None:
    content = secrets.token_bytes(SIZE)
    async with asyncio.timeout(SECONDS), mesh(content) as it, tunnel_client(it) as client:
        hop = Hop(client.address)
        server = await asyncio.start_server(hop.talk, "127.0.0.1", 0)
        client.address = server.sockets[0].getsockname()[:2]
        client.servers.append(server)
        await client.attach()
        hop.to_client.clear()
        asking = asyncio.ensure_future(client.ask(f"tcp:{it.servers.echo}", b"last words"))
        await until(lambda: it.gateway.channels == 1)
        await until(lambda: it.worker.open_connections == 0)
        draining = asyncio.ensure_future(it.gateway.drain())
        await it.signalling.until(lambda: it.signalling.heartbeats[-1].draining)
        assert not draining.done()
        hop.to_client.set()
        assert await asking == b"last words"
        await draining


async def test_another_start_of_the_gateway_knows_no_earlier_ticket() -> None:
    async with asyncio.timeout(SECONDS), mesh() as before, mesh() as after:
        async with tunnel_client(before) as client:
            client.address = ("127.0.0.1", after.gateway.tcp_port)
            client.ticket._gateway_key = after.signalling.hellos[-1].tunnel.public_key
            assert await _refused(client) == "ticket_invalid"
        assert after.gateway.sessions == 0


async def test_clients_are_told_where_they_reach_it() -> None:
    async with asyncio.timeout(SECONDS), mesh() as it:
        terms = it.signalling.hellos[-1].tunnel
        assert list(terms.urls) == [
            f"tcp://127.0.0.1:{it.gateway.tcp_port}",
            f"http://127.0.0.1:{it.gateway.http_port}",
        ]
        assert len(terms.public_key) == len(terms.ticket_secret) == 32


async def test_several_carriers_carry_one_channel() -> None:
    async with (
        asyncio.timeout(SECONDS),
        host(echo) as place,
        mesh(targets=(place,)) as it,
        tunnel_client(it) as client,
    ):
        for _ in range(3):
            await client.attach()
        content = secrets.token_bytes(SIZE)
        assert await client.ask(f"tcp:{place}", content) == content


async def test_a_gateway_whose_pump_has_failed_goes_on_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Failed:
        def tunnel(self, *, is_client: bool, user: PumpedDriver, most_channels: int) -> None:
            raise RuntimeError("the pump has failed")

        def close(self) -> None:
            """Be gone."""

    monkeypatch.setattr("relay_gateway.wiring.make_pump", lambda choice: Failed())
    async with asyncio.timeout(SECONDS), mesh() as it, tunnel_client(it) as client:
        await client.attach()
        content = secrets.token_bytes(SIZE)
        assert await client.ask(f"tcp:{it.servers.echo}", content) == content
