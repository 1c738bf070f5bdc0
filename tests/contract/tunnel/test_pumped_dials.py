"""Dials of the native pump: what is told of them, and what is left when it ends."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("fairlead_native", reason="the native core is not built: make native")

from errno import ECONNREFUSED, ETIMEDOUT

from fairlead_native import Pump
from tests.contract.tunnel.pumped_ends import PumpedClientEnd, PumpedGatewayEnd
from tests.contract.tunnel.talks import echo, whole
from tests.contract.tunnel.tunnel_world import world
from tests.contract.wire.full_server import crowd
from tests.eventually import SECONDS, eventually

pytestmark = pytest.mark.asyncio


class Gateway(PumpedGatewayEnd):
    """Dials several addresses at one port: targets are `host,host:port`."""

    seconds = 10.0

    def wanted(self, channel: int, target: str) -> None:
        """Dial them."""
        hosts, _, port = target.rpartition(":")
        self.driver.dial(channel, hosts.split(","), int(port), seconds=self.seconds)


async def test_of_a_dial_python_hears_where_it_failed_or_was_slow() -> None:
    pumps = [Pump(), Pump()]
    gateway = Gateway(pumps[1])

    async def told() -> list[tuple[str, int]]:
        return gateway.dials

    async with (
        asyncio.timeout(SECONDS),
        world(lambda: PumpedClientEnd(pumps[0]), lambda: gateway) as it,
    ):
        await it.attach()
        port = await it.serve(echo)
        assert await whole(await it.listen(f"127.0.0.1:{port}"), b"quick") == b"quick"
        assert await whole(await it.listen(f"127.0.0.77,127.0.0.1:{port}"), b"next") == b"next"
        assert await told() == []
        with pytest.raises(ConnectionResetError):
            await whole(await it.listen(f"127.0.0.77,127.0.0.78:{port}"), b"nobody")
        refused = (f"127.0.0.77,127.0.0.78:{port}", ECONNREFUSED)
        assert await told() == [refused]
        with crowd("127.0.0.79", port) as full:
            gateway.seconds = 0.2
            silent = f"127.0.0.77,127.0.0.79:{port}"
            with pytest.raises(ConnectionResetError):
                await whole(await it.listen(silent), b"in vain")
            assert await told() == [refused, (silent, ETIMEDOUT)]
            asking = asyncio.ensure_future(
                whole(await it.listen(f"127.0.0.79,127.0.0.1:{port}"), b"late")
            )
            assert await asking == b"late"
            assert (await told())[2:] == [(f"127.0.0.79,127.0.0.1:{port}", 0)]
            assert full.heard == []
        await it.settled()
    for pump in pumps:
        pump.close()


async def test_a_pump_that_ends_drops_its_dials_and_says_so() -> None:
    pumps = [Pump(), Pump()]
    end, gateway = PumpedClientEnd(pumps[0]), Gateway(pumps[1])

    async def dialled() -> int:
        return gateway.driver.channels

    with crowd() as full:
        async with asyncio.timeout(SECONDS), world(lambda: end, lambda: gateway) as it:
            await it.attach()
            end.driver.open(f"127.0.0.1:{full.port}")
            await eventually(dialled, lambda count: count == 1)
            pumps[1].close()
            await it.carriers[0].gone
            assert gateway.over_reason == "gateway_failed"
            assert not gateway.dials
            assert gateway.endings == [(1, "gateway_failed")]
    pumps[0].close()
