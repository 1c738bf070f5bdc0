"""The native core and its STUN and TURN servers: a real coturn, and servers with a fault."""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import IPv4Address
from pathlib import Path
from typing import cast

import psutil
import pytest

import tests.contract.native.presence  # noqa: F401
from fairlead_native import Connection, Reason, State, StunServer, TurnServer
from fairlead_tunnel.native_core import NativeCore
from fairlead_tunnel.peer_connection import (
    CandidateFound,
    GatheringDone,
    IcePolicy,
    IceServer,
    PeerEvent,
    PeerPlan,
    PeerState,
    StateChanged,
)
from fairlead_tunnel.resolved_servers import ServerAddress, resolved
from signalling.ice_servers import IcePolicy as SessionPolicy
from tests.contract.native.peers import Inbox, MakeEngine, first_channel, trickle
from tests.coturn import Coturn, coturn_server
from tests.eventually import eventually

pytestmark = pytest.mark.asyncio

SESSION = "ses_" + "a" * 26
_COOKIE = 0x2112A442


@pytest.fixture
def coturn(tmp_path: Path) -> Iterator[Coturn]:
    # What it relayed it says only so.
    with coturn_server(tmp_path, "--verbose") as server:
        yield server


def ice_server(coturn: Coturn) -> IceServer:
    (found,) = coturn.servers().for_session(SESSION, SessionPolicy.RELAY, now=datetime.now(UTC))
    return IceServer(found.urls, found.username, found.credential)


def turn_server(coturn: Coturn) -> TurnServer:
    named = ice_server(coturn)
    return TurnServer("127.0.0.1", coturn.port, named.username, named.credential)


def wrong_server(coturn: Coturn) -> TurnServer:
    return TurnServer("127.0.0.1", coturn.port, "9999999999:nobody", "wrong")


def candidates(connection: Connection) -> list[str]:
    lines = connection.description().splitlines()
    return [line for line in lines if line.startswith("a=candidate:")]


def types(connection: Connection) -> list[str]:
    return [line.split(" typ ")[1].split()[0] for line in candidates(connection)]


async def exchange(near: Connection, far: Connection, size: int = 4 * 1024 * 1024) -> None:
    """Connect, and send `size` bytes each way, which come whole."""
    trickle(near, far)
    found = first_channel(far)
    near_end = Inbox(near.open_channel("through"))
    assert near.accept_answer(far.answer(near.offer()))
    far_end = Inbox(await found)
    await near_end.opened()
    block = os.urandom(256 * 1024)
    count = size // len(block)
    sums = await asyncio.gather(
        near_end.send_all(block, count),
        far_end.take_all(size),
        far_end.send_all(block, count),
        near_end.take_all(size),
    )
    assert sums[0] == sums[1] == sums[2] == sums[3]


async def relayed_bytes(coturn: Coturn) -> int:
    """Return what coturn says that clients have sent it, of allocations that have ended."""
    usages = re.findall(r"\d: usage:.* rb=(\d+)", coturn.log.read_text(errors="replace"))
    return sum(map(int, usages))


async def test_two_that_only_relay_connect_through_coturn(
    make_engine: MakeEngine, coturn: Coturn
) -> None:
    near, far = (make_engine().connect(relay_only=True) for _ in range(2))
    for each in (near, far):
        each.use_servers(turn=[turn_server(coturn)])
    await exchange(near, far)
    for each in (near, far):
        await each.wait_gathered()
        assert types(each) == ["relay"]
    for each in (near, far):  # after both were asked: the end of one ends the other
        each.close()
    # Both ways, and each byte is received from one client by one allocation and sent to another.
    await eventually(lambda: relayed_bytes(coturn), lambda count: count > 8 * 1024 * 1024)


