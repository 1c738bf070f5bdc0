"""Tunnels over TCP: bytes both ways, how channels end, and slow readers."""

from __future__ import annotations

import asyncio
import hashlib
import secrets

import pytest

from fairlead_tunnel.frames import Accepted, batch_header, encode
from fairlead_tunnel.outbox import Batch
from fairlead_tunnel.tunnel_driver import TunnelDriver
from tests.contract.tunnel.pumped_ends import MakeWorld
from tests.contract.tunnel.talks import SIZE, digest, echo, reset, whole
from tests.contract.tunnel.tunnel_world import ClientEnd, GatewayEnd, World, world
from tests.eventually import SECONDS, eventually

pytestmark = pytest.mark.asyncio


async def test_bytes_go_both_ways_and_both_ends_end(any_world: MakeWorld) -> None:
    async with asyncio.timeout(SECONDS), any_world() as it:
        await it.attach()
        port = await it.listen(f"127.0.0.1:{await it.serve(echo)}")
        content = secrets.token_bytes(SIZE)
        assert await whole(port, content) == content
        await it.settled()
        assert await it.fates() == await it.reasons() == []


async def test_a_direction_that_has_ended_leaves_the_other(any_world: MakeWorld) -> None:
    async with asyncio.timeout(SECONDS), any_world() as it:
        await it.attach()
        port = await it.listen(f"127.0.0.1:{await it.serve(digest)}")
        content = secrets.token_bytes(SIZE)
        assert await whole(port, content) == hashlib.sha256(content).digest()
        await it.settled()


async def test_what_is_opened_before_there_is_a_carrier_rides_with_its_hello(
    any_world: MakeWorld,
) -> None:
    async with asyncio.timeout(SECONDS), any_world() as it:
        port = await it.listen(f"127.0.0.1:{await it.serve(echo)}")
        asking = asyncio.ensure_future(whole(port, b"early"))
        await eventually(lambda: _written(it), lambda count: count == 1)
        await it.attach()
        assert await asking == b"early"


def python_client(it: World) -> ClientEnd:
    """Return the client of a world that runs on event loops."""
    assert isinstance(it.client, ClientEnd)
    return it.client


async def _written(it: World) -> int:
    return it.client.driver.channels


async def test_several_carriers_share_the_work(any_world: MakeWorld) -> None:
    async with asyncio.timeout(SECONDS), any_world() as it:
        for _ in range(3):
            await it.attach()
        port = await it.listen(f"127.0.0.1:{await it.serve(echo)}")
        content = secrets.token_bytes(SIZE)
        found = await asyncio.gather(*(whole(port, content[each:]) for each in range(4)))
        assert found == [content[each:] for each in range(4)]
        await it.settled()


async def test_a_target_that_refuses_resets_the_connection(any_world: MakeWorld) -> None:
    async with asyncio.timeout(SECONDS), any_world() as it:
        await it.attach()
        server = await it.serve(echo)
        it.servers.pop().close()
        port = await it.listen(f"127.0.0.1:{server}")
        with pytest.raises(ConnectionResetError):
            await whole(port, b"nobody")
        await eventually(lambda: _reasons(it), lambda found: found == ["dial_refused"])
        await it.settled()


async def _reasons(it: World) -> list[str]:
    return [reason for _, reason in it.client.endings]


async def test_a_close_while_the_open_is_held_lets_it_go() -> None:
    async with asyncio.timeout(SECONDS), world() as it:
        python_client(it).hold_seconds = 3600.0
        await it.attach()
        port = await it.listen(f"127.0.0.1:{await it.serve(echo)}")
        assert await whole(port, b"") == b""
        await it.settled()
        assert [reason for _, reason in it.client.endings] == [""]


async def test_a_reset_while_the_open_is_held_lets_it_go() -> None:
    async with asyncio.timeout(SECONDS), world() as it:
        python_client(it).hold_seconds = 3600.0
        await it.attach()
        port = await it.listen(f"127.0.0.1:{await it.serve(echo)}")
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        await eventually(lambda: _written(it), lambda count: count == 1)
        reset(writer)
        await it.settled()
        assert [reason for _, reason in it.client.endings] == ["connection_reset"]


