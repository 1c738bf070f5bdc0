"""Output that reaches its bound: dropped and told, or waited for; and every end in between."""

from __future__ import annotations

import asyncio
import hashlib
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, suppress
from pathlib import Path

import pytest
import pytest_asyncio

from fairlead.execution.v1 import execution_pb2 as pb
from fairlead.sandbox.v1 import sandbox_pb2
from tests.contract.wire.sandbox_room import PYTHON, SandboxRoom, room_in_process, room_settings
from tests.eventually import eventually

pytestmark = pytest.mark.asyncio

_BOUND = 1024 * 1024
_LARGEST_PIPE = 1024 * 1024
_SIZE = 8_000_000
_WRITE = """
import hashlib, os, sys
left, number, total = int(sys.argv[1]), 0, hashlib.sha256()
while left:
    content = (b"%010d" % number * 40960)[:min(left, 333333)]
    total.update(content)
    left -= len(content)
    number += 1
    while content:
        content = content[os.write(1, content):]
os.write(2, total.hexdigest().encode())
"""


@pytest.fixture
def sockets() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fls-") as directory:
        yield Path(directory)


@pytest_asyncio.fixture
async def room(tmp_path: Path, sockets: Path) -> AsyncIterator[SandboxRoom]:
    settings = room_settings(tmp_path, sockets, journal_bytes=_BOUND)
    async with room_in_process(settings) as room:
        yield room


async def flood(room: SandboxRoom, *, seconds: float = 0) -> pb.Execution:
    """Start a program that writes more than is kept, and waits for whoever reads it."""
    sandbox = await room.create()
    return await room.start(
        sandbox.sandbox_id,
        PYTHON,
        "-c",
        _WRITE,
        str(_SIZE),
        seconds=seconds,
        grace=0,
        on_full=pb.ON_FULL_BLOCK,
    )


def kept(room: SandboxRoom) -> int:
    """Bytes that all journals have on disk."""
    journals = room.host_root / "sandboxes" / "journals"
    size = 0
    for path in journals.glob("*.segment"):
        with suppress(FileNotFoundError):  # it was dropped meanwhile
            size += path.stat().st_size
    return size


