"""What happens while a gateway connects the target of a tunnel's channel."""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial

import pytest

from relay_gateway import wiring
from relay_gateway.dialler import Dialler
from tests.contract.tunnel.talks import echo, reset
from tests.contract.wire.full_server import crowd
from tests.contract.wire.gateway_mesh import Mesh, mesh, until
from tests.contract.wire.tunnel_client import TunnelClient, tunnel_client, want_tunnel
from tests.eventually import SECONDS

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("each_pump")]

NAMES = {
    "inside.test": ["127.0.0.1"],
    "refused.test": ["127.0.0.77", "127.0.0.1"],
    "silent.test": ["127.0.0.78", "127.0.0.1"],
}


class Names:
    """A name server that knows NAMES."""

    def __init__(self, *, threads: int) -> None:
        self.threads = threads

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """Look a name up."""
        return NAMES[host]

    def close(self) -> None:
        """Be gone."""


@asynccontextmanager
async def server() -> AsyncIterator[str]:
    """An echo beside the gateway; gives its address."""
    async with await asyncio.start_server(echo, "127.0.0.1", 0) as it:
        yield f"127.0.0.1:{it.sockets[0].getsockname()[1]}"


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a dial take at most half a second."""
    monkeypatch.setattr(wiring, "Dialler", partial(Dialler, dial_seconds=0.5))


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have gateways look names up in NAMES."""
    monkeypatch.setattr(wiring, "SystemResolver", Names)


@asynccontextmanager
async def dialling(
    it: Mesh, client: TunnelClient, place: str
) -> AsyncIterator[asyncio.StreamWriter]:
    """Ask for a place that does not answer, with early data; in the block its dial is under way."""
    port = await client.listen(f"tcp:{place}")
    known = sockets()
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"early")
        # Both ends of what was connected here, and one of the gateway's.
        await until(lambda: sockets() >= known + 3)
        assert it.gateway.channels == 1
        yield writer
    finally:
        writer.close()


def sockets() -> int:
    """Return how many sockets this process has."""
    found = 0
    for each in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found += os.readlink(f"/proc/self/fd/{each}").startswith("socket:")
    return found


async def test_a_reset_gives_the_dial_up() -> None:
    async with asyncio.timeout(SECONDS), server() as place:
        with crowd() as full:
            async with mesh(targets=(full.place, place)) as it, tunnel_client(it) as client:
                await client.attach()
                async with dialling(it, client, full.place) as writer:
                    reset(writer)
                    await until(lambda: it.gateway.channels == 0)
                assert await client.ask(f"tcp:{place}", b"others") == b"others"
                async with await full.open():
                    assert await client.ask(f"tcp:{full.place}", b"again") == b"again"
                assert full.heard == [b"again"]


async def test_early_data_arrives_once_though_carriers_change_while_it_is_dialled() -> None:
    async with asyncio.timeout(SECONDS):
        with crowd() as full:
            async with mesh(targets=(full.place,)) as it, tunnel_client(it) as client:
                await client.attach()
                async with dialling(it, client, full.place):
                    client.carriers[0].stream.abort()
                    await client.attach()
                    async with await full.open():
                        await until(lambda: full.heard == [b"early"])
                await until(lambda: it.gateway.channels == 0)
                assert full.heard == [b"early"]


async def test_a_tunnel_that_ends_leaves_no_dial() -> None:
    async with asyncio.timeout(SECONDS):
        with crowd() as full:
            async with mesh(targets=(full.place,)) as it:
                known = sockets()
                async with tunnel_client(it) as client:
                    await client.attach()
                    async with dialling(it, client, full.place):
                        client.end.driver.close("closed", "Enough.")
                        await it.signalling.until(lambda: it.signalling.closed("ses_a") != [])
                await until(lambda: sockets() <= known)
                assert it.gateway.channels == 0


async def test_a_session_that_is_closed_leaves_no_dial() -> None:
    async with asyncio.timeout(SECONDS):
        with crowd() as full:
            async with mesh(targets=(full.place,)) as it, tunnel_client(it) as client:
                want_tunnel(it, "ses_a")
                await client.attach()
                async with dialling(it, client, full.place):
                    it.signalling.unwant("ses_a")
                    await client.carriers[0].gone
                assert [reason for _, reason in client.end.endings] == ["session_closed"]
                assert it.gateway.channels == 0


async def test_a_gateway_that_stops_leaves_no_dial() -> None:
    async with asyncio.timeout(SECONDS):
        with crowd() as full:
            known = sockets()
            async with AsyncExitStack() as stack:
                async with mesh(targets=(full.place,)) as it:
                    client = await stack.enter_async_context(tunnel_client(it))
                    await client.attach()
                    await stack.enter_async_context(dialling(it, client, full.place))
                await client.carriers[0].gone
            await until(lambda: sockets() <= known)


@pytest.mark.usefixtures("hasty")
async def test_a_drain_waits_for_a_dial_which_delays_nobody_and_ends_in_its_time() -> None:
    async with asyncio.timeout(SECONDS), server() as place:
        with crowd() as full:
            async with mesh(targets=(full.place, place)) as it, tunnel_client(it) as client:
                await client.attach()
                async with dialling(it, client, full.place):
                    assert await client.ask(f"tcp:{place}", b"others") == b"others"
                    await it.gateway.drain()
                endings = [reason for _, reason in client.end.endings]
                assert sorted(endings) == ["", "dial_timeout"]


@pytest.mark.usefixtures("hasty", "names")
async def test_addresses_of_a_name_are_tried_in_order_each_for_its_share() -> None:
    async with asyncio.timeout(SECONDS), server() as place:
        port = int(place.rpartition(":")[2])
        targets = (f"refused.test:{port}", f"silent.test:{port}", f"inside.test:{port}")
        # A name reaches addresses of the gateway's machine only if they are listed too.
        listed = [f"{each}:{port}" for each in ("127.0.0.1", "127.0.0.77", "127.0.0.78")]
        with crowd("127.0.0.78", port):
            async with mesh(targets=(*targets, *listed)) as it, tunnel_client(it) as client:
                await client.attach()
                for each in targets:
                    assert await client.ask(f"tcp:{each}", b"hello") == b"hello"


@pytest.mark.usefixtures("names")
async def test_why_a_target_is_not_reached_is_typed() -> None:
    async with asyncio.timeout(SECONDS), server() as place:
        port = int(place.rpartition(":")[2])
        targets = (f"*:{port}", "refused.test:9", "127.0.0.77:9", "255.255.255.255:9")
        async with mesh(targets=targets) as it, tunnel_client(it) as client:
            await client.attach()
            # A name is allowed that leads to what is private, and was not listed by itself.
            assert await client.reason_of(f"tcp:inside.test:{port}") == "target_denied"
            assert await client.reason_of(f"tcp:{place}") == "target_denied"
            assert await client.reason_of("tcp:refused.test:9") == "dial_refused"
            assert await client.reason_of("tcp:255.255.255.255:9") == "host_unreachable"


async def test_want_of_descriptors_is_a_reset_and_others_go_on() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with (
        asyncio.timeout(SECONDS),
        server() as place,
        mesh(targets=(place,)) as it,
        tunnel_client(it) as client,
    ):
        await client.attach()
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            channel = client.end.driver.open(f"tcp:{place}")
            await until(lambda: bool(client.end.endings))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert client.end.endings == [(channel, "host_unreachable")]
        assert await client.ask(f"tcp:{place}", b"others") == b"others"
