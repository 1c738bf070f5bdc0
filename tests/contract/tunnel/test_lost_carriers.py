"""Carriers that are cut, vanish, or deliver late, and what goes on over the next one."""

from __future__ import annotations

import asyncio
import secrets

import pytest

from fairlead_tunnel import records
from tests.contract.tunnel.pumped_ends import MakeWorld
from tests.contract.tunnel.talks import SIZE, echo, whole
from tests.contract.tunnel.tunnel_world import World, world
from tests.eventually import SECONDS, eventually

pytestmark = pytest.mark.asyncio


class Counter:
    """Echoes, and counts what has come."""

    def __init__(self) -> None:
        self.count = 0

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while content := await reader.read(65536):
            self.count += len(content)
            writer.write(content)
            await writer.drain()
        writer.close()

    async def reached(self, count: int) -> None:
        async def found() -> int:
            return self.count

        await eventually(found, lambda found: found >= count)


@pytest.mark.parametrize("by_gateway", [False, True])
@pytest.mark.parametrize("epoch_bits", [16, 3])
async def test_a_carrier_that_is_cut_under_way_loses_nothing(
    by_gateway: bool, epoch_bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "_EPOCH_BITS", epoch_bits)  # with 3, keys change as it is cut
    async with asyncio.timeout(SECONDS), world() as it:
        await it.attach()
        counter = Counter()
        port = await it.listen(f"127.0.0.1:{await it.serve(counter.talk)}")
        content = secrets.token_bytes(SIZE)
        asking = asyncio.ensure_future(whole(port, content))
        for part in range(6):
            await counter.reached(SIZE * part // 8)
            (it.met if by_gateway else it.carriers)[-1].stream.abort()
            await it.attach()
        assert await asking == content
        await it.settled()
        assert len(it.gateways[0].wants) == 1


async def test_a_carrier_that_is_cut_while_others_go_on_loses_nothing(any_world: MakeWorld) -> None:
    async with asyncio.timeout(SECONDS), any_world() as it:
        for _ in range(3):
            await it.attach()
        counter = Counter()
        port = await it.listen(f"127.0.0.1:{await it.serve(counter.talk)}")
        content = secrets.token_bytes(SIZE)
        asking = asyncio.ensure_future(whole(port, content))
        for part in range(2):
            await counter.reached(SIZE * (part + 1) // 4)
            it.carriers[part].stream.abort()
        assert await asking == content
        await it.settled()


@pytest.mark.parametrize("before_the_next", [False, True])
async def test_late_bytes_of_an_abandoned_carrier_count_once(
    any_world: MakeWorld, before_the_next: bool
) -> None:
    async with asyncio.timeout(SECONDS), any_world() as it:
        hop = await it.hop()
        hop.tells_ends = False
        await it.attach(hop)
        hop.to_gateway.clear()
        port = await it.listen(f"127.0.0.1:{await it.serve(echo)}")
        content = secrets.token_bytes(40_000)
        asking = asyncio.ensure_future(whole(port, content))
        said = len(hop.said)
        await eventually(lambda: _said(hop.said), lambda count: count > said + 1000)
        it.carriers[0].stream.abort()
        await it.carriers[0].gone
        if before_the_next:
            hop.to_gateway.set()
            await eventually(lambda: _wants(it), lambda count: count == 1)
        await it.attach()
        hop.to_gateway.set()
        assert await asking == content
        await it.settled()
        assert len(it.gateways[0].wants) == 1


async def _said(said: bytearray) -> int:
    return len(said)


async def _wants(it: World) -> int:
    return len(it.gateways[0].wants)


async def test_a_carrier_that_vanished_for_the_client_alone_holds_nothing_up(
    any_world: MakeWorld,
) -> None:
    async with asyncio.timeout(SECONDS), any_world() as it:
        hop = await it.hop()
        hop.tells_ends = False
        await it.attach(hop)
        await it.attach()
        counter = Counter()
        port = await it.listen(f"127.0.0.1:{await it.serve(counter.talk)}")
        content = secrets.token_bytes(SIZE)
        asking = asyncio.ensure_future(whole(port, content))
        await counter.reached(1)
        hop.to_client.clear()  # the gateway sends on, and hears of nothing
        it.carriers[0].stream.abort()
        it.carriers[1].stream.abort()
        await asyncio.gather(it.carriers[0].gone, it.carriers[1].gone)
        await it.attach()
        assert await asking == content
        assert it.gateways[0].driver.carriers == it.client.driver.carriers == 1
        await it.settled()


async def test_carriers_that_attach_at_the_same_time_spare_each_other(any_world: MakeWorld) -> None:
    async with asyncio.timeout(SECONDS), any_world() as it:
        await it.attach()
        carriers = [await it.greet() for _ in range(3)]
        for each in carriers:
            assert await each.ready == b""
        port = await it.listen(f"127.0.0.1:{await it.serve(echo)}")
        assert await whole(port, b"hello") == b"hello"
        assert it.gateways[0].driver.carriers == it.client.driver.carriers == 4


async def test_an_attachment_after_the_end_is_closed(any_world: MakeWorld) -> None:
    async with asyncio.timeout(SECONDS), any_world() as it:
        await it.attach()
        carrier = await it.greet()
        it.client.driver.close("closed", "Enough.")
        await carrier.gone
        await it.carriers[0].gone

        async def carriers() -> int:
            return it.client.driver.carriers

        await eventually(carriers, (0).__eq__)
