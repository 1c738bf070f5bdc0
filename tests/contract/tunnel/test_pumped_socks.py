"""SOCKS5 on the native pump: the answers of the server in Python, and who is given back to whom."""

from __future__ import annotations

import asyncio
import socket
from itertools import pairwise

import pytest

pytest.importorskip("fairlead_native", reason="the native core is not built: make native")

from hypothesis import given as over
from hypothesis import strategies as st

from fairlead_tunnel.socks5 import Credentials, Reply, encode_reply
from fairlead_tunnel.ways import Kind
from tests.contract.tunnel.line_world import echo
from tests.contract.tunnel.line_world import world as line_world
from tests.contract.tunnel.pumped_ends import PumpedClientEnd
from tests.contract.tunnel.talks import reset
from tests.contract.tunnel.test_lines import CONTENT, echoed_by
from tests.contract.tunnel.test_pumped_given_back import (
    DRAINING,
    Draining,
    Waiting,
    endings,
    ends,
    given,
    wants,
)
from tests.contract.tunnel.test_socks import DONE, request
from tests.contract.tunnel.test_ways import behind_http, kind_of
from tests.eventually import SECONDS, eventually
from tests.fakes.buffering_hop import Fate, buffering_hop
from tests.fuzz.proxies import CREDENTIALS, check_same
from tests.unit.fairlead_tunnel.tunnel_vectors import SOCKS_VECTORS

GREETING = b"\x05\x01\x00"
REQUEST = b"\x05\x01\x00\x03\x04exit\x00\x50"
AGAIN = "open_unsent"

# The same answers


def same(said: bytes, cuts: list[int], *, is_protected: bool) -> None:
    """Have both serve what is cut so."""
    edges = [0, *sorted(min(cut, len(said)) for cut in cuts), len(said)]
    pieces = [said[start:end] for start, end in pairwise(edges)]
    check_same(pieces, CREDENTIALS if is_protected else None)


@over(data=st.data(), cuts=st.lists(st.integers(0, 600), max_size=8))
def test_changed_clients_get_the_answers_of_python(data: st.DataObject, cuts: list[int]) -> None:
    vector = data.draw(st.sampled_from(SOCKS_VECTORS))
    said = bytearray.fromhex(vector["said"])
    for _ in range(data.draw(st.integers(0, 4)) if said else 0):
        said[data.draw(st.integers(0, len(said) - 1))] = data.draw(st.integers(0, 255))
    same(bytes(said), cuts, is_protected=vector["credentials"] is not None)


@over(
    kind=st.sampled_from([1, 3, 4]),
    host=st.one_of(
        st.binary(max_size=255),
        st.text("aZ9.-_:[]f ", max_size=255).map(str.encode),
        st.ip_addresses().map(lambda address: address.packed),
        st.ip_addresses().map(lambda address: str(address).encode()),
    ),
    port=st.binary(min_size=2, max_size=2),
    early=st.binary(max_size=9),
    cuts=st.lists(st.integers(0, 300), max_size=8),
)
def test_any_destination_gets_the_answer_of_python(
    kind: int, host: bytes, port: bytes, early: bytes, cuts: list[int]
) -> None:
    length = bytes((len(host),)) if kind == 3 else b""
    request = b"\x05\x01\x00" + bytes((kind,)) + length + host + port
    same(GREETING + request + early, cuts, is_protected=False)


@over(said=st.binary(max_size=600), cuts=st.lists(st.integers(0, 600)), is_protected=st.booleans())
def test_any_bytes_get_the_answers_of_python(
    said: bytes, cuts: list[int], is_protected: bool
) -> None:
    same(said, cuts, is_protected=is_protected)
    same(b"\x05" + said, cuts, is_protected=is_protected)


# Who is given back


async def listening(
    end: PumpedClientEnd, *, credentials: Credentials | None = None, seconds: float = 60.0
) -> tuple[int, int]:
    """Serve on loopback; returns the port and the listener's number."""
    plug = socket.create_server(("127.0.0.1", 0))
    port: int = plug.getsockname()[1]
    return port, end.driver.listen_socks(plug, credentials, seconds=seconds)


