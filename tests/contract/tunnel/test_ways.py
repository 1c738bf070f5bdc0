"""Lines over the ways that go: past dead ports, and through hops that pass less and less."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import NoReturn

import pytest

from fairlead_sdk.errors import FairleadError
from fairlead_sdk.probed_carriers import CarrierFails, probe_carrier
from fairlead_sdk.tunnel_line import open_line
from fairlead_sdk.tunnel_sessions import TunnelUnreachable
from fairlead_tunnel.endpoints import EndpointPool
from fairlead_tunnel.hops import Hop
from fairlead_tunnel.http_ways import PollsWay
from fairlead_tunnel.ways import Kind
from relay_gateway.http_api import GatewayApp, serve_gateway
from tests.contract.tunnel.line_world import Gateway, Mesh, World, world
from tests.contract.tunnel.test_lines import CONTENT, echoed, listening
from tests.eventually import SECONDS, eventually
from tests.fakes.buffering_hop import Fate, buffering_hop
from tests.fakes.passing_hop import passing_hop

pytestmark = pytest.mark.asyncio
SIZE = 2 * 1024 * 1024


@asynccontextmanager
async def behind_http() -> AsyncIterator[tuple[Gateway, str]]:
    """A gateway that is reached by its HTTP port alone, and that port's address."""
    gateway = Gateway()
    await gateway.start()
    await gateway.stop()  # its TCP port
    app = GatewayApp(why_not_ready=lambda: "", desk=gateway.desk)
    async with serve_gateway(app, bind="127.0.0.1:0") as port:
        url = f"http://127.0.0.1:{port}"
        gateway.urls = (f"tcp://127.0.0.1:{gateway.port}", url)
        yield gateway, url


def kind_of(it: World) -> Kind | None:
    """Return what the line's carrier is."""
    client = it.line._client
    assert client is not None
    way = client._carriers._way
    return way.kind if way is not None else None


@dataclass
class Talk:
    """Sends and compares what comes back, for as long as it is let."""

    port: int
    size: int = SIZE
    rounds: int = 0
    ends: bool = False

    async def run(self) -> None:
        """Talk to the end."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        while not self.ends:
            content = secrets.token_bytes(self.size)
            sending = asyncio.ensure_future(_send(writer, content))
            assert await reader.readexactly(self.size) == content
            await sending
            self.rounds += 1
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()


async def _send(writer: asyncio.StreamWriter, content: bytes) -> None:
    writer.write(content)
    await writer.drain()


async def moved(it: World, talk: Talk, kind: Kind) -> None:
    """Wait until the line's carrier is of a kind, and has carried something."""

    async def found() -> Kind | None:
        return kind_of(it)

    async def rounds() -> int:
        return talk.rounds

    await eventually(found, kind.__eq__)
    before = talk.rounds
    await eventually(rounds, lambda count: count > before + 1)


async def test_a_line_goes_over_a_websocket_where_the_tcp_port_cannot_be_reached() -> None:
    async with (
        asyncio.timeout(SECONDS),
        behind_http() as (gateway, _),
        world(gateway=gateway) as it,
    ):
        assert await echoed(await listening(it), CONTENT) == CONTENT
        assert kind_of(it) is Kind.WEBSOCKET


async def test_a_line_goes_over_a_websocket_where_nothing_answers_at_the_tcp_port() -> None:
    async with asyncio.timeout(SECONDS), behind_http() as (gateway, url):
        with dead_port() as port:
            gateway.urls = (f"tcp://127.0.0.1:{port}", url)
            async with world(gateway=gateway) as it:
                assert await echoed(await listening(it), CONTENT) == CONTENT
                assert kind_of(it) is Kind.WEBSOCKET


