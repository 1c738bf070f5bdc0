"""Credentials that signalling makes, at a real coturn; and what a client finds out of servers."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from aioice.turn import TurnTransport, create_turn_endpoint

from fairlead_sdk.ice_probe import IceFinding, IceOutcome, probe_ice_server
from signalling.ice_servers import IcePolicy, IceServer, IceServers
from tests.coturn import Coturn, coturn_server

SESSION = "ses_abcdefghijklmnopqrstuvwxyz"
LIFETIME = 3
"""Seconds that the hurried server gives an allocation, a credential and a nonce."""


@pytest.fixture(scope="module")
def coturn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coturn]:
    with coturn_server(tmp_path_factory.mktemp("coturn")) as server:
        yield server


def relay_of(servers: IceServers, *, age: timedelta = timedelta()) -> IceServer:
    """Return the TURN servers as a session got them `age` ago."""
    (relay,) = servers.for_session(SESSION, IcePolicy.RELAY, now=datetime.now(UTC) - age)
    return relay


async def probed(url: str, relay: IceServer) -> IceFinding:
    return await probe_ice_server(
        url, username=relay.username, credential=relay.credential, seconds=30
    )


@pytest.mark.asyncio
@pytest.mark.parametrize("transport", ["udp", "tcp"])
async def test_a_session_s_credential_relays_bytes(coturn: Coturn, transport: str) -> None:
    relay = relay_of(coturn.servers())
    assert coturn.turn_url(transport) in relay.urls
    finding = await probed(coturn.turn_url(transport), relay)
    assert (finding.outcome, finding.remedy) == (IceOutcome.OK, "")
    assert finding.address.startswith("127.0.0.1:")


@pytest.mark.asyncio
@pytest.mark.parametrize("transport", ["udp", "tcp"])
async def test_what_is_no_credential_any_more_begins_nothing(
    coturn: Coturn, transport: str
) -> None:
    url = coturn.turn_url(transport)
    ended = relay_of(coturn.servers(), age=timedelta(hours=1, seconds=2))
    assert (await probed(url, ended)).outcome is IceOutcome.CREDENTIAL_REFUSED
    fresh = relay_of(coturn.servers())
    for forged in (
        IceServer(fresh.urls, "9" + fresh.username, fresh.credential),
        IceServer(fresh.urls, fresh.username, fresh.credential[::-1]),
        IceServer(fresh.urls, fresh.username.replace("ses_a", "ses_b"), fresh.credential),
    ):
        finding = await probed(url, forged)
        assert finding.outcome is IceOutcome.CREDENTIAL_REFUSED
        assert "static-auth-secret" in finding.remedy


@pytest.mark.asyncio
async def test_many_probes_at_once(coturn: Coturn) -> None:
    relay = relay_of(coturn.servers())
    findings = await asyncio.gather(*(probed(coturn.turn_url(), relay) for _ in range(35)))
    assert [finding.outcome for finding in findings] == [IceOutcome.OK] * 35


@pytest.mark.asyncio
async def test_a_stun_server_tells_one_s_own_address(coturn: Coturn) -> None:
    finding = await probe_ice_server(coturn.stun_url, seconds=30)
    assert finding.outcome is IceOutcome.OK
    assert finding.address.startswith("127.0.0.1:")


@pytest.mark.asyncio
@pytest.mark.parametrize("url", ["stun:127.0.0.1:{}", "turn:127.0.0.1:{}?transport=udp"])
async def test_a_server_that_says_nothing(url: str) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        finding = await probe_ice_server(
            url.format(silent.getsockname()[1]), username="u", credential="c", seconds=0.2
        )
    assert finding.outcome is IceOutcome.UNREACHABLE
    assert "firewall" in finding.remedy


@pytest.mark.asyncio
async def test_a_port_where_nothing_listens() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"turn:127.0.0.1:{held.getsockname()[1]}?transport=tcp"
        finding = await probe_ice_server(url, username="u", credential="c")
    assert finding.outcome is IceOutcome.UNREACHABLE


@pytest.mark.asyncio
@pytest.mark.parametrize("url", ["stun:nobody.invalid", "turn:nobody.invalid"])
async def test_a_name_that_nobody_has(url: str) -> None:
    finding = await probe_ice_server(url, username="u", credential="c", seconds=30)
    assert finding.outcome is IceOutcome.NAME_UNKNOWN


@pytest.mark.asyncio
@pytest.mark.parametrize("url", ["stuns:127.0.0.1", "turns:127.0.0.1?transport=udp"])
async def test_what_the_probe_does_not_speak(url: str) -> None:
    assert (await probe_ice_server(url)).outcome is IceOutcome.UNSUPPORTED


@pytest.mark.asyncio
async def test_a_relay_that_lets_no_peer_through(tmp_path: Path) -> None:
    with coturn_server(tmp_path, "--denied-peer-ip=127.0.0.1") as strict:
        finding = await probed(strict.turn_url(), relay_of(strict.servers()))
    assert finding.outcome is IceOutcome.RELAY_FORBIDDEN


@pytest.mark.asyncio
async def test_a_relay_without_room(tmp_path: Path) -> None:
    with coturn_server(tmp_path, "--user-quota=1") as small:
        finding = await probed(small.turn_url(), relay_of(small.servers()))
    assert finding.outcome is IceOutcome.RELAY_FULL


@pytest.mark.asyncio
async def test_a_secret_is_changed_without_a_pause(tmp_path: Path) -> None:
    with coturn_server(tmp_path, "--static-auth-secret=the-next-one") as both:
        following = IceServers(
            stun_urls=(),
            turn_urls=(both.turn_url(),),
            turn_secret="the-next-one",
            lifetime=timedelta(hours=1),
        )
        for servers in (both.servers(), following):
            finding = await probed(both.turn_url(), relay_of(servers))
            assert finding.outcome is IceOutcome.OK


class Arrivals(asyncio.DatagramProtocol):
    def __init__(self) -> None:
        self.queue: asyncio.Queue[bytes] = asyncio.Queue()
        self.closed = asyncio.Event()

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self.queue.put_nowait(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.closed.set()


async def allocated(coturn: Coturn, relay: IceServer) -> tuple[TurnTransport, Arrivals]:
    return await create_turn_endpoint(
        Arrivals, ("127.0.0.1", coturn.port), relay.username, relay.credential
    )


async def passes(
    sender: TurnTransport, taker: TurnTransport, arrivals: Arrivals, text: str
) -> None:
    """Send until it has come: datagrams are dropped until the taker permits the sender."""
    async with asyncio.timeout(60):
        while True:
            taker.sendto(b"", sender.get_extra_info("sockname"))
            sender.sendto(text.encode(), taker.get_extra_info("sockname"))
            with suppress(TimeoutError):
                async with asyncio.timeout(0.25):
                    while await arrivals.queue.get() != text.encode():
                        pass
                    return


@pytest.mark.asyncio
async def test_an_allocation_outlives_its_credential_and_its_nonces(tmp_path: Path) -> None:
    options = (f"--max-allocate-lifetime={LIFETIME}", f"--stale-nonce={LIFETIME}")
    with coturn_server(tmp_path, *options) as hurried:
        relay = relay_of(hurried.servers(lifetime=timedelta(seconds=LIFETIME)))
        assert relay.expires_at is not None
        (near, near_arrivals), (far, far_arrivals) = [
            await allocated(hurried, relay) for _ in range(2)
        ]
        addresses = [end.get_extra_info("sockname") for end in (near, far)]
        sent = 0
        # Traffic goes on while the credential ends and the allocation is due three times.
        until = time.monotonic() + 3 * LIFETIME
        while datetime.now(UTC) < relay.expires_at or time.monotonic() < until:
            await passes(near, far, far_arrivals, f"there {sent}")
            await passes(far, near, near_arrivals, f"back {sent}")
            sent += 1
        refused = await probed(hurried.turn_url(), relay)
        assert refused.outcome is IceOutcome.CREDENTIAL_REFUSED
        await passes(near, far, far_arrivals, "last")
        assert [end.get_extra_info("sockname") for end in (near, far)] == addresses
        for end, arrivals in ((near, near_arrivals), (far, far_arrivals)):
            end.close()
            await arrivals.closed.wait()