async def test_a_server_that_speaks_first_is_heard_when_the_hold_is_over(
    any_world: MakeWorld,
) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 ready")
        writer.close()

    async with asyncio.timeout(SECONDS), any_world() as it:
        await it.attach()
        port = await it.listen(f"127.0.0.1:{await it.serve(greet)}")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b"220 ready"
        writer.close()
        await it.settled()


async def test_a_slow_reader_stalls_only_itself() -> None:
    may_read = asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await may_read.wait()
        await digest(reader, writer)

    async with asyncio.timeout(SECONDS), world() as it:
        await it.attach()
        stalled = await it.listen(f"127.0.0.1:{await it.serve(slow)}")
        quick = await it.listen(f"127.0.0.1:{await it.serve(echo)}")
        content = secrets.token_bytes(2 * SIZE)
        waiting = asyncio.ensure_future(whole(stalled, content))
        await eventually(lambda: _room(it, 1), lambda room: room == 0)
        for _ in range(3):
            assert await whole(quick, content[:SIZE]) == content[:SIZE]
        assert not waiting.done()
        assert (
            sum(len(each.unsent) for each in python_client(it).driver._streams.values())
            <= 256 * 1024
        )
        may_read.set()
        assert await waiting == hashlib.sha256(content).digest()
        await it.settled()


async def _room(it: World, channel: int) -> int:
    return python_client(it).tunnel.writable(channel)


async def test_a_connection_that_is_reset_resets_the_other_end() -> None:
    fates: list[str] = []

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read()
            fates.append("end")
        except ConnectionResetError:
            fates.append("reset")
        writer.close()

    async with asyncio.timeout(SECONDS), world() as it:
        await it.attach()
        port = await it.listen(f"127.0.0.1:{await it.serve(hear)}")
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"half of it")
        await eventually(lambda: _accepted(it), lambda count: count == 1)
        reset(writer)
        await it.settled()
        await eventually(lambda: _of(fates), lambda found: found == ["reset"])


async def test_a_target_that_drops_what_it_was_sent_last_is_no_clean_end() -> None:
    heard = asyncio.Event()

    async def rude(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write_eof()
        await heard.wait()
        reset(writer)

    async with asyncio.timeout(SECONDS), world() as it:
        await it.attach()
        port = await it.listen(f"127.0.0.1:{await it.serve(rude, takes_little=True)}")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(bytes(8 * 1024 * 1024))
        writer.write_eof()
        assert await reader.read() == b""
        gateway = it.gateways[0]
        assert isinstance(gateway, GatewayEnd)
        await eventually(lambda: _done(gateway.driver), bool)
        heard.set()
        await it.settled()
        assert [reason for _, reason in it.gateways[0].endings] == ["connection_reset"]
        writer.close()


async def _done(driver: TunnelDriver) -> bool:
    return any(each.is_done for each in driver._streams.values())


async def _accepted(it: World) -> int:
    return len(it.client.accepts)


async def _of(found: list[str]) -> list[str]:
    return found


async def test_the_end_of_the_tunnel_is_told_and_resets_what_is_open(any_world: MakeWorld) -> None:
    async with asyncio.timeout(SECONDS), any_world() as it:
        await it.attach()
        port = await it.listen(f"127.0.0.1:{await it.serve(echo)}")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        it.gateways[0].driver.close("drained", "The gateway ends.")
        with pytest.raises(ConnectionResetError):
            await reader.read()
        await it.ends("drained", by_gateway=True)
        assert it.client.endings == [(1, "drained")]
        await it.carriers[0].gone
        writer.close()


async def test_a_peer_that_breaks_the_rules_is_told_so() -> None:
    async with asyncio.timeout(SECONDS), world() as it:
        await it.attach()
        batch = batch_header(1000, 1) + encode(Accepted(1))
        it.carriers[0].stream.send(Batch(1000, [batch], len(batch)))
        await it.carriers[0].gone
        assert it.client.over_reason == it.gateways[0].over_reason == "protocol_error"
