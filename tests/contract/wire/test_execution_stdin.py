"""Standard input over the wire: offsets make retries harmless."""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from chassis.errors import FairleadError
from chassis.rpc_errors import neighbour_errors
from fairlead.execution.v1 import execution_pb2
from tests.contract.wire.sandbox_room import (
    TENANT,
    SandboxRoom,
    room_in_process,
    room_settings,
)

pytestmark = pytest.mark.asyncio


@pytest.fixture
def sockets() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fls-") as directory:
        yield Path(directory)


@pytest_asyncio.fixture
async def room(tmp_path: Path, sockets: Path) -> AsyncIterator[SandboxRoom]:
    async with room_in_process(room_settings(tmp_path, sockets)) as room:
        yield room


async def test_without_stdin_it_reads_end_of_file(room: SandboxRoom) -> None:
    sandbox = await room.create()
    execution = await room.start(sandbox.sandbox_id, "sh", "-c", "cat; echo end")
    assert (await room.output(execution.execution_id)).stdout == b"end\n"
    with pytest.raises(FairleadError) as caught:
        await room.write(execution.execution_id, 0, b"x")
    assert caught.value.reason == "stdin_closed"


async def test_binary_stdin_makes_the_round_trip(room: SandboxRoom) -> None:
    sandbox = await room.create()
    content = os.urandom(3_000_001)
    execution = await room.start(sandbox.sandbox_id, "cat", stdin=True)
    watching = asyncio.create_task(room.output(execution.execution_id))
    offset = 0
    while offset < len(content):
        piece = content[offset : offset + 200_000]
        offset = await room.write(execution.execution_id, offset, piece)
        # A retry of the same bytes, and of some of them, writes nothing twice.
        assert await room.write(execution.execution_id, offset - 7, content[offset - 7 : offset])
    assert await room.write(execution.execution_id, offset, b"", close=True) == len(content)
    output = await watching
    assert hashlib.sha256(output.stdout).digest() == hashlib.sha256(content).digest()


async def test_stdin_offsets(room: SandboxRoom) -> None:
    sandbox = await room.create()
    execution = await room.start(sandbox.sandbox_id, "cat", stdin=True)
    assert await room.write(execution.execution_id, 0, b"abc") == 3
    assert await room.write(execution.execution_id, 1, b"bcdef") == 6
    with pytest.raises(FairleadError) as caught:
        await room.write(execution.execution_id, 7, b"h")
    assert caught.value.reason == "stdin_offset_invalid"
    assert caught.value.fields["expected_offset"] == "6"
    assert await room.write(execution.execution_id, 6, b"g", close=True) == 7
    assert await room.write(execution.execution_id, 6, b"g", close=True) == 7
    assert (await room.output(execution.execution_id)).stdout == b"abcdefg"
    with pytest.raises(FairleadError) as caught:
        await room.write(execution.execution_id, 7, b"h")
    assert caught.value.reason == "stdin_closed"


async def test_a_write_that_waits_ends_with_the_program(room: SandboxRoom) -> None:
    sandbox = await room.create()
    # The child keeps the pipe open, so that only the end of the execution can end the write.
    execution = await room.start(sandbox.sandbox_id, "sh", "-c", "sleep 30 & sleep 0.3", stdin=True)
    with pytest.raises(FairleadError) as caught:
        await room.write(execution.execution_id, 0, b"x" * 200_000)
    assert caught.value.reason == "stdin_closed"


async def test_too_much_stdin_at_once(room: SandboxRoom) -> None:
    sandbox = await room.create()
    execution = await room.start(sandbox.sandbox_id, "cat", stdin=True)
    for offset, content, reason in (
        (0, b"x" * (256 * 1024 + 1), "stdin_too_large"),
        (-1, b"", "offset_invalid"),
    ):
        with pytest.raises(FairleadError) as caught:
            await room.write(execution.execution_id, offset, content)
        assert caught.value.reason == reason
    with neighbour_errors("worker"):
        answer = await room.executions.GetExecution(
            execution_pb2.GetExecutionRequest(tenant=TENANT, execution_id=execution.execution_id)
        )
    assert answer.execution.state == execution_pb2.EXECUTION_STATE_RUNNING
    assert not answer.execution.HasField("exit")