@pytest.mark.parametrize("relays", ["near", "far"])
async def test_one_that_only_relays_meets_one_without_relay(
    make_engine: MakeEngine, coturn: Coturn, relays: str
) -> None:
    near = make_engine().connect(relay_only=relays == "near")
    far = make_engine().connect(relay_only=relays == "far")
    one, other = (near, far) if relays == "near" else (far, near)
    one.use_servers(turn=[turn_server(coturn)])
    await exchange(near, far)
    assert (types(one), types(other)) == (["relay"], ["host"])
    one.close()
    await eventually(lambda: relayed_bytes(coturn), lambda count: count > 4 * 1024 * 1024)


async def test_a_wrong_credential_relays_nothing_and_fails(
    make_engine: MakeEngine, coturn: Coturn
) -> None:
    near = make_engine().connect(relay_only=True)
    near.use_servers(turn=[wrong_server(coturn)])
    near.offer()
    await near.wait_gathered()
    assert candidates(near) == []
    assert await near.wait_state(State.FAILED)
    assert near.reason is Reason.UNREACHABLE


async def test_who_waits_for_one_that_has_no_relay_gives_up(
    make_engine: MakeEngine, coturn: Coturn
) -> None:
    near = make_engine(silence=2.0).connect()
    far = make_engine().connect(relay_only=True)
    far.use_servers(turn=[wrong_server(coturn)])
    trickle(near, far)
    near.accept_answer(far.answer(near.offer()))
    assert await far.wait_state(State.FAILED)
    assert await near.wait_state(State.FAILED)
    assert near.reason is Reason.UNREACHABLE


async def test_servers_that_are_given_anew_are_asked_at_a_restart(
    make_engine: MakeEngine, coturn: Coturn
) -> None:
    near, far = make_engine().connect(), make_engine().connect()
    near.use_servers(turn=[wrong_server(coturn)])
    await exchange(near, far, 256 * 1024)
    await near.wait_gathered()
    assert types(near) == ["host"]
    found: list[list[str]] = []
    for _ in range(2):
        near.use_servers(turn=[turn_server(coturn)])
        assert near.accept_answer(far.answer(near.restart()))
        await near.wait_gathered()
        assert types(near) == ["host", "relay"]
        found.append([line.split()[4:6] for line in candidates(near)][-1])
    assert found[0] == found[1], "a relay that works stays"
    assert near.state is State.CONNECTED


async def test_restarts_without_a_relay_keep_no_socket_each(
    make_engine: MakeEngine, coturn: Coturn
) -> None:
    near, far = make_engine().connect(), make_engine().connect()
    near.use_servers(turn=[wrong_server(coturn)])
    await exchange(near, far, 256 * 1024)
    sockets: list[int] = []
    for number in range(4):
        near.use_servers(turn=[TurnServer("127.0.0.1", coturn.port, f"9999999999:{number}", "no")])
        assert near.accept_answer(far.answer(near.restart()))
        await near.wait_gathered()
        sockets.append(len(psutil.Process().net_connections("udp")))
    assert sockets == sockets[:1] * 4
    near.use_servers(turn=[turn_server(coturn)])
    assert near.accept_answer(far.answer(near.restart()))
    await near.wait_gathered()
    assert types(near) == ["host", "relay"]
    assert len(psutil.Process().net_connections("udp")) == sockets[0]


class MappingServer(asyncio.DatagramProtocol):
    """A STUN server for whose clients there is a NAT: it says 192.0.2.7, or nothing at all."""

    def __init__(self, *, is_silent: bool) -> None:
        self._is_silent = is_silent
        self.asked = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self.asked.set()
        if self._is_silent:
            return
        port = (7007 ^ (_COOKIE >> 16)).to_bytes(2)
        host = (int(IPv4Address("192.0.2.7")) ^ _COOKIE).to_bytes(4)
        mapped = b"\x00\x20\x00\x08\x00\x01" + port + host
        self._transport.sendto(b"\x01\x01\x00\x0c" + data[4:20] + mapped, addr)


