"""Ports of sandboxes: the worker connects inside, dials the gateway, and carries the bytes."""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from chassis.errors import FairleadError
from chassis.listeners import ConnectionLimits
from fairlead_tunnel.byte_channel import Side
from fairlead_tunnel.framed_port import FramedPort
from fairlead_tunnel.pump import Ending, Pump
from relay_gateway.worker_door import ExpectedStream, WorkerDoor
from tests.contract.wire.sandbox_room import (
    PYTHON,
    SandboxRoom,
    own_worker,
    room_in_process,
    room_settings,
)
from tests.eventually import SECONDS
from tests.fakes.walled import survey

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

_SYSTEM_PYTHON = "/usr/bin/python3"


@pytest.fixture
def sockets() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fls-") as directory:
        yield Path(directory)


@pytest_asyncio.fixture
async def room(tmp_path: Path, sockets: Path) -> AsyncIterator[SandboxRoom]:
    async with room_in_process(room_settings(tmp_path, sockets)) as room:
        yield room


@dataclass
class Gate:
    """A gateway's door, and where workers dial it."""

    door: WorkerDoor
    address: str


@pytest_asyncio.fixture(params=["unix", "tcp"])
async def gate(request: pytest.FixtureRequest, sockets: Path) -> AsyncIterator[Gate]:
    bind = f"unix:{sockets}/relay" if request.param == "unix" else "127.0.0.1:0"
    door = WorkerDoor()
    async with door.serve(bind) as address:
        yield Gate(door, address)


@dataclass
class Client:
    """A TCP connection that the opener's end of a channel carries."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    ending: asyncio.Task[Ending]


async def listening(
    room: SandboxRoom, address: str = "127.0.0.1", isolation: str = "process"
) -> tuple[str, int]:
    """A sandbox in which an echo server listens, and its port."""
    sandbox = await room.create(isolation=isolation)
    python = _SYSTEM_PYTHON if isolation == "walled" else PYTHON
    execution = await room.start(sandbox.sandbox_id, python, "-c", _ECHO, address)
    async for frame in room.frames(execution.execution_id):
        if frame.HasField("output"):
            return sandbox.sandbox_id, int(frame.output.content)
    raise AssertionError


@pytest.fixture(params=["process", "walled"])
def isolation(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The isolations of this machine: a walled sandbox has a loopback interface of its own."""
    if request.param == "walled":
        if not Path(_SYSTEM_PYTHON).exists():
            pytest.skip("needs the system's Python, which walled sandboxes see")
        survey(tmp_path)
    return str(request.param)


async def brought(
    gate: Gate, room: SandboxRoom, sandbox_id: str, port: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """What the worker brings for a port."""
    async with asyncio.timeout(SECONDS):
        with gate.door.expect() as expected:
            await room.open_port(sandbox_id, port, gate.address, expected.ticket)
            await expected.arrived()
            return expected.take()


@asynccontextmanager
async def opened(
    gate: Gate, room: SandboxRoom, sandbox_id: str, port: int
) -> AsyncIterator[Client]:
    """A channel to a port of a sandbox, as its client has it."""
    reader, writer = await brought(gate, room, sandbox_id, port)
    framed = FramedPort(reader=reader, writer=writer)
    pump = Pump(port=framed, side=Side.OPENER)
    running = asyncio.create_task(framed.run())
    carrying: asyncio.Future[asyncio.Task[Ending]] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        carrying.set_result(asyncio.create_task(pump.carry(reader, writer)))
        await carrying.result()

    async with AsyncExitStack() as stack:
        stack.callback(running.cancel)
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        stack.callback(server.close)
        here = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])
        stack.callback(here[1].close)
        yield Client(*here, await carrying)
        async with asyncio.timeout(SECONDS):
            await carrying.result()


async def refusal(gate: Gate, room: SandboxRoom, sandbox_id: str, port: int) -> str:
    with pytest.raises(FairleadError) as caught:
        await brought(gate, room, sandbox_id, port)
    return caught.value.reason


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
async def test_bytes_go_both_ways_with_half_close(
    gate: Gate, room: SandboxRoom, address: str, isolation: str
) -> None:
    sandbox_id, port = await listening(room, address, isolation)
    content = os.urandom(5_000_000)
    async with opened(gate, room, sandbox_id, port) as client:
        reading = asyncio.create_task(client.reader.read(-1))
        client.writer.write(content)
        await client.writer.drain()
        client.writer.write_eof()
        received = await reading
        assert received[-3:] == b"end"
        assert hashlib.sha256(received[:-3]).digest() == hashlib.sha256(content).digest()
        assert (await client.ending).reason == ""


async def test_fifty_connections_at_once_beside_one_that_is_not_read(
    gate: Gate, room: SandboxRoom
) -> None:
    sandbox_id, port = await listening(room)
    large = os.urandom(20_000_000)

    async def one(number: int) -> bool:
        content = bytes([number]) * 100_000
        async with opened(gate, room, sandbox_id, port) as client:
            client.writer.write(content)
            client.writer.write_eof()
            return await client.reader.read(-1) == content + b"end"

    async with opened(gate, room, sandbox_id, port) as slow:
        slow.writer.write(large)
        assert all(await asyncio.gather(*(one(number) for number in range(50))))
        slow.writer.write_eof()
        assert await slow.reader.read(-1) == large + b"end"


