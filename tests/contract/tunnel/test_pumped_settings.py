"""What the native pump is told beside bytes: how many channels, when to end, whom to watch."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from pathlib import Path

import pytest

pytest.importorskip("fairlead_native", reason="the native core is not built: make native")

from fairlead_native import Pump
from fairlead_tunnel.pumped_driver import PumpedDriver
from fairlead_tunnel.tunnel import Side, TunnelFull
from tests.contract.tunnel.pumped_ends import PumpedClientEnd, PumpedGatewayEnd
from tests.contract.tunnel.talks import echo
from tests.contract.tunnel.tunnel_world import ClientEnd, world
from tests.eventually import SECONDS, eventually

pytestmark = pytest.mark.asyncio


class Narrow(PumpedGatewayEnd):
    """Takes one channel at a time."""

    def __init__(self, pump: Pump) -> None:
        super().__init__(pump)
        self.driver = PumpedDriver(pump=pump, side=Side.GATEWAY, user=self, most_channels=1)


async def test_a_gateway_refuses_more_channels_than_it_is_set_to_take() -> None:
    pump = Pump()
    async with asyncio.timeout(SECONDS), world(ClientEnd, lambda: Narrow(pump)) as it:
        await it.attach()
        port = await it.listen(f"127.0.0.1:{await it.serve(echo)}")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        other, refused = await asyncio.open_connection("127.0.0.1", port)
        refused.write(b"x")
        with pytest.raises(ConnectionResetError):
            await other.read()
        assert await it.reasons() == ["channel_limit"]
        writer.close()
        refused.close()
    pump.close()


async def test_a_client_opens_no_more_channels_than_it_is_set_to() -> None:
    pump = Pump()
    end = PumpedClientEnd(pump)
    driver = PumpedDriver(pump=pump, side=Side.CLIENT, user=end, most_channels=2)
    driver.open("any")
    driver.open("any")
    with pytest.raises(TunnelFull):
        driver.open("any")
    pump.close()


async def test_what_a_pump_has_when_it_is_closed_is_told_so() -> None:
    pumps = [Pump(), Pump()]
    end = PumpedClientEnd(pumps[0])
    has_ended = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await echo(reader, writer)
        has_ended.set()

    async with (
        asyncio.timeout(SECONDS),
        world(lambda: end, lambda: PumpedGatewayEnd(pumps[1])) as it,
    ):
        await it.attach()
        channel = end.driver.open(f"127.0.0.1:{await it.serve(talk)}")
        ours, theirs = socket.socketpair()
        end.driver.connect(channel, theirs, b"x")
        reader, writer = await asyncio.open_connection(sock=ours)
        assert await reader.readexactly(1) == b"x"
        for pump in pumps:
            pump.close()
        await it.carriers[0].gone
        assert end.endings == [(channel, "client_failed")]
        assert end.over_reason == "client_failed"
        assert it.gateways[0].over_reason == "gateway_failed"
        with pytest.raises(TunnelFull):
            end.driver.open("another")
        with pytest.raises(RuntimeError):
            pumps[0].tunnel(is_client=True, user=end.driver)
        await has_ended.wait()
        writer.close()


def options_of(address: tuple[str, int]) -> set[tuple[int, int, int]]:
    """Return keep-alive, its idle time and the user timeout of sockets that lead to an address."""
    found = set()
    for name in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name.name))) as plug:
            if plug.getpeername() == address:
                tcp = socket.IPPROTO_TCP
                found.add(
                    (
                        plug.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
                        plug.getsockopt(tcp, socket.TCP_KEEPIDLE),
                        plug.getsockopt(tcp, socket.TCP_USER_TIMEOUT),
                    )
                )
    return found


async def test_silence_is_noticed_on_carriers_that_were_given_away_and_on_what_was_dialled() -> (
    None
):
    pumps = [Pump(), Pump()]
    end = PumpedClientEnd(pumps[0])
    async with (
        asyncio.timeout(SECONDS),
        world(lambda: end, lambda: PumpedGatewayEnd(pumps[1])) as it,
    ):
        await it.attach()
        server = await it.serve(echo)
        channel = end.driver.open(f"127.0.0.1:{server}")

        async def accepts() -> list[int]:
            return end.accepts

        await eventually(accepts, lambda found: found == [channel])
        assert options_of(it.address) == {(1, 15, 30_000)}
        assert options_of(("127.0.0.1", server)) == {(1, 15, 0)}
        ours, theirs = socket.socketpair()
        end.driver.connect(channel, theirs)
        ours.close()
        await it.settled()
    for pump in pumps:
        pump.close()
