"""Which ways there are by which URLs and hops, and which are left alone for a while."""

from __future__ import annotations

import asyncio

import pytest

from fairlead_tunnel.carriers import CarrierLost, TunnelTicket
from fairlead_tunnel.endpoints import Endpoint, Health, Outcome
from fairlead_tunnel.gateway_ways import GatewayWays
from fairlead_tunnel.hops import Hop, read_hop
from fairlead_tunnel.http_ways import PipeWay, PollsWay
from fairlead_tunnel.message_carrier import ClientPipe
from fairlead_tunnel.outbox import Batch
from fairlead_tunnel.records import Suite
from fairlead_tunnel.tcp_way import TcpWay
from fairlead_tunnel.ways import Kind, greeted

URLS = ("tcp://gate:7311", "http://gate:7310", "quic://gate:1")
pytestmark = pytest.mark.asyncio


def named(ways: GatewayWays) -> list[tuple[Kind, str]]:
    """Return kinds and names."""
    return [(each.kind, each.name) for each in ways.to(URLS)]


async def test_a_gateway_is_reached_by_its_urls_and_by_hops() -> None:
    hops = (Hop("https://hop/t", "us"), Hop("tcp://hop:9"))
    assert named(GatewayWays(hops)) == [
        (Kind.TCP, "tcp://gate:7311"),
        (Kind.TCP, "tcp://hop:9"),
        (Kind.WEBSOCKET, "http://gate:7310"),
        (Kind.WEBSOCKET, "https://hop/t"),
        (Kind.REQUESTS, "http://gate:7310"),
        (Kind.REQUESTS, "https://hop/t"),
        (Kind.POLLS, "polls of http://gate:7310, https://hop/t"),
    ]
    assert GatewayWays().to(["quic://gate:1"]) == []


async def test_a_hop_that_is_the_gateways_own_url_gives_it_a_label() -> None:
    polls = GatewayWays((Hop("http://gate:7310", "us"),)).to(URLS)[-1]
    assert isinstance(polls, PollsWay)
    assert [each.group for each in polls._endpoints] == ["account:us"]


async def test_what_was_learnt_of_an_endpoint_is_kept() -> None:
    ways = GatewayWays()
    first, second = ways.to(URLS)[-1], ways.to(URLS)[-1]
    assert isinstance(first, PollsWay)
    assert isinstance(second, PollsWay)
    assert first._endpoints[0] is second._endpoints[0]


async def _never(url: str) -> ClientPipe:
    raise AssertionError


async def test_an_address_that_polls_leave_alone_is_not_asked_otherwise() -> None:
    endpoint = Endpoint("http://hop")
    endpoint.health.note(Outcome.THROTTLED, asyncio.get_running_loop().time())
    way = PipeWay(endpoint, kind=Kind.WEBSOCKET, connect=_never, health=Health())
    with pytest.raises(ConnectionError, match="left alone for 24 s"):
        await way.reach()


class LostCarrier:
    """A carrier whose connection ended before the gateway's answer."""

    can_send = False
    takes_last = False
    most_bytes = 0

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[bytes] = loop.create_future()
        self.gone: asyncio.Future[None] = loop.create_future()
        self.ready.set_exception(CarrierLost("the gateway ended the connection"))
        self.stream = self

    def send(self, batch: Batch) -> None:
        """Never asked to."""
        raise AssertionError

    def close(self) -> None:
        """Hold nothing."""

    def abort(self) -> None:
        """Hold nothing."""

    def look(self) -> None:
        """Watch nothing."""

    def retire(self) -> None:
        """Hold nothing."""


async def test_a_way_that_a_ticket_was_lost_on_is_left_alone_for_the_next_one() -> None:
    health = Health()
    ticket = TunnelTicket(
        tunnel_id=bytes(16),
        ticket=b"ticket",
        psk=bytes(32),
        gateway_key=bytes(32),
        suite=Suite.AES_256_GCM,
    )
    carrier = LostCarrier()
    with pytest.raises(CarrierLost):
        await greeted(carrier, ticket, health=health, seconds=60)
    with pytest.raises(ConnectionError, match="left alone"):
        await TcpWay("tcp://127.0.0.1:1", health=health).reach()
    ticket.keep(b"secret")
    again = Health()
    with pytest.raises(CarrierLost):
        await greeted(LostCarrier(), ticket, health=again, seconds=60)
    assert again.blocked_until == 0.0


@pytest.mark.parametrize(
    ("text", "hop"),
    [
        ("https://hop.example/t?x=1", Hop("https://hop.example/t?x=1")),
        ("us-1=http://hop", Hop("http://hop", "us-1")),
        ("tcp://[::1]:7311", Hop("tcp://[::1]:7311")),
    ],
)
async def test_hops_are_read(text: str, hop: Hop) -> None:
    assert read_hop(text) == hop


@pytest.mark.parametrize(
    "text", ["", "hop", "us=", "ftp://hop", "tcp://hop", "http://", "a b=http://h"]
)
async def test_what_is_no_hop_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="hop"):
        read_hop(text)