async def test_refusals_are_the_answer(gate: Gate, room: SandboxRoom) -> None:
    sandbox = await room.create()
    assert await refusal(gate, room, sandbox.sandbox_id, 9) == "port_refused"
    assert await refusal(gate, room, sandbox.sandbox_id, 0) == "argument_invalid"
    assert await refusal(gate, room, "sbx_" + "a" * 26, 80) == "sandbox_not_found"
    for address in ("", "nonsense", "unix:/nowhere", "127.0.0.1:1", "[::1]:x", "a:99999999"):
        sandbox_id, port = await listening(room)
        gate.address = address
        assert await refusal(gate, room, sandbox_id, port) == "gateway_unreachable"
    with pytest.raises(FairleadError) as caught:
        await room.open_port(sandbox_id, port, gate.address, b"short")
    assert caught.value.reason == "argument_invalid"


async def test_a_ticket_is_good_once_and_while_it_is_expected(
    gate: Gate, room: SandboxRoom
) -> None:
    sandbox_id, port = await listening(room)
    with gate.door.expect() as expected, gate.door.expect() as unused:
        await room.open_port(sandbox_id, port, gate.address, expected.ticket)
        await expected.arrived()
        _, first = expected.take()
    for ticket in (expected.ticket, unused.ticket, bytes(32)):
        with gate.door.expect() as other:
            # The worker has the connection, and the gateway hangs up on it.
            await room.open_port(sandbox_id, port, gate.address, ticket)
            with pytest.raises(RuntimeError):
                other.take()
    first.transport.abort()


async def test_a_connection_that_nobody_takes_is_dropped(gate: Gate) -> None:
    with gate.door.expect() as expected:
        reader, writer = await dial(gate)
        writer.write(expected.ticket)
        await expected.arrived()
    assert await ended(reader)
    writer.close()


async def dial(gate: Gate) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if gate.address.startswith("unix:"):
        return await asyncio.open_unix_connection(gate.address.removeprefix("unix:"))
    host, _, port = gate.address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def ended(reader: asyncio.StreamReader) -> bool:
    async with asyncio.timeout(SECONDS):
        try:
            return await reader.read() == b""
        except ConnectionError:
            return True


async def test_whoever_has_no_ticket_is_sent_away(gate: Gate) -> None:
    with gate.door.expect() as expected:
        for shown in (bytes(32), expected.ticket[:31]):
            reader, writer = await dial(gate)
            writer.write(shown)
            writer.write_eof()
            assert await ended(reader)
            writer.close()
        # The ticket was not used up by a part of it.
        _, writer = await dial(gate)
        writer.write(expected.ticket)
        await expected.arrived()
        writer.close()


async def test_those_that_say_nothing_are_bounded_in_number_and_time(sockets: Path) -> None:
    door = WorkerDoor(
        most_expected=1, limits=ConnectionLimits(most=2, trusted=()), patience_seconds=3600.0
    )
    async with door.serve("127.0.0.1:0") as address:
        silent = [await dial(Gate(door, address)) for _ in range(3)]
        with door.expect() as expected:
            silent.append(await dial(Gate(door, address)))
            silent[-1][1].write(expected.ticket)
            await expected.arrived()
        with door.expect(), pytest.raises(FairleadError) as caught:
            await take_another(door)
        assert caught.value.reason == "too_many_openings"
        for reader, _ in silent[:2]:
            assert await ended(reader)  # the oldest made room for the newest
    hasty = WorkerDoor(patience_seconds=0.05)
    async with hasty.serve(f"unix:{sockets}/relay") as address:
        silent.append(await dial(Gate(hasty, address)))
        assert await ended(silent[-1][0])
    for _, writer in silent:
        writer.close()


async def take_another(door: WorkerDoor) -> ExpectedStream:
    with door.expect() as expected:
        return expected


async def test_a_released_sandbox_resets_its_connections(
    gate: Gate, room: SandboxRoom, isolation: str
) -> None:
    sandbox_id, port = await listening(room, isolation=isolation)
    async with opened(gate, room, sandbox_id, port) as client:
        client.writer.write(b"x")
        assert await client.reader.readexactly(1) == b"x"
        await room.release(sandbox_id)
        assert (await client.ending).reason in ("sandbox_released", "connection_reset")
        with pytest.raises(ConnectionResetError):
            await client.reader.read(-1)
    assert await refusal(gate, room, sandbox_id, port) == "sandbox_not_found"


async def test_a_worker_that_is_killed_never_looks_like_an_end(
    gate: Gate, tmp_path: Path, sockets: Path
) -> None:
    async with own_worker(room_settings(tmp_path, sockets)) as (worker, room):
        sandbox_id, port = await listening(room)
        async with opened(gate, room, sandbox_id, port) as client:
            client.writer.write(b"x")
            assert await client.reader.readexactly(1) == b"x"
            worker.kill()
            assert (await client.ending).reason == "channel_lost"
            with pytest.raises(ConnectionResetError):
                await client.reader.read(-1)


async def test_a_gateway_that_goes_resets_the_program_in_the_sandbox(
    gate: Gate, room: SandboxRoom
) -> None:
    sandbox = await room.create()
    execution = await room.start(sandbox.sandbox_id, PYTHON, "-c", _SAYS_HOW_IT_ENDS)
    said = b""
    async for frame in room.frames(execution.execution_id):
        if not frame.HasField("output"):
            continue
        said += frame.output.content
        if said.count(b"\n") == 1:
            _, writer = await brought(gate, room, sandbox.sandbox_id, int(said))
            writer.transport.abort()
        elif said.count(b"\n") == 2:
            break
    assert said.endswith(b"ConnectionResetError\n")


_SAYS_HOW_IT_ENDS = """
import socket
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
connection = listener.accept()[0]
try:
    print(connection.recv(1), flush=True)
except OSError as error:
    print(type(error).__name__, flush=True)
"""