async def greeted(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Say hello, and be answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(GREETING)
    assert await reader.read(2) == b"\x05\x00"
    return reader, writer


async def channels(end: PumpedClientEnd) -> int:
    return end.driver.channels


@pytest.mark.asyncio
async def test_a_client_of_a_gateway_that_drains_is_given_back_with_all_that_it_said() -> None:
    async with asyncio.timeout(SECONDS), ends(Draining) as (end, it):
        await it.attach()
        reader, writer = await greeted((await listening(end))[0])
        writer.write(REQUEST + b"early")
        ((channel, early, reason),) = await eventually(lambda: given(end), bool)
        assert (channel, reason) == (1, DRAINING)
        connection = end.connections[0]
        connection.setblocking(True)
        while len(early) < len(GREETING + REQUEST) + 5:
            early += connection.recv(100)
        assert early == GREETING + REQUEST + b"early"
        connection.sendall(b"reply")
        assert await reader.readexactly(5) == b"reply"
        assert it.gateways[0].wants == ["tcp:exit:80"]
        writer.close()


@pytest.mark.asyncio
async def test_a_listener_that_stops_gives_back_who_has_not_asked_and_keeps_who_has() -> None:
    async with asyncio.timeout(SECONDS), ends(Waiting) as (end, it):
        await it.attach()
        (port, number), (other, _) = await listening(end), await listening(end)
        _, half = await greeted(port)
        half.write(REQUEST[:5])
        _, asked = await greeted(port)
        asked.write(REQUEST)
        _, elsewhere = await greeted(other)
        await eventually(lambda: wants(it), lambda count: count == 1)
        end.driver.stop_listening(number)
        ((channel, early, reason),) = await eventually(lambda: given(end), bool)
        assert (channel, reason) == (0, AGAIN)
        assert early == (GREETING + REQUEST[:5])[: len(early)]
        assert len(early) >= len(GREETING)
        assert end.connections[0].getsockname()[1] == port
        assert await eventually(lambda: channels(end), (2).__eq__) == 2
        elsewhere.write(REQUEST)
        await eventually(lambda: wants(it), lambda count: count == 2)
        for writer in (half, asked, elsewhere):
            writer.close()


@pytest.mark.asyncio
async def test_a_tunnel_that_ends_gives_back_who_has_not_asked() -> None:
    async with asyncio.timeout(SECONDS), ends() as (end, _):
        _, writer = await greeted((await listening(end))[0])
        end.driver.close("session_closed", "Enough.")
        assert await eventually(lambda: given(end), bool) == [(0, GREETING, AGAIN)]
        assert await eventually(lambda: channels(end), (0).__eq__) == 0
        writer.close()


@pytest.mark.asyncio
async def test_a_client_without_a_channel_is_given_back_and_others_are_reset() -> None:
    async with asyncio.timeout(SECONDS), ends(most_channels=2) as (end, _):
        port, _ = await listening(end)
        held = [await greeted(port) for _ in range(2)]
        with pytest.raises(ConnectionResetError):  # maybe while it is being connected
            await greeted(port)
        for _ in range(2):
            end.driver.open("any")
        held[0][1].write(REQUEST)
        assert await eventually(lambda: given(end), bool) == [
            (0, GREETING + REQUEST, "channel_limit")
        ]
        for _, writer in held:
            writer.close()


@pytest.mark.asyncio
async def test_all_that_wait_are_accepted_though_none_says_anything() -> None:
    async with asyncio.timeout(SECONDS), ends() as (end, _):
        plug = socket.create_server(("127.0.0.1", 0), backlog=200)
        held = [socket.create_connection(plug.getsockname()) for _ in range(200)]
        end.driver.listen_socks(plug, None, seconds=60.0)
        assert await eventually(lambda: channels(end), (200).__eq__) == 200
        for each in held:
            each.close()


@pytest.mark.asyncio
async def test_a_client_that_is_refused_leaves_or_is_late_is_dropped() -> None:
    async with asyncio.timeout(SECONDS), ends() as (end, _):
        port, _ = await listening(end, credentials=CREDENTIALS)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GREETING)
        assert await reader.read() == b"\x05\xff"
        assert await eventually(lambda: endings(end), bool) == [(0, "client_refused")]
        writer.close()
        for leave in (lambda it: it.write_eof(), reset):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"\x05\x01\x02")
            assert await reader.readexactly(2) == b"\x05\x02"
            leave(writer)
            await eventually(lambda: channels(end), (0).__eq__)
            writer.close()
        late, _ = await listening(end, seconds=0.01)
        reader, writer = await greeted(late)
        assert await reader.read() == b""
        await eventually(lambda: channels(end), (0).__eq__)
        writer.close()
        assert end.endings == [(0, "client_refused")]
        assert end.given == []


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", [Kind.WEBSOCKET, Kind.POLLS])
async def test_clients_are_led_over_carriers_of_the_event_loop(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse_sockets(number: int, body: bytes) -> Fate | tuple[int, bytes]:
        return Fate.PASSES if body or number > 1 else (426, b"no")

    monkeypatch.setenv("FAIRLEAD_TUNNEL_PUMP", "auto")
    async with (
        asyncio.timeout(SECONDS),
        behind_http() as (gateway, url),
        buffering_hop(url, refuse_sockets) as hop,
    ):
        if kind is Kind.POLLS:
            gateway.urls = (gateway.urls[0], hop.url)
        async with line_world(gateway=gateway) as it:
            assert kind_of(it) is kind
            proxy = await it.ports.listen_socks(host="127.0.0.1", port=0, credentials=None)
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy)
            writer.write(request("denied.test", 80))
            assert await reader.read() == b"\x05\x00" + encode_reply(Reply.NOT_ALLOWED)
            writer.close()
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy)
            writer.write(request("exit.test", await it.serve(echo)) + b"early")
            assert await reader.readexactly(12) == b"\x05\x00" + DONE
            assert await echoed_by(reader, writer, CONTENT) == b"early" + CONTENT
            assert it.refusals == ["target_denied"]
