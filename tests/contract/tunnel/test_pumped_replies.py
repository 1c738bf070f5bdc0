"""Connections of the native pump that are told when their target is there: SOCKS, for one."""

from __future__ import annotations

import asyncio
import socket

import pytest

pytest.importorskip("fairlead_native", reason="the native core is not built: make native")

from tests.contract.tunnel.pumped_ends import PumpedClientEnd, PumpedGatewayEnd
from tests.contract.tunnel.talks import echo
from tests.contract.tunnel.test_pumped_given_back import Waiting, ends, given, wants
from tests.eventually import SECONDS, eventually

pytestmark = pytest.mark.asyncio


def waiting(end: PumpedClientEnd, target: str, early: bytes = b"") -> socket.socket:
    """Open a channel and lead one end of a pair to it, which is told `there`."""
    channel = end.driver.open(target)
    ours, theirs = socket.socketpair()
    end.driver.connect(channel, theirs, early, b"there")
    return ours


async def test_the_reply_comes_before_what_the_target_says_and_early_bytes_ride_along() -> None:
    async with asyncio.timeout(SECONDS), ends(PumpedGatewayEnd) as (end, it):
        await it.attach()
        ours = waiting(end, f"127.0.0.1:{await it.serve(echo)}", b"early ")
        ours.sendall(b"bytes")
        ours.shutdown(socket.SHUT_WR)
        reader, writer = await asyncio.open_connection(sock=ours)
        assert await reader.read() == b"thereearly bytes"
        assert end.given == []
        writer.close()
        await it.settled()


async def test_it_is_given_back_with_the_reason_where_its_target_is_not_there() -> None:
    async with asyncio.timeout(SECONDS), ends(PumpedGatewayEnd) as (end, it):
        await it.attach()
        target = await it.serve(echo)
        it.servers.pop().close()
        ours = waiting(end, f"127.0.0.1:{target}", b"early")
        assert await eventually(lambda: given(end), bool) == [(1, b"early", "dial_refused")]
        end.connections[0].sendall(b"no")
        assert ours.recv(100) == b"no"
        assert end.endings == []
        ours.close()


async def test_a_tunnel_that_ends_gives_back_who_waits() -> None:
    async with asyncio.timeout(SECONDS), ends(Waiting) as (end, it):
        await it.attach()
        ours = waiting(end, "any", b"early")
        await eventually(lambda: wants(it), lambda count: count == 1)
        it.gateways[0].driver.close("drained", "The gateway ends.")
        assert await eventually(lambda: given(end), bool) == [(1, b"early", "drained")]
        ours.close()