async def test_a_diagnosis_tries_each_carrier_by_itself() -> None:
    def never(session_id: str) -> NoReturn:
        raise AssertionError("no data channel is asked for")

    async with (
        asyncio.timeout(SECONDS),
        behind_http() as (gateway, url),
        world(gateway=gateway) as it,
    ):
        with socket.create_server(("127.0.0.1", 0)) as closed:
            gateway.urls = (f"tcp://127.0.0.1:{closed.getsockname()[1]}", url)
        for kind in (Kind.WEBSOCKET, Kind.REQUESTS, Kind.POLLS):
            seen = await probe_carrier(it.mesh, "lch_a", kind, never)
            assert seen.is_configured
            assert url in seen.sentence
        with pytest.raises(CarrierFails, match="No tunnel goes over tcp") as failed:
            await probe_carrier(it.mesh, "lch_a", Kind.TCP, never)
        assert failed.value.remedy
        gateway.urls = (url,)
        assert not (await probe_carrier(it.mesh, "lch_a", Kind.TCP, never)).is_configured
        it.mesh.refusals = [FairleadError("No gateway takes them.", reason="mode_unsupported")]
        assert not (await probe_carrier(it.mesh, "lch_a", Kind.POLLS, never)).is_configured


async def test_a_port_that_takes_a_ticket_and_ends_is_passed_by_with_the_next_one() -> None:
    async def hear_and_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.transport.abort()

    server = await asyncio.start_server(hear_and_end, "127.0.0.1", 0)
    async with asyncio.timeout(SECONDS), behind_http() as (gateway, url):
        gateway.urls = (f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}", url)
        async with world(gateway=gateway) as it:
            assert await echoed(await listening(it), CONTENT) == CONTENT
            assert kind_of(it) is Kind.WEBSOCKET
            assert it.mesh.opened == ["ses_0", "ses_1"]
    server.close()


@contextmanager
def dead_port() -> Iterator[int]:
    """A port at which connections are neither made nor refused: its queue is full."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        fillers = [socket.socket() for _ in range(4)]
        for each in fillers:
            each.setblocking(False)
            each.connect_ex(server.getsockname())
        yield server.getsockname()[1]
        for each in fillers:
            each.close()


async def test_a_line_goes_over_two_requests_where_a_hop_lets_no_websocket_through() -> None:
    async with (
        asyncio.timeout(SECONDS),
        behind_http() as (gateway, url),
        passing_hop(url) as hop,
    ):
        gateway.urls = (gateway.urls[0], hop.url)
        async with world(gateway=gateway) as it:
            assert await echoed(await listening(it), CONTENT) == CONTENT
            assert kind_of(it) is Kind.REQUESTS


@pytest.mark.parametrize("passes_requests", [False, True])
async def test_a_line_goes_over_polls_where_a_hop_holds_bodies_back(passes_requests: bool) -> None:
    def refuse_sockets(number: int, body: bytes) -> Fate | tuple[int, bytes]:
        return Fate.PASSES if body or number > 1 else (426, b"no")

    async with (
        asyncio.timeout(SECONDS),
        behind_http() as (gateway, url),
        buffering_hop(url, refuse_sockets) as hop,
    ):
        hop.passes_requests = passes_requests
        gateway.urls = (gateway.urls[0], hop.url)
        async with world(gateway=gateway) as it:
            assert await echoed(await listening(it), CONTENT) == CONTENT
            assert kind_of(it) is Kind.POLLS
            assert hop.up_bytes > len(CONTENT)
            assert it.mesh.opened == ["ses_0"]


async def test_a_line_moves_to_better_ways_and_back_without_losing_a_byte() -> None:
    async with (
        asyncio.timeout(SECONDS),
        behind_http() as (gateway, url),
        passing_hop(url) as hop,
    ):
        gateway.urls = (gateway.urls[0], hop.url)
        hop.lets_streams = False
        async with world(gateway=gateway, uniform=lambda least, most: most / 100) as it:
            assert kind_of(it) is Kind.POLLS
            talk = Talk(await listening(it))
            talking = asyncio.ensure_future(talk.run())
            await moved(it, talk, Kind.POLLS)
            hop.lets_streams = True
            await moved(it, talk, Kind.REQUESTS)
            hop.lets_websockets = True
            await moved(it, talk, Kind.WEBSOCKET)
            await gateway.listen()
            await moved(it, talk, Kind.TCP)
            await gateway.stop()
            await moved(it, talk, Kind.WEBSOCKET)
            hop.lets_websockets = False
            assert hop.cut(b"upgrade: websocket")
            await moved(it, talk, Kind.REQUESTS)
            talk.ends = True
            await talking
            assert it.mesh.opened == ["ses_0"]
            moves = [each for each in it.said if "goes over" in each]
            carriers = ["stream", "websocket", "tcp", "websocket", "stream"]
            before = ["poll", *carriers]
            assert moves == [
                f"the tunnel goes over {new} now, and no longer over {old}."
                for new, old in zip(carriers, before, strict=False)
            ]
            away = ["the gateway is away; trying again.", "the gateway is back."]
            assert [each for each in it.said if each not in moves] == away * 2


async def test_the_worse_carrier_has_ended_a_moment_after_the_move() -> None:
    async with (
        asyncio.timeout(SECONDS),
        behind_http() as (gateway, _),
        world(gateway=gateway, uniform=lambda least, most: most / 100) as it,
    ):
        assert kind_of(it) is Kind.WEBSOCKET
        await gateway.listen()

        async def found() -> tuple[Kind | None, int, int]:
            client = it.line._client
            assert client is not None
            return kind_of(it), it.exit.driver.carriers, client.driver.carriers

        await eventually(found, lambda seen: seen == (Kind.TCP, 2, 2))
        await eventually(found, lambda seen: seen == (Kind.TCP, 1, 1))
        assert it.said == ["the tunnel goes over tcp now, and no longer over websocket."]


def only_whole_bodies(number: int, body: bytes) -> Fate | tuple[int, bytes]:
    """Let no WebSocket and no stream through."""
    return Fate.PASSES if body else (426, b"no")


def pool_of(it: World) -> EndpointPool:
    """Return the endpoints of the line's polls."""
    client = it.line._client
    assert client is not None
    way = client._carriers._way
    assert isinstance(way, PollsWay)
    assert way._pool is not None
    return way._pool