@pytest.mark.parametrize("is_silent", [False, True])
async def test_candidates_of_stun_follow_those_of_the_host(
    make_engine: MakeEngine, is_silent: bool
) -> None:
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(
        lambda: MappingServer(is_silent=is_silent), local_addr=("127.0.0.1", 0)
    )
    try:
        near = make_engine().connect()
        near.use_servers(stun=[StunServer("127.0.0.1", transport.get_extra_info("sockname")[1])])
        told: list[str] = []
        near.on_candidate = told.append
        near.offer()
        await server.asked.wait()
        await near.wait_gathered()
        assert types(near) == (["host"] if is_silent else ["host", "srflx"])
        assert [f"a={line}" for line in told] == candidates(near)
        assert is_silent or " 192.0.2.7 7007 typ srflx" in told[1]
    finally:
        transport.close()


async def test_a_relay_only_plan_is_followed(coturn: Coturn) -> None:
    """Of the server's URLs the one over TCP is passed over; the name is looked up."""
    core = NativeCore()
    await core.load()
    named = ice_server(coturn)
    urls = tuple(url.replace("127.0.0.1", "localhost") for url in named.urls)
    servers = (IceServer(urls, named.username, named.credential),)
    complete = core.connect(PeerPlan(policy=IcePolicy.RELAY, servers=servers))
    trickling = core.connect(PeerPlan(trickles=True, policy=IcePolicy.RELAY, servers=servers))
    told: asyncio.Queue[PeerEvent] = asyncio.Queue()
    trickling.listen(told.put_nowait)
    try:
        found = re.findall(r"^a=candidate:.* typ (\w+)", await complete.offer(), re.MULTILINE)
        assert found
        assert set(found) == {"relay"}
        assert "a=candidate:" not in await trickling.offer()
        seen = [await told.get()]
        while seen[-1] != GatheringDone():
            seen.append(await told.get())
        first, *_ = seen
        assert isinstance(first, CandidateFound)
        assert " typ relay" in first.candidate
    finally:
        await complete.close()
        await trickling.close()


async def test_a_restart_asks_the_servers_that_were_given_last(coturn: Coturn) -> None:
    core = NativeCore()
    await core.load()
    right = ice_server(coturn)
    wrong = replace(right, credential="ended")
    near = core.connect(PeerPlan(trickles=True, servers=(wrong,)))
    far = core.connect(PeerPlan(trickles=True))
    told: asyncio.Queue[PeerEvent] = asyncio.Queue()
    near.listen(told.put_nowait)

    async def types_found() -> set[str]:
        found = []
        while (event := await told.get()) != GatheringDone():
            if isinstance(event, CandidateFound):
                found.append(event.candidate.split(" typ ")[1].split()[0])
        return set(found)

    try:
        await near.accept(await far.answer(await near.offer()))
        assert await types_found() == {"host"}
        near.use_servers((right,))
        await near.accept(await far.answer(await near.restart()))
        assert await types_found() == {"host", "relay"}
    finally:
        await near.close()
        await far.close()


async def test_a_relay_only_plan_without_relay_fails() -> None:
    core = NativeCore()
    await core.load()
    alone = core.connect(PeerPlan(trickles=True, policy=IcePolicy.RELAY))
    told: asyncio.Queue[PeerEvent] = asyncio.Queue()
    alone.listen(told.put_nowait)
    try:
        await alone.offer()
        assert await told.get() == GatheringDone()
        assert await told.get() == StateChanged(PeerState.FAILED)
    finally:
        await alone.close()


async def test_servers_have_addresses_or_are_passed_over() -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    turn = f"turn:127.0.0.1:{port}"
    asked = (
        IceServer((f"stun:127.0.0.1:{port}", "stuns:127.0.0.1", "stun:nobody.invalid")),
        IceServer((turn, turn, f"{turn}?transport=tcp", "turns:127.0.0.1", "rubbish"), "u", "c"),
    )
    # Addresses need no time: on a busy machine a thread that looks them up may get none.
    assert await resolved(asked, seconds=0) == (
        ServerAddress(False, "127.0.0.1", port),
        ServerAddress(True, "127.0.0.1", port, "u", "c"),
    )
