"""Output over the wire: every byte once, in order, and then exactly one exit."""

from __future__ import annotations

import asyncio
import hashlib
import random
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from chassis.errors import FairleadError
from chassis.ids import random_id
from fairlead.execution.v1 import execution_pb2
from tests.contract.wire.sandbox_room import (
    PYTHON,
    Output,
    SandboxRoom,
    processes_with,
    room_in_process,
    room_settings,
)
from tests.eventually import eventually

pytestmark = pytest.mark.asyncio

_INTERLEAVED = """
import hashlib, os, random, sys
source = random.Random(5)
sums = {1: hashlib.sha256(), 2: hashlib.sha256()}
left = int(sys.argv[1])
while left:
    size = min(left, source.choice((1, 7, 100, 4096, 65536, 200000)))
    stream, content = source.choice((1, 2)), source.randbytes(size)
    sums[stream].update(content)
    while content:
        content = content[os.write(stream, content):]
    left -= size
os.write(1, sums[1].hexdigest().encode())
os.write(2, sums[2].hexdigest().encode())
"""
_SIZE = 20_000_000


@pytest.fixture
def sockets() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fls-") as directory:
        yield Path(directory)


@pytest_asyncio.fixture
async def room(tmp_path: Path, sockets: Path) -> AsyncIterator[SandboxRoom]:
    async with room_in_process(room_settings(tmp_path, sockets)) as room:
        yield room


def check_sums(stdout: bytes, stderr: bytes, size: int) -> None:
    """Check each stream against the sum that the program wrote at its end."""
    assert len(stdout) + len(stderr) == size + 128
    for stream in (stdout, stderr):
        assert hashlib.sha256(stream[:-64]).hexdigest().encode() == stream[-64:]


async def test_every_byte_once_for_a_watcher_that_reconnects(room: SandboxRoom) -> None:
    sandbox = await room.create()
    execution = await room.start(sandbox.sandbox_id, PYTHON, "-c", _INTERLEAVED, str(_SIZE))
    streams = {1: bytearray(), 2: bytearray()}
    cuts = random.Random(7)  # noqa: S311
    after = 0
    exits: list[execution_pb2.Exit] = []
    connections = 0
    while not exits:
        connections += 1
        patience = cuts.randrange(1, 6) if connections <= 10 else 10**9
        async for frame in room.frames(execution.execution_id, after):
            if frame.HasField("output"):
                assert frame.output.sequence == after + 1
                assert len(frame.output.content) <= 256 * 1024
                after = frame.output.sequence
                streams[frame.output.stream] += frame.output.content
                patience -= 1
                if patience == 0:
                    break
            elif frame.HasField("exit"):
                exits.append(frame.exit)
    assert connections == 11
    assert exits[0].code == 0
    assert exits[0].last_sequence == after
    check_sums(bytes(streams[1]), bytes(streams[2]), _SIZE)
    # And once more, from the journal alone.
    again = await room.output(execution.execution_id)
    assert list(again.sequences) == list(range(1, after + 1))
    check_sums(again.stdout, again.stderr, _SIZE)


async def test_many_watchers_see_the_same(room: SandboxRoom) -> None:
    sandbox = await room.create()
    execution = await room.start(sandbox.sandbox_id, PYTHON, "-c", _INTERLEAVED, "2000000")
    seen = await asyncio.gather(*(room.output(execution.execution_id) for _ in range(8)))
    for output in seen:
        check_sums(output.stdout, output.stderr, 2_000_000)
        assert output == seen[0]


async def test_a_slow_watcher_holds_nothing_up(room: SandboxRoom) -> None:
    sandbox = await room.create()
    execution = await room.start(sandbox.sandbox_id, PYTHON, "-c", _INTERLEAVED, "8000000")
    slow = room.frames(execution.execution_id)
    assert (await anext(slow)).HasField("snapshot")
    quick = await room.output(execution.execution_id)
    assert quick.exit.code == 0
    received = sum([len(frame.output.content) async for frame in slow])
    assert received == 8_000_128


async def test_the_first_frame_is_the_execution(room: SandboxRoom) -> None:
    sandbox = await room.create()
    execution = await room.start(sandbox.sandbox_id, "sh", "-c", "echo out; echo err >&2; exit 4")
    frames = [frame async for frame in room.frames(execution.execution_id)]
    assert frames[0].snapshot.execution_id == execution.execution_id
    assert list(frames[0].snapshot.arguments) == list(execution.arguments)
    assert frames[-1].exit.code == 4
    outputs = {frame.output.stream: frame.output for frame in frames[1:-1]}
    assert outputs[execution_pb2.OUTPUT_STREAM_STDOUT].content == b"out\n"
    assert outputs[execution_pb2.OUTPUT_STREAM_STDERR].content == b"err\n"
    assert abs(frames[1].output.written_at.seconds - time.time()) < 60
    late = [frame async for frame in room.frames(execution.execution_id)]
    assert late[0].snapshot.state == execution_pb2.EXECUTION_STATE_EXITED
    assert late[0].snapshot.exit == late[-1].exit == frames[-1].exit