async def test_polls_go_over_all_hops_by_account_and_past_one_that_is_dead() -> None:
    async with (
        asyncio.timeout(SECONDS),
        behind_http() as (gateway, url),
        buffering_hop(url, only_whole_bodies) as one,
        buffering_hop(url, only_whole_bodies) as two,
        buffering_hop(url, only_whole_bodies) as other,
    ):
        gateway.urls = gateway.urls[:1]
        dead = gateway.urls[0].replace("tcp:", "http:")
        hops = (Hop(one.url, "us"), Hop(two.url, "us"), Hop(dead, "us"), Hop(other.url))
        async with world(gateway=gateway, via=hops) as it:
            port = await listening(it)
            pool = pool_of(it)
            assert pool.workers == 12
            for _ in range(20):
                assert await echoed(port, CONTENT) == CONTENT
                assert pool.idle <= 4
            assert min(each.requests for each in (one, two, other)) > 5
            assert it.mesh.opened == ["ses_0"]
            health = {each.url: each.health.failures for each in pool._endpoints}
            assert health.pop(dead) > 0
            assert set(health.values()) == {0}


async def test_what_was_learnt_of_a_hop_holds_for_the_next_tunnel() -> None:
    def throttle(number: int, body: bytes) -> Fate | tuple[int, bytes]:
        return 429, b"slowly"

    async with (
        asyncio.timeout(SECONDS),
        behind_http() as (gateway, url),
        buffering_hop(url, only_whole_bodies) as good,
        buffering_hop(url, throttle) as bad,
    ):
        gateway.urls = gateway.urls[:1]
        async with world(gateway=gateway, via=(Hop(good.url), Hop(bad.url))) as it:
            port = await listening(it)
            assert await echoed(port, CONTENT) == CONTENT

            async def is_known() -> bool:
                return any(each.health.failures for each in pool_of(it)._endpoints)

            await eventually(is_known)
            requests = bad.requests
            it.exit.driver.close("expired", "It was idle.")

            async def is_another() -> bool:
                return len(it.mesh.opened) == 2

            await eventually(is_another)
            assert await echoed(port, CONTENT) == CONTENT
            assert bad.requests == requests


async def test_what_answers_and_is_no_gateway_cannot_be_reached() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 -\r\ncontent-length: 2\r\n\r\nno")
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    gateway = Gateway()
    await gateway.start()
    gateway.urls = (f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}",)
    try:
        async with asyncio.timeout(SECONDS):
            with pytest.raises(TunnelUnreachable):
                async with open_line(Mesh(gateway), "lch_a", attach_seconds=0):
                    raise AssertionError
        assert gateway.exits == []
    finally:
        server.close()
        await gateway.stop()
