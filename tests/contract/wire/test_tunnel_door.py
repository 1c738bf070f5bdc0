"""The door of tunnels: who shows no ticket does not stay, and keeps nobody out for long."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from chassis.errors import FairleadError
from chassis.listeners import ConnectionLimits, listen_on
from fairlead_tunnel.carriers import TunnelDesk, TunnelTicket
from fairlead_tunnel.records import Suite
from fairlead_tunnel.ticket import Grant, TicketKey
from fairlead_tunnel.tunnel_driver import TunnelDriver
from relay_gateway.tunnel_door import TunnelDoor
from tests.eventually import eventually

pytestmark = pytest.mark.asyncio


def _begin(grant: Grant) -> TunnelDriver:
    raise AssertionError("nobody has a ticket")


def made_desk() -> TunnelDesk:
    return TunnelDesk(
        tickets=TicketKey(secret=bytes(32), gateway_id="gtw_a"),
        private_key=bytes(range(32)),
        begin=_begin,
        unix_time=lambda: 0.0,
    )


def _hello() -> bytes:
    """A client's first bytes, with a ticket that was made up."""
    key = X25519PrivateKey.from_private_bytes(bytes(range(32))).public_key().public_bytes_raw()
    ticket = TunnelTicket(
        tunnel_id=bytes(16),
        ticket=bytes(64),
        psk=bytes(32),
        gateway_key=key,
        suite=Suite.AES_256_GCM,
    )
    return ticket.handshake()[1].hello(b"")


@asynccontextmanager
async def door(*, most_waiting: int, patience_seconds: float) -> AsyncIterator[int]:
    limits = ConnectionLimits(most=most_waiting, trusted=())
    subject = TunnelDoor(desk=made_desk(), limits=limits, patience_seconds=patience_seconds)
    async with asyncio.timeout(60), subject.serve("127.0.0.1:0") as port:
        yield port


async def ended(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("said", [b"", b"FLT\x01\x01\x01\x00"])
async def test_who_shows_no_ticket_in_time_is_dropped(said: bytes) -> None:
    async with door(most_waiting=4, patience_seconds=0.05) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(said)
        assert await ended(reader)
        writer.close()


async def test_silent_connections_lock_nobody_out() -> None:
    async with door(most_waiting=2, patience_seconds=3600.0) as port:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(6)]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(_hello())
        assert b"ticket" in await reader.read()  # it is read, and answered
        for each, _ in silent[:5]:
            assert await ended(each)
        writer.close()
        for _, other in silent:
            other.close()


async def test_the_end_of_the_door_drops_who_waits() -> None:
    async with door(most_waiting=2, patience_seconds=3600.0) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"FLT")
        waits = asyncio.ensure_future(ended(reader))
        assert await _is_met(port)
    assert await waits
    writer.close()


async def _is_met(port: int) -> bool:
    """Have one more connection met after those before: the listener takes them in order."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET")
    found = await ended(reader)
    writer.close()
    return found


async def test_a_port_that_is_in_use_is_a_typed_fault() -> None:
    async with door(most_waiting=2, patience_seconds=1.0) as port:
        with pytest.raises(FairleadError) as error:
            async with TunnelDoor(desk=made_desk()).serve(f"127.0.0.1:{port}"):
                pass
        assert str(port) in error.value.message


async def test_small_records_of_a_gateway_wait_for_no_acknowledgement() -> None:
    made: list[socket.socket] = []

    class Seen(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made.append(transport.get_extra_info("socket"))

    listener = listen_on("127.0.0.1:0")
    server = await asyncio.get_running_loop().create_server(Seen, sock=listener)
    async with server:
        _, writer = await asyncio.open_connection(*listener.getsockname())

        async def accepted() -> int:
            return len(made)

        await eventually(accepted)
        assert made[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        writer.close()
