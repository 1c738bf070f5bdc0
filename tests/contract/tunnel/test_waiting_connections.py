"""Connections that come while the gateway is away, or is killed before it has heard of them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from fairlead_sdk.errors import Unavailable
from fairlead_sdk.session_records import SessionClosed
from fairlead_tunnel.frames import Open, decode
from fairlead_tunnel.record_stream import RecordStream
from fairlead_tunnel.tunnel_driver import TunnelDriver
from tests.contract.tunnel.line_world import Gateway, World, echo, world
from tests.contract.tunnel.test_lines import CONTENT, echoed, echoed_by, listening, said
from tests.contract.tunnel.test_socks import CREDENTIALS, DONE, request
from tests.eventually import SECONDS, eventually

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("runs_on")]
GREETING = b"\x05\x01\x02"
SHOWN = b"\x01\x03ada\x06enigma"


async def killed(it: World) -> None:
    """Have the gateway start anew: it knows none of its tunnels any more."""
    await it.gateway.stop()
    await it.gateway.start()


async def taken(it: World, count: int) -> None:
    """Wait until so many local connections are there."""

    async def connections() -> int:
        return it.ports.traffic.connections

    await eventually(connections, count.__eq__)


async def test_what_comes_while_a_killed_gateway_is_away_goes_through_the_next_tunnel() -> None:
    async with asyncio.timeout(SECONDS), world() as it:
        port = await listening(it)
        await it.gateway.stop()
        await said(it, "away")
        receiving = [asyncio.ensure_future(echoed(port, CONTENT)) for _ in range(4)]
        await taken(it, 4)
        await it.gateway.start()
        assert await asyncio.gather(*receiving) == [CONTENT] * 4
        assert it.mesh.opened == ["ses_0", "ses_1"]
        assert it.refusals == []
        assert [len(each.wants) for each in it.gateway.exits] == [0, 4]


async def test_a_client_of_socks_that_comes_meanwhile_is_answered_then() -> None:
    async with asyncio.timeout(SECONDS), world() as it:
        target = await it.serve(echo)
        proxy = await it.ports.listen_socks(host="127.0.0.1", port=0, credentials=None)
        await it.gateway.stop()
        await said(it, "away")
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy)
        writer.write(request("exit.test", target) + b"early")
        assert await reader.readexactly(2) == b"\x05\x00"
        await it.gateway.start()
        assert await reader.readexactly(len(DONE)) == DONE
        assert await echoed_by(reader, writer, CONTENT) == b"early" + CONTENT
        assert it.refusals == []


@pytest.mark.parametrize("begun", [b"", b"\x05", GREETING, GREETING + SHOWN[:3], GREETING + SHOWN])
async def test_a_client_of_socks_that_has_not_asked_yet_goes_on_in_the_next_tunnel(
    begun: bytes,
) -> None:
    async with asyncio.timeout(SECONDS), world() as it:
        target = await it.serve(echo)
        proxy = await it.ports.listen_socks(host="127.0.0.1", port=0, credentials=CREDENTIALS)
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy)
        writer.write(begun)
        await taken(it, 1)
        await killed(it)
        await said(it, "another tunnel is there")
        whole = GREETING + SHOWN + request("exit.test", target)[3:] + b"early"
        writer.write(whole[len(begun) :])
        assert await reader.readexactly(4 + len(DONE)) == b"\x05\x02\x01\x00" + DONE
        assert await echoed_by(reader, writer, CONTENT) == b"early" + CONTENT
        assert it.refusals == []
        await it.ports.traffic.wait_idle()


@pytest.mark.parametrize("size", [5, 60_000])
async def test_an_open_that_no_carrier_took_is_made_in_the_next_tunnel(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What a pump has not sent is given back: test_pumped_given_back.
    monkeypatch.setenv("FAIRLEAD_TUNNEL_PUMP", "python")
    content = secrets.token_bytes(size)
    async with asyncio.timeout(SECONDS), world() as it:
        port = await listening(it)
        with monkeypatch.context() as context:
            context.setattr(RecordStream, "can_send", False)
            receiving = asyncio.ensure_future(echoed(port, content))
            await eventually(lambda: _open_here(it))
            await it.gateway.stop()
        await it.gateway.start()
        assert await receiving == content
        assert it.refusals == []
        assert [len(each.wants) for each in it.gateway.exits] == [0, 1]


async def _open_here(it: World) -> int:
    client = it.line._client
    assert client is not None
    return client.driver.channels


async def test_an_open_that_a_carrier_took_is_never_made_again() -> None:
    async with asyncio.timeout(SECONDS), world() as it:
        port = await listening(it)
        it.exit.dials.clear()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"once")

        async def wants() -> int:
            return len(it.exit.wants)

        await eventually(wants)
        await killed(it)
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()
        assert await echoed(port) == b"hello"
        assert [len(each.wants) for each in it.gateway.exits] == [1, 1]


async def test_a_later_hello_tells_of_no_channel_that_nobody_has_heard_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    greet, hellos = TunnelDriver.hello_batch, list[bytes]()

    def hello_batch(driver: TunnelDriver, number: int, most: int) -> bytes:
        hellos.append(greet(driver, number, most))
        return hellos[-1]

    monkeypatch.setenv("FAIRLEAD_TUNNEL_PUMP", "python")
    monkeypatch.setattr(TunnelDriver, "hello_batch", hello_batch)
    async with asyncio.timeout(SECONDS), world() as it:
        port = await listening(it)
        with monkeypatch.context() as context:
            context.setattr(RecordStream, "can_send", False)
            receiving = asyncio.ensure_future(echoed(port))
            await eventually(lambda: _open_here(it))
            await it.gateway.stop()
        await it.gateway.listen()
        assert await receiving == b"hello"
        assert it.mesh.opened == ["ses_0"]
        frames = [frame for batch in hellos[1:] for frame in decode(batch)[2]]
        assert frames
        assert not any(isinstance(each, Open) for each in frames)


async def test_who_waits_when_the_line_ends_is_reset() -> None:
    async with asyncio.timeout(SECONDS):
        async with world() as it:
            port = await listening(it)
            await it.gateway.stop()
            await said(it, "away")
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"hello")
            await taken(it, 1)
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()


@asynccontextmanager
async def another(it: World) -> AsyncIterator[Gateway]:
    """Have the mesh give tunnels to another gateway from now on."""
    other = Gateway()
    await other.start()
    it.mesh.gateway = other
    try:
        yield other
    finally:
        for each in other.exits:
            each.driver.close("closed", "The test has ended.")
        await other.stop()


async def test_a_gateway_that_stays_away_is_left_by_who_is_new() -> None:
    async with asyncio.timeout(SECONDS), world(away_seconds=0.05) as it, another(it) as other:
        port = await listening(it)
        held = await asyncio.open_connection("127.0.0.1", port)
        held[1].write(b"x")
        assert await held[0].readexactly(1) == b"x"
        await it.gateway.stop()
        assert await asyncio.gather(*(echoed(port, CONTENT) for _ in range(4))) == [CONTENT] * 4
        assert it.mesh.opened == ["ses_0", "ses_1"]
        assert "the gateway stays away; another tunnel is opened." in it.said
        assert it.refusals == []
        await it.gateway.listen()  # what was open went on waiting for it
        assert await echoed_by(*held, CONTENT) == CONTENT
        assert [len(each.exits) for each in (it.gateway, other)] == [1, 1]
        assert list(await eventually(lambda: _closed(it), bool)) == ["ses_0"]


async def _closed(it: World) -> dict[str, object]:
    return {**it.mesh.closed}


async def test_what_a_gateway_has_that_does_not_come_back_is_reset_when_the_mesh_knows() -> None:
    async with asyncio.timeout(SECONDS), world(away_seconds=0.05) as it, another(it):
        port = await listening(it)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        await it.gateway.stop()
        assert await echoed(port) == b"hello"
        it.mesh.closed["ses_0"] = SessionClosed("gateway_lost", retryable=True)
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()
        assert await echoed(port) == b"hello"


async def test_nobody_leaves_a_gateway_for_which_nobody_waits() -> None:
    async with asyncio.timeout(SECONDS), world(away_seconds=0.0) as it, another(it) as other:
        port = await listening(it)
        await it.gateway.stop()
        await said(it, "away")
        await it.gateway.listen()
        await said(it, "back")
        assert await echoed(port) == b"hello"
        assert it.mesh.opened == ["ses_0"]
        assert other.exits == []


async def test_a_gateway_that_is_back_before_there_is_another_is_used_at_once() -> None:
    async with asyncio.timeout(SECONDS), world(away_seconds=0.0) as it:
        port = await listening(it)
        await it.gateway.stop()
        await said(it, "away")
        away = Unavailable("There is no gateway.", reason="gateway_unavailable")
        it.mesh.refusals = [away] * 1000
        receiving = asyncio.ensure_future(echoed(port, CONTENT))
        await said(it, "another tunnel is opened")
        await it.gateway.listen()
        assert await receiving == CONTENT
        assert it.mesh.opened == ["ses_0"]
