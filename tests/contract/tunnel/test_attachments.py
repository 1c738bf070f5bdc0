"""Who gets a carrier attached: each ticket once, each number once, and nobody else at all."""

from __future__ import annotations

import asyncio
import random

import pytest

from fairlead_tunnel.carriers import CarrierLost
from fairlead_tunnel.handshake import AttachRefused
from tests.contract.tunnel.pumped_ends import MakeWorld
from tests.contract.tunnel.talks import echo, whole
from tests.contract.tunnel.tunnel_world import World, world
from tests.eventually import SECONDS, eventually

pytestmark = pytest.mark.asyncio


async def answer_to(it: World, said: bytes) -> bytes:
    """Send bytes to the gateway and return what it says until it ends the connection."""
    reader, writer = await asyncio.open_connection(*it.address)
    writer.write(said)
    try:
        if writer.can_write_eof():
            writer.write_eof()
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_a_hello_with_a_ticket_that_is_sent_again_opens_nothing(any_world: MakeWorld) -> None:
    async with asyncio.timeout(SECONDS), any_world() as it:
        hop = await it.hop()
        port = await it.listen(f"127.0.0.1:{await it.serve(echo)}")
        asking = asyncio.ensure_future(whole(port, b"once"))
        await eventually(lambda: _has_early(it))
        await it.attach(hop)
        assert await asking == b"once"
        assert b"ticket_invalid" in await answer_to(it, bytes(hop.said))
        assert len(it.gateways) == 1
        assert len(it.gateways[0].wants) == 1


async def _has_early(it: World) -> bool:
    """Say whether the first channel has bytes that are to leave with its OPEN."""
    driver = it.client.driver
    return driver.channels == 1 and it.client.written > 0


async def test_a_hello_of_a_later_carrier_that_is_sent_again_opens_nothing(
    any_world: MakeWorld,
) -> None:
    async with asyncio.timeout(SECONDS), any_world() as it:
        await it.attach()
        hop = await it.hop()
        await it.attach(hop)
        said = bytes(hop.said)
        assert b"attach_replayed" in await answer_to(it, said)
        await it.attach()
        assert b"attach_replayed" in await answer_to(it, said)
        assert it.gateways[0].driver.carriers == 3


async def test_a_tunnel_whose_first_answer_was_lost_dials_nothing_again(
    any_world: MakeWorld,
) -> None:
    async with asyncio.timeout(SECONDS), any_world() as it:
        hop = await it.hop()
        hop.to_client.clear()
        port = await it.listen(f"127.0.0.1:{await it.serve(echo)}")
        asking = asyncio.ensure_future(whole(port, b"once"))
        await eventually(lambda: _has_early(it))
        carrier = await it.greet(hop)
        await eventually(lambda: _dialled(it), lambda count: count == 1)
        for each in hop._writers:
            each.transport.abort()
        with pytest.raises((CarrierLost, ConnectionResetError)):
            await carrier.ready
        with pytest.raises(ConnectionResetError):
            await asking
        await it.ends("answer_lost")
        with pytest.raises(AttachRefused) as refused:
            await it.attach()
        assert refused.value.reason == "ticket_invalid"
        assert len(it.gateways) == 1
        assert len(it.gateways[0].wants) == 1


async def _dialled(it: World) -> int:
    return sum(len(each.wants) for each in it.gateways)


async def test_a_tunnel_that_the_gateway_has_lost_ends_with_its_channels(
    any_world: MakeWorld,
) -> None:
    async with asyncio.timeout(SECONDS), any_world() as it:
        await it.attach()
        port = await it.listen(f"127.0.0.1:{await it.serve(echo)}")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        it.desk.forget(it.ticket._tunnel_id)
        it.carriers[0].stream.abort()
        with pytest.raises(AttachRefused) as refused:
            await it.attach()
        assert refused.value.reason == "tunnel_unknown"
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()
        await it.ends("tunnel_unknown")


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n", b"FLT\x01\x09\x09\xff\xff", bytes(9)])
async def test_who_says_something_else_is_dropped_without_a_word(
    any_world: MakeWorld, said: bytes
) -> None:
    async with asyncio.timeout(SECONDS), any_world() as it:
        assert await answer_to(it, said) == b""
        assert it.gateways == []


async def test_changed_hellos_open_nothing_and_harm_nobody(any_world: MakeWorld) -> None:
    rng = random.Random(7)  # noqa: S311 - faults, not secrets
    async with asyncio.timeout(SECONDS), any_world() as it:
        hop = await it.hop()
        await it.attach()
        await it.attach(hop)
        said = bytes(hop.said)
        port = await it.listen(f"127.0.0.1:{await it.serve(echo)}")
        for _ in range(200):
            await answer_to(it, _changed(said, rng))
        assert await whole(port, b"still here") == b"still here"
        assert len(it.gateways) == 1
        assert it.gateways[0].driver.carriers == 2


async def test_changed_records_end_their_carrier_alone() -> None:
    rng = random.Random(11)  # noqa: S311 - faults, not secrets
    async with asyncio.timeout(SECONDS), world() as it:
        await it.attach()
        port = await it.listen(f"127.0.0.1:{await it.serve(echo)}")
        for _ in range(50):
            carrier = await it.attach()
            transport = carrier.stream._transport
            assert transport is not None
            transport.write(_changed(bytes((0, 0, 1, 0)) + rng.randbytes(256), rng))
            transport.write_eof()
            await carrier.gone
        assert await whole(port, b"still here") == b"still here"
        assert it.client.over_reason == ""
        assert len(it.gateways) == 1


def _changed(said: bytes, rng: random.Random) -> bytes:
    """Return bytes with some of them changed, doubled, cut or put elsewhere."""
    found = bytearray(said)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(max(len(found), 1))
        match rng.randrange(4):
            case 0:
                found[place : place + 1] = rng.randbytes(1)
            case 1:
                found[place:place] = rng.randbytes(rng.randint(1, 40))
            case 2:
                del found[place:]
            case _:
                found += found[place:]
    return bytes(found) if bytes(found) != said else said + b"more"