async def test_output_that_comes_with_the_exit_is_not_lost(room: SandboxRoom) -> None:
    sandbox = await room.create()
    script = "import os; os.write(1, b'o' * 65536); os.write(2, b'e' * 65536); os._exit(5)"
    for _ in range(15):
        output = await room.run(sandbox.sandbox_id, PYTHON, "-I", "-S", "-c", script)
        assert (len(output.stdout), len(output.stderr)) == (65536, 65536)
        assert output.exit.code == 5


async def test_a_background_process_does_not_delay_the_exit(room: SandboxRoom) -> None:
    sandbox = await room.create()
    name = random_id("mrk")
    quiet = await room.run(
        sandbox.sandbox_id,
        "sh",
        "-c",
        f"{PYTHON} -c 'import time; time.sleep(99)' {name} & echo a",
    )
    assert quiet.stdout == b"a\n"
    assert quiet.exit.code == 0
    # It lives on, for as long as the sandbox does.
    assert len(processes_with(name)) == 1
    script = "{ echo y; echo y; : >~/on; exec yes; } & until [ -e ~/on ]; do :; done; exit 6"
    noisy = await room.run(sandbox.sandbox_id, "sh", "-c", script)
    assert noisy.exit.code == 6
    assert noisy.stdout.startswith(b"y\ny\n")
    await room.release(sandbox.sandbox_id)
    assert processes_with(name) == []


async def test_a_program_that_closes_its_output_still_ends(room: SandboxRoom) -> None:
    sandbox = await room.create()
    output = await room.run(
        sandbox.sandbox_id, "sh", "-c", "echo last; exec >&- 2>&-; sleep 0.2; exit 8"
    )
    assert output.stdout == b"last\n"
    assert output.exit.code == 8


async def test_fifty_executions_at_once(room: SandboxRoom) -> None:
    sandbox = await room.create()

    async def one(number: int) -> Output:
        return await room.run(
            sandbox.sandbox_id, "sh", "-c", f"for i in 1 2 3; do echo {number}-$i; done; exit 3"
        )

    outputs = await asyncio.gather(*(one(number) for number in range(50)))
    for number, output in enumerate(outputs):
        assert output.stdout.decode() == f"{number}-1\n{number}-2\n{number}-3\n"
        assert output.exit.code == 3


async def test_a_cursor_before_what_is_kept(tmp_path: Path, sockets: Path) -> None:
    settings = room_settings(tmp_path, sockets, journal_bytes=1024 * 1024)
    async with room_in_process(settings) as room:
        sandbox = await room.create()
        execution = await room.start(sandbox.sandbox_id, PYTHON, "-c", _INTERLEAVED, "5000000")
        execution_id = execution.execution_id

        async def now() -> execution_pb2.Execution:
            return await room.get(execution_id)

        ended = await eventually(now, lambda found: found.HasField("exit"))
        kept = await room.output(execution_id)
        assert kept.exit == ended.exit
        oldest = kept.sequences[0]
        assert oldest > 1
        assert list(kept.sequences) == list(range(oldest, kept.exit.last_sequence + 1))
        assert 500_000 < len(kept.stdout) + len(kept.stderr) <= 1024 * 1024
        with pytest.raises(FairleadError) as caught:
            await room.output(execution_id, 1)
        assert caught.value.reason == "cursor_gone"
        assert caught.value.fields["oldest_sequence"] == str(oldest)
        resumed = await room.output(execution_id, oldest)
        assert resumed.sequences == kept.sequences[1:]


async def test_cursors_at_and_after_the_end(room: SandboxRoom) -> None:
    sandbox = await room.create()
    execution = await room.start(sandbox.sandbox_id, "printf", "x")
    full = await room.output(execution.execution_id)
    for after in (1, 99):
        rest = await room.output(execution.execution_id, after)
        assert not rest.sequences
        assert rest.exit == full.exit
    with pytest.raises(FairleadError) as caught:
        await room.output(execution.execution_id, -1)
    assert caught.value.reason == "offset_invalid"


async def test_ended_executions_are_removed_after_a_while(tmp_path: Path, sockets: Path) -> None:
    settings = room_settings(tmp_path, sockets, retention_seconds=5)
    async with room_in_process(settings) as room:
        sandbox = await room.create()
        execution = await room.start(sandbox.sandbox_id, "true")
        await room.output(execution.execution_id)

        async def refused() -> str:
            try:
                await room.get(execution.execution_id)
            except FairleadError as error:
                return error.reason
            return ""

        assert await eventually(refused) == "execution_not_found"
        assert list((tmp_path / "sandboxes" / "journals").iterdir()) == []