async def until_full(room: SandboxRoom) -> int:
    """Wait until the journal grows no more; return its size."""
    sizes = [0, 1]

    async def grown() -> list[int]:
        sizes.append(kept(room))
        await asyncio.sleep(0.1)
        return sizes

    await eventually(grown, lambda found: found[-1] == found[-2] == found[-3] > _BOUND // 2)
    return sizes[-1]


class Seen:
    """What a watcher has got."""

    def __init__(self) -> None:
        self.stdout = hashlib.sha256()
        self.stderr = b""
        self.received = 0
        self.missing = 0
        self.after = 0
        self.exit: pb.Exit | None = None

    async def follow(self, room: SandboxRoom, execution_id: str, *, most: int = 10**9) -> None:
        """Read on from where it was, to the exit or at least so many more bytes."""
        async with aclosing(room.frames(execution_id, self.after)) as frames:
            await self.take(frames, most=most)

    async def take(self, frames: AsyncIterator[pb.WatchOutputResponse], *, most: int) -> None:
        """Read what is there, to the exit or at least so many more bytes."""
        enough = self.received + most
        async for frame in frames:
            match frame.WhichOneof("frame"):
                case "output":
                    assert frame.output.sequence == self.after + 1
                    self.after = frame.output.sequence
                    if frame.output.stream == pb.OUTPUT_STREAM_STDOUT:
                        self.stdout.update(frame.output.content)
                        self.received += len(frame.output.content)
                    else:
                        self.stderr += frame.output.content
                case "gap":
                    assert frame.gap.first_sequence == self.after + 1
                    self.after = frame.gap.last_sequence
                    self.missing += frame.gap.bytes
                case "exit":
                    assert self.exit is None
                    self.exit = frame.exit
            if self.received >= enough:
                return

    def check_whole(self) -> None:
        assert self.missing == 0
        assert self.received == _SIZE
        assert self.stdout.hexdigest().encode() == self.stderr
        assert self.exit is not None
        assert self.exit.code == 0
        assert self.exit.last_sequence == self.after


async def test_what_is_dropped_is_told(room: SandboxRoom) -> None:
    sandbox = await room.create()
    execution = await room.start(sandbox.sandbox_id, PYTHON, "-c", _WRITE, str(_SIZE))

    async def now() -> pb.Execution:
        return await room.get(execution.execution_id)

    await eventually(now, lambda found: found.HasField("exit"))
    seen = Seen()
    await seen.follow(room, execution.execution_id)
    assert seen.missing > 0
    assert seen.missing + seen.received + len(seen.stderr) == _SIZE + 64
    assert seen.exit is not None
    assert seen.exit.last_sequence == seen.after


async def test_a_program_that_waits_loses_nothing(room: SandboxRoom) -> None:
    execution = await flood(room)
    assert await until_full(room) <= _BOUND
    assert not (await room.get(execution.execution_id)).HasField("exit")
    watchers = [Seen() for _ in range(3)]
    await asyncio.gather(*(each.follow(room, execution.execution_id) for each in watchers))
    for each in watchers:
        each.check_whole()
    # What an ended program left in its pipe is kept above the bound.
    assert kept(room) <= _BOUND + _LARGEST_PIPE


async def test_the_slowest_watcher_sets_the_pace_until_it_leaves(room: SandboxRoom) -> None:
    execution = await flood(room)
    # Both stand at the first record before either reads on: what is under way to the slow one may
    # be more than is kept behind it.
    frames, slow = (room.frames(execution.execution_id) for _ in range(2))
    for each in (frames, slow):
        assert (await anext(each)).HasField("snapshot")
    quick = Seen()
    following = asyncio.create_task(quick.take(frames, most=10**9))
    await until_full(room)
    assert not following.done()
    await slow.aclose()
    await following
    quick.check_whole()


async def test_a_watcher_that_comes_back_misses_nothing(room: SandboxRoom) -> None:
    execution = await flood(room)
    seen = Seen()
    for _ in range(4):
        await seen.follow(room, execution.execution_id, most=1_000_000)
        await until_full(room)
        assert seen.exit is None
    await seen.follow(room, execution.execution_id)
    seen.check_whole()


async def test_one_that_waits_for_the_exit_neither_holds_nor_frees(room: SandboxRoom) -> None:
    execution = await flood(room)
    waiting = asyncio.create_task(room.output(execution.execution_id, 2**62))
    await until_full(room)
    assert not waiting.done()
    seen = Seen()
    await seen.follow(room, execution.execution_id)
    seen.check_whole()
    assert (await waiting).exit == seen.exit


async def test_a_signal_reaches_a_program_that_waits(room: SandboxRoom) -> None:
    execution = await flood(room)
    size = await until_full(room)
    await room.signal(execution.execution_id, signal.SIGKILL)
    seen = Seen()
    await seen.follow(room, execution.execution_id)
    assert seen.exit is not None
    assert seen.exit.reason == pb.EXIT_REASON_SIGNALLED
    assert seen.exit.signal == signal.SIGKILL
    assert seen.missing == 0
    # What the pipe held comes on top of what was kept.
    assert seen.received > size - _BOUND // 8


async def test_a_timeout_ends_a_program_that_waits(room: SandboxRoom) -> None:
    execution = await flood(room, seconds=1)

    async def now() -> pb.Execution:
        return await room.get(execution.execution_id)

    ended = await eventually(now, lambda found: found.HasField("exit"))
    assert ended.exit.reason == pb.EXIT_REASON_TIMED_OUT
    seen = Seen()
    await seen.follow(room, execution.execution_id)
    assert seen.exit == ended.exit
    assert seen.missing == 0


async def test_a_release_ends_a_program_that_waits(room: SandboxRoom) -> None:
    execution = await flood(room)
    await until_full(room)
    assert await room.release(execution.sandbox_id)
    seen = Seen()
    await seen.follow(room, execution.execution_id)
    assert seen.exit is not None
    assert seen.exit.reason == pb.EXIT_REASON_RELEASED
    assert seen.missing == 0


async def test_the_sandbox_bounds_what_is_kept(tmp_path: Path, sockets: Path) -> None:
    async with room_in_process(room_settings(tmp_path, sockets)) as room:
        sandbox = await room.create(limits=sandbox_pb2.Limits(output_bytes=_BOUND))
        output = await room.run(sandbox.sandbox_id, PYTHON, "-c", _WRITE, str(_SIZE))
        assert output.exit.code == 0
        assert kept(room) <= _BOUND


async def test_what_a_program_used(room: SandboxRoom) -> None:
    sandbox = await room.create()
    script = "x = bytearray(50_000_000); sum(range(3_000_000))"
    output = await room.run(sandbox.sandbox_id, PYTHON, "-I", "-S", "-c", script)
    assert output.exit.code == 0
    assert output.exit.cpu_time.ToNanoseconds() > 10**7
    assert 50_000_000 < output.exit.peak_memory_bytes < 500_000_000


async def test_on_full_is_one_of_two(room: SandboxRoom) -> None:
    sandbox = await room.create()
    with pytest.raises(Exception, match="DROP_OLDEST or BLOCK") as caught:
        await room.start(sandbox.sandbox_id, "true", on_full=pb.OnFull.ValueType(9))
    assert getattr(caught.value, "reason", "") == "command_invalid"
