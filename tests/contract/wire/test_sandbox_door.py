"""The port door: a token opens one connection into a sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from chassis.errors import FairleadError
from fairlead.sandbox.v1 import sandbox_pb2
from tests.contract.wire.sandbox_room import PYTHON, SandboxRoom, room_in_process, room_settings
from tests.eventually import eventually

pytestmark = pytest.mark.asyncio

_ECHO = """
import socket, sys, threading
family = socket.AF_INET6 if sys.argv[1] == "::1" else socket.AF_INET
listener = socket.socket(family)
listener.bind((sys.argv[1], 0))
listener.listen()
print(listener.getsockname()[1], flush=True)
def serve(connection):
    while content := connection.recv(65536):
        connection.sendall(content)
    connection.sendall(b"end")
    connection.close()
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
def sockets() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fls-") as directory:
        yield Path(directory)


@pytest_asyncio.fixture
async def room(tmp_path: Path, sockets: Path) -> AsyncIterator[SandboxRoom]:
    async with room_in_process(room_settings(tmp_path, sockets)) as room:
        yield room


async def listening(room: SandboxRoom, address: str = "127.0.0.1") -> tuple[str, int]:
    """A sandbox in which an echo server listens, and its port."""
    sandbox = await room.create()
    execution = await room.start(sandbox.sandbox_id, PYTHON, "-c", _ECHO, address)
    async for frame in room.frames(execution.execution_id):
        if frame.HasField("output"):
            return sandbox.sandbox_id, int(frame.output.content)
    raise AssertionError


async def dial(opened: sandbox_pb2.OpenPortResponse) -> Streams:
    if opened.address.startswith("unix:"):
        return await asyncio.open_unix_connection(opened.address.removeprefix("unix:"))
    host, _, port = opened.address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def enter(opened: sandbox_pb2.OpenPortResponse) -> tuple[int, Streams]:
    reader, writer = await dial(opened)
    writer.write(opened.token)
    return (await reader.readexactly(1))[0], (reader, writer)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
async def test_bytes_go_both_ways_with_half_close(room: SandboxRoom, address: str) -> None:
    sandbox_id, port = await listening(room, address)
    status, (reader, writer) = await enter(await room.open_port(sandbox_id, port))
    assert status == 0
    content = os.urandom(5_000_000)
    reading = asyncio.create_task(reader.read(-1))
    writer.write(content)
    await writer.drain()
    writer.write_eof()
    received = await reading
    assert received[-3:] == b"end"
    assert hashlib.sha256(received[:-3]).digest() == hashlib.sha256(content).digest()
    writer.close()


async def test_over_tcp(tmp_path: Path, sockets: Path) -> None:
    settings = room_settings(tmp_path, sockets, door_bind="127.0.0.1:0")
    async with room_in_process(settings) as room:
        sandbox_id, port = await listening(room)
        opened = await room.open_port(sandbox_id, port)
        assert opened.address.startswith("127.0.0.1:")
        status, (_, writer) = await enter(opened)
        assert status == 0
        writer.close()


async def test_a_token_is_good_once(room: SandboxRoom) -> None:
    sandbox_id, port = await listening(room)
    opened = await room.open_port(sandbox_id, port)
    assert len(opened.token) == 32
    first, (_, one) = await enter(opened)
    second, (_, other) = await enter(opened)
    assert (first, second) == (0, 1)
    unknown, (_, third) = await enter(
        sandbox_pb2.OpenPortResponse(address=opened.address, token=bytes(32))
    )
    assert unknown == 1
    for writer in (one, other, third):
        writer.close()


async def test_many_connections_at_once(room: SandboxRoom) -> None:
    sandbox_id, port = await listening(room)

    async def one(number: int) -> bool:
        status, (reader, writer) = await enter(await room.open_port(sandbox_id, port))
        content = bytes([number]) * 100_000
        reading = asyncio.create_task(reader.read(-1))
        writer.write(content)
        writer.write_eof()
        received = await reading
        writer.close()
        return status == 0 and received == content + b"end"

    assert all(await asyncio.gather(*(one(number) for number in range(40))))


async def test_nothing_listens(room: SandboxRoom) -> None:
    sandbox = await room.create()
    status, (_, writer) = await enter(await room.open_port(sandbox.sandbox_id, 9))
    assert status == 2
    writer.close()
    with pytest.raises(FairleadError) as caught:
        await room.open_port(sandbox.sandbox_id, 0)
    assert caught.value.reason == "argument_invalid"


async def test_a_released_sandbox_ends_its_connections(room: SandboxRoom) -> None:
    sandbox_id, port = await listening(room)
    unused = await room.open_port(sandbox_id, port)
    status, (reader, writer) = await enter(await room.open_port(sandbox_id, port))
    assert status == 0
    writer.write(b"x")
    assert await reader.readexactly(1) == b"x"
    await room.release(sandbox_id)
    with contextlib.suppress(ConnectionError):
        assert await reader.read(-1) == b""
    writer.close()
    late, (_, other) = await enter(unused)
    assert late == 3
    other.close()


async def test_whoever_sends_no_token_is_sent_away(room: SandboxRoom) -> None:
    sandbox_id, port = await listening(room)
    opened = await room.open_port(sandbox_id, port)
    reader, writer = await dial(opened)
    writer.write(opened.token[:31])
    writer.write_eof()
    assert await reader.read(-1) == b""
    writer.close()
    # The token was not used up by a part of it.
    status, (_, other) = await enter(opened)
    assert status == 0
    other.close()


async def test_the_waiting_are_bounded_in_number_and_time(room: SandboxRoom) -> None:
    sandbox_id, port = await listening(room)
    opened = await room.open_port(sandbox_id, port)
    idle = [await dial(opened) for _ in range(256)]
    await asyncio.sleep(0.1)
    reader, writer = await dial(opened)
    writer.write(opened.token)
    with contextlib.suppress(ConnectionError):
        assert await reader.read(1) == b""
    writer.close()

    async def ended() -> bool:
        return all(stream.at_eof() for stream, _ in idle)

    await eventually(ended)
    for _, each in idle:
        each.close()
    status, (_, last) = await enter(opened)
    assert status == 0
    last.close()
