"""Tunnels on the native pump, with each other and with those on an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
import socket

import pytest

pytest.importorskip("fairlead_native", reason="the native core is not built: make native")

from fairlead_native import Pump
from tests.contract.tunnel.pumped_ends import (
    NATIVE,
    MakeWorld,
    PumpedClientEnd,
    PumpedGatewayEnd,
    world_of,
)
from tests.contract.tunnel.talks import digest, echo, reset, whole
from tests.contract.tunnel.tunnel_world import World, world
from tests.eventually import SECONDS, eventually

pytestmark = pytest.mark.asyncio
SIZE = 64 * 1024 * 1024


@pytest.fixture(params=NATIVE)
def native_world(request: pytest.FixtureRequest) -> MakeWorld:
    return world_of(request.param)


async def test_bytes_go_both_ways_and_both_ends_end(native_world: MakeWorld) -> None:
    async with asyncio.timeout(SECONDS), native_world() as it:
        await it.attach()
        port = await it.listen(f"127.0.0.1:{await it.serve(echo)}")
        content = secrets.token_bytes(SIZE)
        found = await whole(port, content)
        assert hashlib.sha256(found).digest() == hashlib.sha256(content).digest()
        await it.settled()
        assert await it.reasons() == []


async def test_a_direction_that_has_ended_leaves_the_other(native_world: MakeWorld) -> None:
    async with asyncio.timeout(SECONDS), native_world() as it:
        await it.attach()
        port = await it.listen(f"127.0.0.1:{await it.serve(digest)}")
        content = secrets.token_bytes(SIZE)
        assert await whole(port, content) == hashlib.sha256(content).digest()
        await it.settled()


async def test_what_is_opened_before_there_is_a_carrier_rides_with_its_hello(
    native_world: MakeWorld,
) -> None:
    async with asyncio.timeout(SECONDS), native_world() as it:
        port = await it.listen(f"127.0.0.1:{await it.serve(echo)}")
        asking = asyncio.ensure_future(whole(port, b"early"))
        await eventually(lambda: _channels(it), lambda count: count == 1)
        await it.attach()
        assert await asking == b"early"


async def _channels(it: World) -> int:
    return it.client.driver.channels


async def test_several_channels_share_several_carriers(native_world: MakeWorld) -> None:
    async with asyncio.timeout(SECONDS), native_world() as it:
        for _ in range(3):
            await it.attach()
        port = await it.listen(f"127.0.0.1:{await it.serve(echo)}")
        content = secrets.token_bytes(SIZE // 8)
        found = await asyncio.gather(*(whole(port, content[each:]) for each in range(6)))
        assert found == [content[each:] for each in range(6)]
        await it.settled()


async def test_many_short_channels_at_once_are_all_answered(native_world: MakeWorld) -> None:
    async with asyncio.timeout(SECONDS), native_world() as it:
        await it.attach()
        port = await it.listen(f"127.0.0.1:{await it.serve(echo)}")
        asked = [secrets.token_bytes(each + 1) for each in range(200)]
        assert await asyncio.gather(*(whole(port, each) for each in asked)) == asked
        await it.settled()
        assert await it.reasons() == []


@pytest.mark.parametrize("by_gateway", [False, True])
async def test_a_carrier_that_is_cut_under_way_loses_nothing(
    native_world: MakeWorld, by_gateway: bool
) -> None:
    count = 0

    async def counted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        while content := await reader.read(65536):
            count += len(content)
            writer.write(content)
            await writer.drain()
        writer.close()

    wanted = 0

    async def reached() -> bool:
        return count >= wanted

    async with asyncio.timeout(SECONDS), native_world() as it:
        await it.attach()
        port = await it.listen(f"127.0.0.1:{await it.serve(counted)}")
        content = secrets.token_bytes(SIZE)
        asking = asyncio.ensure_future(whole(port, content))
        for part in range(6):
            wanted = SIZE * part // 8
            await eventually(reached, lambda found: found)
            (it.met if by_gateway else it.carriers)[-1].stream.abort()
            await it.attach()
        found = await asking
        assert hashlib.sha256(found).digest() == hashlib.sha256(content).digest()
        await it.settled()
        assert len(it.gateways[0].wants) == 1


async def test_a_target_that_refuses_resets_the_connection(native_world: MakeWorld) -> None:
    async with asyncio.timeout(SECONDS), native_world() as it:
        await it.attach()
        target = await it.serve(echo)
        it.servers.pop().close()
        port = await it.listen(f"127.0.0.1:{target}")
        with pytest.raises(ConnectionResetError):
            await whole(port, b"nobody")
        await eventually(it.reasons, lambda found: found == ["dial_refused"])
        await it.settled()


async def test_a_server_that_speaks_first_is_heard_when_the_hold_is_over(
    native_world: MakeWorld,
) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 ready")
        writer.close()

    async with asyncio.timeout(SECONDS), native_world() as it:
        await it.attach()
        port = await it.listen(f"127.0.0.1:{await it.serve(greet)}")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b"220 ready"
        writer.close()
        await it.settled()


async def test_a_slow_reader_stalls_only_itself(native_world: MakeWorld) -> None:
    may_read = asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await may_read.wait()
        await digest(reader, writer)

    async with asyncio.timeout(SECONDS), native_world() as it:
        await it.attach()
        stalled = await it.listen(f"127.0.0.1:{await it.serve(slow)}")
        quick = await it.listen(f"127.0.0.1:{await it.serve(echo)}")
        content = secrets.token_bytes(SIZE)
        waiting = asyncio.ensure_future(whole(stalled, content))
        await eventually(lambda: _wants(it), lambda count: count == 1)
        for _ in range(3):
            assert await whole(quick, content[: SIZE // 4]) == content[: SIZE // 4]
        assert not waiting.done()
        may_read.set()
        assert await waiting == hashlib.sha256(content).digest()
        await it.settled()


async def _wants(it: World) -> int:
    return len(it.gateways[0].wants)


async def test_a_connection_that_is_reset_resets_the_other_end(native_world: MakeWorld) -> None:
    fates: list[str] = []

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        try:
            await reader.read()
            fates.append("end")
        except ConnectionResetError:
            fates.append("reset")
        writer.close()

    async def found() -> list[str]:
        return fates

    async with asyncio.timeout(SECONDS), native_world() as it:
        await it.attach()
        port = await it.listen(f"127.0.0.1:{await it.serve(hear)}")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"half of it")
        assert await reader.readexactly(5) == b"hello"
        reset(writer)
        await it.settled()
        await eventually(found, lambda fates: fates == ["reset"])


async def test_the_end_of_the_tunnel_is_told_and_resets_what_is_open(
    native_world: MakeWorld,
) -> None:
    async with asyncio.timeout(SECONDS), native_world() as it:
        await it.attach()
        port = await it.listen(f"127.0.0.1:{await it.serve(echo)}")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        it.gateways[0].driver.close("drained", "The gateway ends.")
        with pytest.raises(ConnectionResetError):
            await reader.read()
        await it.carriers[0].gone
        await it.ends("drained", by_gateway=True)
        assert it.client.endings == [(1, "drained")]
        writer.close()


async def test_a_record_that_was_changed_ends_its_carrier_and_nothing_else(
    native_world: MakeWorld,
) -> None:
    changed = asyncio.Event()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while content := await reader.read(65536):
                if changed.is_set():
                    content = content[:-1] + bytes([content[-1] ^ 1])
                writer.write(content)
        writer.close()

    async with asyncio.timeout(SECONDS), native_world() as it:
        direct = it.address

        async def hop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there, back = await asyncio.open_connection(*direct)
            await asyncio.gather(forward(reader, back), forward(there, writer))

        it.address = "127.0.0.1", await it.serve(hop)
        await it.attach()
        port = await it.listen(f"127.0.0.1:{await it.serve(echo)}")
        assert await whole(port, b"before") == b"before"
        changed.set()
        asking = asyncio.ensure_future(whole(port, b"under way"))
        await it.carriers[0].gone
        it.address = direct
        await it.attach()
        assert await asking == b"under way"
        await it.settled()
        assert it.client.over_reason == it.gateways[0].over_reason == ""


async def test_an_attachment_after_the_end_is_closed(native_world: MakeWorld) -> None:
    async with asyncio.timeout(SECONDS), native_world() as it:
        await it.attach()
        carrier = await it.greet()
        it.client.driver.close("closed", "Enough.")
        await carrier.gone
        await it.carriers[0].gone
        assert it.client.driver.carriers == 0


async def test_carriers_that_the_client_has_lost_are_dropped_by_the_gateway(
    native_world: MakeWorld,
) -> None:
    async def carriers() -> int:
        return it.gateways[0].driver.carriers

    async with asyncio.timeout(SECONDS), native_world() as it:
        await it.attach()
        await asyncio.gather(*(it.attach() for _ in range(3)))
        await eventually(carriers, lambda count: count == 4)
        it.client.driver.detach(2)
        await it.attach()
        await eventually(carriers, lambda count: count == 4)
        port = await it.listen(f"127.0.0.1:{await it.serve(echo)}")
        assert await whole(port, b"hello") == b"hello"


class Bridge(PumpedGatewayEnd):
    """Leads channels to one end of a socket pair, and echoes at the other."""

    def wanted(self, channel: int, target: str) -> None:
        """Connect what is there already."""
        self.wants.append(target)
        ours, theirs = socket.socketpair()
        self.driver.connect(channel, theirs)
        self.echoing = asyncio.ensure_future(self._echo(ours))

    async def _echo(self, ours: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=ours)
        await echo(reader, writer)


async def test_connections_that_others_have_made_are_led_to_each_other() -> None:
    client, gateway = Pump(), Pump()
    end = PumpedClientEnd(client)
    async with (
        asyncio.timeout(SECONDS),
        world(lambda: end, lambda: Bridge(gateway)) as it,
    ):
        await it.attach()
        channel = end.driver.open("terminal:any", hold_seconds=0.001)
        ours, theirs = socket.socketpair()
        end.driver.connect(channel, theirs)
        reader, writer = await asyncio.open_connection(sock=ours)
        content = secrets.token_bytes(SIZE // 8)
        writer.write(content)
        writer.write_eof()
        assert await reader.read() == content
        writer.close()
        await it.settled()
        await eventually(lambda: _of(end), lambda found: found == ([channel], [(channel, "")]))
        assert it.gateways[0].wants == ["terminal:any"]
        assert end.driver.bytes_read == end.driver.bytes_written == len(content)
    client.close()
    gateway.close()


async def _of(end: PumpedClientEnd) -> tuple[list[int], list[tuple[int, str]]]:
    return end.accepts, end.endings


async def test_a_listener_that_is_stopped_frees_its_address_and_keeps_its_connections() -> None:
    client, gateway = Pump(), Pump()
    end = PumpedClientEnd(client)
    async with (
        asyncio.timeout(SECONDS),
        world(lambda: end, lambda: PumpedGatewayEnd(gateway)) as it,
    ):
        await it.attach()
        plug = socket.create_server(("127.0.0.1", 0))
        address = plug.getsockname()
        listener = end.driver.listen(plug, f"127.0.0.1:{await it.serve(echo)}")
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        end.driver.stop_listening(listener)
        socket.create_server(address).close()
        writer.write(b"again")
        assert await reader.readexactly(5) == b"again"
        writer.close()
        await it.settled()
    client.close()
    gateway.close()
