"""Batches over the wire: commands and files in one call, and what a lost worker leaves of one."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from chassis.errors import FairleadError
from chassis.rpc_errors import neighbour_errors
from fairlead.execution.v1 import execution_pb2 as pb
from fairlead.file.v1 import file_pb2
from tests.contract.wire.sandbox_room import (
    PYTHON,
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


def shell(script: str) -> pb.BatchItem:
    return pb.BatchItem(command=pb.Command(arguments=["sh", "-c", script]))


async def batch(
    room: SandboxRoom, sandbox_id: str, *items: pb.BatchItem, key: str = "", go_on: bool = False
) -> Sequence[pb.BatchOutcome]:
    with neighbour_errors("worker"):
        answer = await room.executions.RunBatch(
            pb.RunBatchRequest(
                tenant=TENANT,
                idempotency_key=key,
                sandbox_id=sandbox_id,
                items=items,
                continue_on_failure=go_on,
            )
        )
    return answer.outcomes


async def test_commands_and_files_in_one_call(room: SandboxRoom) -> None:
    sandbox = await room.bound()
    write = file_pb2.FileOperation(
        write=file_pb2.WriteOperation(path=b"src/in", content=b"hello", parents=True)
    )
    read = file_pb2.FileOperation(read=file_pb2.ReadOperation(path=b"src/out"))
    outcomes = await batch(
        room,
        sandbox.sandbox_id,
        pb.BatchItem(file=write),
        shell("tr a-z A-Z < src/in > src/out; echo done; echo warned >&2"),
        pb.BatchItem(file=read),
        shell("exit 3"),
        shell("echo never"),
    )
    assert [outcome.state for outcome in outcomes] == [
        pb.BATCH_STATE_SUCCEEDED,
        pb.BATCH_STATE_SUCCEEDED,
        pb.BATCH_STATE_SUCCEEDED,
        pb.BATCH_STATE_FAILED,
        pb.BATCH_STATE_SKIPPED,
    ]
    assert (outcomes[1].stdout, outcomes[1].stderr) == (b"done\n", b"warned\n")
    assert outcomes[2].file.content == b"HELLO"
    assert outcomes[3].execution.exit.code == 3
    seen = await room.output(outcomes[1].execution.execution_id)
    assert seen.exit == outcomes[1].execution.exit


async def test_an_output_that_floods_is_read_to_its_end(tmp_path: Path, sockets: Path) -> None:
    settings = room_settings(tmp_path, sockets, journal_bytes=1024 * 1024)
    async with room_in_process(settings) as room:
        sandbox = await room.create()
        item = pb.BatchItem(
            command=pb.Command(
                arguments=[PYTHON, "-c", "print('x' * 4_000_000); print('end')"],
                on_full=pb.ON_FULL_BLOCK,
            )
        )
        (outcome,) = await batch(room, sandbox.sandbox_id, item)
        assert outcome.state == pb.BATCH_STATE_SUCCEEDED
        assert outcome.stdout.endswith(b"x\nend\n")
        assert outcome.truncated


async def test_a_retry_gets_what_the_first_call_did(room: SandboxRoom) -> None:
    sandbox = await room.create()
    items = (shell("echo run >> $HOME/runs"), shell("cat $HOME/runs"))
    answers = await asyncio.gather(
        *(batch(room, sandbox.sandbox_id, *items, key="one") for _ in range(4))
    )
    again = await batch(room, sandbox.sandbox_id, *items, key="one")
    for outcomes in (*answers, again):
        assert outcomes[1].stdout == b"run\n"
        assert list(outcomes) == list(again)
    with pytest.raises(FairleadError) as caught:
        await batch(room, sandbox.sandbox_id, *items, key="one", go_on=True)
    assert caught.value.reason == "idempotency_conflict"


async def test_what_is_no_work(room: SandboxRoom) -> None:
    sandbox = await room.create()
    for items, reason in (
        ((pb.BatchItem(),), "batch_invalid"),
        ((), "batch_invalid"),
        ((pb.BatchItem(command=pb.Command()),), "command_invalid"),
    ):
        with pytest.raises(FairleadError) as caught:
            await batch(room, sandbox.sandbox_id, *items)
        assert caught.value.reason == reason
