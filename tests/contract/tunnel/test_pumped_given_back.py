"""Connections that the native pump gives back: nothing was done for them, and nothing is lost."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

pytest.importorskip("fairlead_native", reason="the native core is not built: make native")

from fairlead_native import Pump
from fairlead_tunnel.tunnel import CHANNEL_WINDOW, MOST_CHANNELS
from tests.contract.tunnel.pumped_ends import PumpedClientEnd, PumpedGatewayEnd
from tests.contract.tunnel.talks import echo
from tests.contract.tunnel.tunnel_world import World, world
from tests.eventually import SECONDS, eventually

pytestmark = pytest.mark.asyncio
DRAINING = "gateway_draining"


class Draining(PumpedGatewayEnd):
    """Refuses what is new, from the first `waits` on when it is told to."""

    waits = False

    def wanted(self, channel: int, target: str) -> None:
        """Refuse."""
        self.wants.append(target)
        if not self.waits:
            self.refuse(channel)

    def refuse(self, channel: int) -> None:
        """Refuse a channel."""
        self.driver.refuse(channel, DRAINING, "The gateway takes nothing new.")


class Waiting(Draining):
    """Leaves clients waiting."""

    waits = True


@asynccontextmanager
async def ends(
    gateway: Callable[[Pump], PumpedGatewayEnd] = Draining, *, most_channels: int = MOST_CHANNELS
) -> AsyncIterator[tuple[PumpedClientEnd, World]]:
    pumps = [Pump(), Pump()]
    end = PumpedClientEnd(pumps[0], most_channels)
    try:
        async with world(lambda: end, lambda: gateway(pumps[1])) as it:
            yield end, it
    finally:
        for pump in pumps:
            pump.close()
        for each in end.connections:
            each.close()


async def connected(end: PumpedClientEnd, early: bytes = b"") -> tuple[int, socket.socket]:
    """Open a channel and lead one end of a pair to it."""
    channel = end.driver.open("any", hold_seconds=0.001)
    ours, theirs = socket.socketpair()
    end.driver.connect(channel, theirs, early)
    return channel, ours


async def given(end: PumpedClientEnd) -> list[tuple[int, bytes, str]]:
    return end.given


async def endings(end: PumpedClientEnd) -> list[tuple[int, str]]:
    return end.endings


async def wants(it: World) -> int:
    return len(it.gateways[0].wants)


async def read(end: PumpedClientEnd) -> int:
    return end.driver.bytes_read


async def test_a_gateway_that_drains_gives_back_what_was_read_and_the_end() -> None:
    async with asyncio.timeout(SECONDS), ends() as (end, it):
        await it.attach()
        channel, ours = await connected(end, b"early ")
        ours.sendall(b"bytes")
        ours.shutdown(socket.SHUT_WR)
        await eventually(lambda: given(end), bool)
        connection = end.connections[0]
        (found,) = end.given
        rest = b"".join(iter(lambda: connection.recv(100), b""))
        assert (found[0], found[1] + rest, found[2]) == (channel, b"early bytes", DRAINING)
        assert connection.recv(100) == b""
        connection.sendall(b"answered")
        assert ours.recv(100) == b"answered"
        assert end.endings == []
        await it.settled()
        ours.close()


async def test_a_connection_of_a_listener_is_given_back_with_where_it_came_from() -> None:
    async with asyncio.timeout(SECONDS), ends() as (end, it):
        await it.attach()
        port = await it.listen("any")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"hello")
        await eventually(lambda: given(end), bool)
        connection = end.connections[0]
        assert connection.getsockname()[1] == port
        connection.setblocking(True)
        kept = end.given[0][1]
        while len(kept) < 5:
            kept += connection.recv(100)
        assert kept == b"hello"
        connection.sendall(b"answered")
        assert await reader.readexactly(8) == b"answered"
        writer.close()


async def test_a_connection_of_which_all_was_read_that_its_windows_take_is_given_back() -> None:
    async with asyncio.timeout(SECONDS), ends(Waiting) as (end, it):
        await it.attach()
        content = secrets.token_bytes(3 * CHANNEL_WINDOW)
        channel, ours = await connected(end, content[:1000])
        sending = asyncio.ensure_future(asyncio.to_thread(ours.sendall, content[1000:]))
        await eventually(lambda: read(end), lambda count: count >= CHANNEL_WINDOW)
        await eventually(lambda: wants(it), lambda count: count == 1)
        gateway = it.gateways[0]
        assert isinstance(gateway, Waiting)
        gateway.refuse(channel)
        ((number, early, reason),) = await eventually(lambda: given(end), bool)
        assert (number, reason) == (channel, DRAINING)
        assert len(early) <= 2 * CHANNEL_WINDOW
        reader, writer = await asyncio.open_connection(sock=end.connections[0])
        assert early + await reader.readexactly(len(content) - len(early)) == content
        await sending
        writer.close()
        ours.close()


async def test_a_connection_that_the_target_has_is_not_given_back() -> None:
    async with asyncio.timeout(SECONDS), ends(PumpedGatewayEnd) as (end, it):
        await it.attach()
        channel = end.driver.open(f"127.0.0.1:{await it.serve(echo)}")
        ours, theirs = socket.socketpair()
        end.driver.connect(channel, theirs, b"x")
        reader, writer = await asyncio.open_connection(sock=ours)
        assert await reader.readexactly(1) == b"x"
        gateway = it.gateways[0]
        assert isinstance(gateway, PumpedGatewayEnd)
        gateway.driver.refuse(channel, DRAINING, "Too late for that.")
        assert await eventually(lambda: endings(end), bool) == [(channel, DRAINING)]
        assert end.given == []
        writer.close()


async def test_a_tunnel_that_ends_gives_back_what_it_has_told_nobody_of() -> None:
    async with asyncio.timeout(SECONDS), ends(Waiting) as (end, it):
        await it.attach()
        told, ours = await connected(end, b"told")
        await eventually(lambda: wants(it), lambda count: count == 1)
        end.driver.detach(1)
        await it.carriers[0].gone
        untold, others = await connected(end, b"untold")
        others.shutdown(socket.SHUT_WR)
        await eventually(lambda: read(end), lambda count: count == 10)
        end.driver.close("session_closed", "Enough.")
        found = await eventually(lambda: given(end), bool)
        assert found == [(untold, b"untold", "open_unsent")]
        await it.ends("session_closed")
        assert end.connections[0].recv(10) == b""
        assert end.endings == [(told, "session_closed")]
        ours.close()
        others.close()


async def test_a_connection_that_was_on_its_way_when_its_channel_ended_is_given_back() -> None:
    async with asyncio.timeout(SECONDS), ends() as (end, _):
        channel = end.driver.open("any")
        end.driver.close("session_closed", "Enough.")
        ours, theirs = socket.socketpair()
        end.driver.connect(channel, theirs, b"early")
        found = await eventually(lambda: given(end), bool)
        assert found == [(channel, b"early", "open_unsent")]
        assert end.endings == []
        ours.close()


async def test_a_channel_without_a_connection_ends_as_others_do() -> None:
    async with asyncio.timeout(SECONDS), ends() as (end, it):
        await it.attach()
        channel = end.driver.open("any")
        assert await eventually(lambda: endings(end), bool) == [(channel, DRAINING)]
        assert end.given == []


@pytest.mark.parametrize("ends_first", [False, True])
async def test_a_connection_that_was_given_up_is_not_given_back(ends_first: bool) -> None:
    async with asyncio.timeout(SECONDS), ends() as (end, _):
        channel = end.driver.open("any")
        ours, theirs = socket.socketpair()
        if ends_first:
            end.driver.close("session_closed", "Enough.")
        end.driver.connect(channel, theirs, b"early")
        end.driver.refuse(channel, "client_refused", "Nobody asks for it any more.")
        found = await eventually(lambda: endings(end), bool)
        assert found == [(channel, "open_unsent" if ends_first else "client_refused")]
        assert end.given == []
        assert ours.recv(1) == b""
        ours.close()


async def test_a_gateway_takes_early_bytes_of_a_target_too() -> None:
    class Greeting(PumpedGatewayEnd):
        def wanted(self, channel: int, target: str) -> None:
            ours, theirs = socket.socketpair()
            ours.sendall(b" world")
            ours.close()
            self.driver.connect(channel, theirs, b"hello")

    async with asyncio.timeout(SECONDS), ends(Greeting) as (end, it):
        await it.attach()
        _, ours = await connected(end)
        reader, writer = await asyncio.open_connection(sock=ours)
        assert await reader.read() == b"hello world"
        writer.close()
        await it.settled()
