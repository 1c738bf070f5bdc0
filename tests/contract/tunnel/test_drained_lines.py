"""A gateway that is about to stop: what is open goes on, what is new goes through another one."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from fairlead_sdk.session_records import SessionClosed
from fairlead_tunnel.targets import Target
from fairlead_tunnel.tunnel import CHANNEL_WINDOW
from tests.contract.tunnel.line_world import Exit, Gateway, World, echo, world
from tests.contract.tunnel.test_lines import CONTENT, echoed, echoed_by, listening
from tests.contract.tunnel.test_socks import DONE, request
from tests.eventually import SECONDS, eventually

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("runs_on")]


@asynccontextmanager
async def draining(it: World) -> AsyncIterator[tuple[Exit, Gateway]]:
    """Have the world's gateway drain, and another one that new tunnels lead to."""
    other = Gateway()
    await other.start()
    it.exit.is_draining = True
    before, it.mesh.gateway = it.exit, other
    try:
        yield before, other
    finally:
        for each in other.exits:
            each.driver.close("closed", "The test has ended.")
        await other.stop()


async def test_what_is_new_goes_through_another_gateway_and_what_is_open_goes_on() -> None:
    async with asyncio.timeout(SECONDS), world() as it:
        port = await listening(it)
        held = await asyncio.open_connection("127.0.0.1", port)
        held[1].write(b"x")
        assert await held[0].readexactly(1) == b"x"
        async with draining(it) as (before, other):
            found = await asyncio.gather(*(echoed(port, bytes([each])) for each in range(50)))
            assert found == [bytes([each]) for each in range(50)]
            assert await echoed_by(*held, CONTENT) == CONTENT
            assert before.endings.count("gateway_draining") <= 50
            assert len(other.exits) == 1
            assert it.refusals == []
            it.mesh.closed["ses_0"] = SessionClosed("drained", retryable=True)
            before.driver.close("drained", "The gateway stops.")
            assert await echoed(port, CONTENT) == CONTENT
            assert it.line.session_id == "ses_1"


async def test_a_client_of_socks_is_answered_by_the_other_gateway() -> None:
    async with asyncio.timeout(SECONDS), world() as it:
        port = await it.serve(echo)
        proxy = await it.ports.listen_socks(host="127.0.0.1", port=0, credentials=None)
        async with draining(it):
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy)
            writer.write(request("exit.test", port) + b"early")
            assert await reader.readexactly(12) == b"\x05\x00" + DONE
            assert await echoed_by(reader, writer, CONTENT) == b"early" + CONTENT
            assert it.refusals == []


async def test_a_client_of_socks_that_has_not_asked_yet_never_meets_the_gateway_that_drains() -> (
    None
):
    async with asyncio.timeout(SECONDS), world() as it:
        port, target = await listening(it), await it.serve(echo)
        proxy = await it.ports.listen_socks(host="127.0.0.1", port=0, credentials=None)
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy)
        asking = request("exit.test", target)
        writer.write(asking[:9])
        assert await reader.readexactly(2) == b"\x05\x00"
        async with draining(it) as (before, _):
            assert await echoed(port) == b"hello"
            writer.write(asking[9:])
            assert await reader.readexactly(len(DONE)) == DONE
            assert await echoed_by(reader, writer, CONTENT) == CONTENT
            assert f"tcp:exit.test:{target}" not in before.wants
            assert it.refusals == []


async def test_a_connection_that_has_ended_its_direction_is_taken_along() -> None:
    async with asyncio.timeout(SECONDS), world() as it:
        port = await it.serve(echo)
        proxy = await it.ports.listen_socks(host="127.0.0.1", port=0, credentials=None)
        async with draining(it):
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy)
            writer.write(request("exit.test", port) + b"early")
            writer.write_eof()
            assert await reader.read() == b"\x05\x00" + DONE + b"early"
            writer.close()


async def test_a_connection_that_has_sent_all_that_a_channel_takes_is_taken_along() -> None:
    content = secrets.token_bytes(12 * 1024 * 1024)
    async with asyncio.timeout(SECONDS), world() as it:
        port = await listening(it)
        it.exit.dials.clear()
        asking = asyncio.ensure_future(echoed(port, content))

        async def early() -> int:
            streams = it.exit.driver._streams.values()
            return sum(len(piece) for stream in streams for piece in stream.early)

        await eventually(early, CHANNEL_WINDOW.__eq__)
        before = it.exit
        async with draining(it):
            before.driver.refuse(1, "gateway_draining", "The gateway takes nothing new.")
            assert await asking == content
        assert it.refusals == []


async def test_a_client_of_socks_that_has_sent_much_is_taken_along() -> None:
    async with asyncio.timeout(SECONDS), world() as it:
        port = await it.serve(echo)
        proxy = await it.ports.listen_socks(host="127.0.0.1", port=0, credentials=None)
        it.exit.dials.clear()
        refuse = it.exit.driver.refuse
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy)
        writer.write(request("exit.test", port) + CONTENT)

        async def early() -> int:
            streams = it.exit.driver._streams.values()
            return sum(len(piece) for stream in streams for piece in stream.early)

        await eventually(early, lambda count: count >= 64 * 1024)
        async with draining(it):
            refuse(1, "gateway_draining", "The gateway takes nothing new.")
            assert await reader.readexactly(12) == b"\x05\x00" + DONE
            assert await echoed_by(reader, writer, b"") == CONTENT
        assert it.refusals == []


async def test_gateways_that_drain_one_after_the_other_are_left_one_after_the_other() -> None:
    async with asyncio.timeout(SECONDS), world() as it:
        target = Target(await it.serve(echo))
        port = await it.ports.listen(target, host="127.0.0.1", port=0)
        async with draining(it) as (_, other):
            assert await echoed(port) == b"hello"
            other.exits[0].is_draining = True
            assert await echoed(port) == b"hello"
            assert len(other.exits) == 2
