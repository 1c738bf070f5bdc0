"""The gateway's side of a port door, over TCP and over a Unix socket."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from chassis.errors import FairleadError
from relay_gateway.port_door import SocketDoors
from relay_gateway.session import PortDoor
from tests.fakes.port_door import GONE, PortDoorFake, Servers, open_door, open_servers


@pytest_asyncio.fixture(params=["tcp", "unix"])
async def door(request: pytest.FixtureRequest) -> AsyncIterator[PortDoorFake]:
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/door.sock" if request.param == "unix" else None
        async with open_door(path) as opened:
            yield opened


@pytest_asyncio.fixture
async def servers() -> AsyncIterator[Servers]:
    async with open_servers() as running:
        yield running


async def refusal(door: PortDoor) -> str:
    with pytest.raises(FairleadError) as caught:
        async with asyncio.timeout(10):
            await SocketDoors().enter(door)
    return caught.value.reason


@pytest.mark.asyncio
async def test_a_token_opens_one_connection(door: PortDoorFake, servers: Servers) -> None:
    token = door.token(servers.echo)
    reader, writer = await SocketDoors().enter(PortDoor(door.address, token))
    writer.write(b"hello")
    writer.write_eof()
    assert await reader.read() == b"hello"
    writer.close()
    assert await refusal(PortDoor(door.address, token)) == "door_refused"


@pytest.mark.asyncio
async def test_refusals(door: PortDoorFake, unused_tcp_port: int) -> None:
    assert await refusal(PortDoor(door.address, door.token(unused_tcp_port))) == "port_refused"
    door.statuses[unused_tcp_port] = GONE
    assert await refusal(PortDoor(door.address, door.token(unused_tcp_port))) == "sandbox_gone"
    door.statuses[unused_tcp_port] = 200
    assert await refusal(PortDoor(door.address, door.token(unused_tcp_port))) == "door_unreachable"
    assert await refusal(PortDoor(door.address, b"short")) == "door_refused"


@pytest.mark.asyncio
@pytest.mark.parametrize("address", ["", "nonsense", "unix:/nowhere", "127.0.0.1:1", "[::1]:x"])
async def test_no_door(address: str) -> None:
    assert await refusal(PortDoor(address, bytes(32))) == "door_unreachable"


@pytest.mark.asyncio
async def test_a_door_that_hangs_up_without_a_word() -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    assert await refusal(PortDoor(address, bytes(32))) == "door_unreachable"
    server.close()
