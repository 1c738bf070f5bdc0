"""Terminals over the wire of one worker: attach, type, resize, take over, come back."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from chassis.errors import FairleadError
from chassis.rpc_channel import closing
from chassis.rpc_errors import neighbour_errors
from fairlead.execution.v1 import execution_pb2 as pb
from tests.contract.wire.sandbox_room import (
    TENANT,
    SandboxRoom,
    room_in_process,
    room_settings,
)

pytestmark = pytest.mark.asyncio

_LONG = "stty -echo; echo ready; cat"


@pytest.fixture
def sockets() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fls-") as directory:
        yield Path(directory)


@pytest_asyncio.fixture
async def room(tmp_path: Path, sockets: Path) -> AsyncIterator[SandboxRoom]:
    async with room_in_process(room_settings(tmp_path, sockets)) as room:
        yield room


class Attached:
    """One attachment from the client's side."""

    def __init__(
        self, call: grpc.aio.StreamStreamCall[pb.AttachTerminalRequest, pb.AttachTerminalResponse]
    ) -> None:
        self._call = call
        self.shown = b""
        self.sequence = 0

    async def next(self) -> pb.AttachTerminalResponse | None:
        with neighbour_errors("worker"):
            frame = await self._call.read()
        if not isinstance(frame, pb.AttachTerminalResponse):
            with neighbour_errors("worker"):
                if await self._call.code() is not grpc.StatusCode.OK:
                    raise await self._failed()
            return None
        if frame.HasField("output"):
            assert frame.output.sequence > self.sequence
            self.sequence = frame.output.sequence
            self.shown += frame.output.content
        return frame

    async def _failed(self) -> grpc.aio.AioRpcError:
        return grpc.aio.AioRpcError(
            await self._call.code(),
            await self._call.initial_metadata(),
            await self._call.trailing_metadata(),
            await self._call.details(),
        )

    async def until(self, wanted: bytes) -> None:
        while wanted not in self.shown:
            assert await self.next() is not None, self.shown

    async def accepted(self) -> int:
        while (frame := await self.next()) is not None:
            if frame.HasField("accepted"):
                return frame.accepted.offset
        raise AssertionError("it ended")

    async def last(self) -> pb.AttachTerminalResponse:
        last = None
        while (frame := await self.next()) is not None:
            last = frame
        assert last is not None
        return last

    async def type(self, offset: int, content: bytes) -> None:
        await self._call.write(
            pb.AttachTerminalRequest(input=pb.TerminalInput(offset=offset, content=content))
        )

    async def resize(self, rows: int, columns: int) -> None:
        size = pb.TerminalSize(rows=rows, columns=columns)
        await self._call.write(pb.AttachTerminalRequest(resize=size))

    async def detach(self) -> None:
        await self._call.write(pb.AttachTerminalRequest(detach=pb.DetachTerminal()))


@asynccontextmanager
async def attach(
    room: SandboxRoom, execution_id: str, **fields: object
) -> AsyncIterator[tuple[Attached, pb.TerminalSnapshot]]:
    opened = pb.OpenTerminal(tenant=TENANT, execution_id=execution_id)
    for name, value in fields.items():
        setattr(opened, name, value)
    async with closing(room.executions.AttachTerminal()) as call:
        await call.write(pb.AttachTerminalRequest(open=opened))
        attached = Attached(call)
        first = await attached.next()
        assert first is not None
        yield attached, first.snapshot


async def start(room: SandboxRoom, script: str) -> str:
    sandbox = await room.create()
    command = pb.Command(
        arguments=["sh", "-c", script], terminal=pb.TerminalSize(rows=24, columns=80)
    )
    with neighbour_errors("worker"):
        answer = await room.executions.StartExecution(
            pb.StartExecutionRequest(tenant=TENANT, sandbox_id=sandbox.sandbox_id, command=command)
        )
    return answer.execution.execution_id


async def test_it_types_shows_and_ends(room: SandboxRoom) -> None:
    execution_id = await start(room, 'echo "$TERM"; tty >/dev/null && read x; echo "<$x>"; exit 7')
    async with attach(room, execution_id, owner="a") as (attached, snapshot):
        assert (snapshot.input_offset, snapshot.resumed) == (0, False)
        await attached.until(b"xterm-256color\r\n")
        await attached.type(0, b"hello\n")
        await attached.until(b"<hello>")
        last = await attached.last()
        assert (last.exit.code, last.exit.last_sequence) == (7, attached.sequence)
    watched = await room.output(execution_id)
    assert watched.stdout == attached.shown
    async with attach(room, execution_id) as (again, _):
        assert (await again.last()).exit.code == 7
        assert again.shown == attached.shown


async def test_it_is_resized_by_whoever_types_and_by_a_call(room: SandboxRoom) -> None:
    execution_id = await start(room, "trap 'stty size' WINCH; echo ready; while :; do read x; done")
    async with attach(room, execution_id) as (attached, _):
        await attached.until(b"ready")
        await attached.resize(30, 90)
        await attached.until(b"30 90")
        with neighbour_errors("worker"):
            await room.executions.ResizeExecution(
                pb.ResizeExecutionRequest(
                    tenant=TENANT,
                    execution_id=execution_id,
                    size=pb.TerminalSize(rows=31, columns=91),
                )
            )
        await attached.until(b"31 91")


async def test_one_types_at_a_time_and_another_one_can_take_it(room: SandboxRoom) -> None:
    execution_id = await start(room, _LONG)
    async with attach(room, execution_id, owner="a") as (first, _):
        await first.until(b"ready")
        with pytest.raises(FairleadError) as caught:
            async with attach(room, execution_id, owner="b"):
                pass
        assert caught.value.reason == "terminal_owned"
        with pytest.raises(FairleadError) as caught:
            await room.write(execution_id, 0, b"x")
        assert caught.value.reason == "terminal_owned"
        await first.type(0, b"mine\n")
        assert await first.accepted() == 5
        async with attach(room, execution_id, owner="b", take_over=True) as (second, snapshot):
            assert (snapshot.input_offset, snapshot.resumed) == (5, False)
            assert (await first.last()).HasField("taken_over")
            await second.type(5, b"yours\n")
            await second.until(b"yours")
            await second.detach()
            assert await second.next() is None
    async with attach(room, execution_id, owner="a") as (_, snapshot):
        assert (snapshot.input_offset, snapshot.resumed) == (11, False)


async def test_a_lost_connection_frees_it_and_nothing_is_typed_twice(room: SandboxRoom) -> None:
    execution_id = await start(room, _LONG)
    async with attach(room, execution_id, owner="a") as (first, _):
        await first.until(b"ready")
        await first.type(0, b"one\n")
        await first.until(b"one\r\n")
    for _ in range(2):
        async with attach(room, execution_id, owner="a", after_sequence=first.sequence) as (
            again,
            snapshot,
        ):
            assert (snapshot.input_offset, snapshot.resumed) == (4, True)
            await again.type(0, b"one\n")
            assert await again.accepted() == 4
            assert again.shown == b""
            await again.detach()
            assert await again.next() is None
    assert await room.write(execution_id, 4, b"two\n", close=True) == 8
    assert (await room.output(execution_id)).stdout == b"ready\r\none\r\ntwo\r\n"


async def test_the_same_owner_takes_its_own_earlier_place(room: SandboxRoom) -> None:
    execution_id = await start(room, _LONG)
    async with attach(room, execution_id, owner="a") as (stale, _):
        await stale.until(b"ready")
        async with attach(room, execution_id, owner="a") as (_, snapshot):
            assert snapshot.resumed
            assert (await stale.last()).HasField("taken_over")


async def test_input_that_waits_is_counted_before_another_one_types(room: SandboxRoom) -> None:
    execution_id = await start(room, "stty raw -echo; echo ready; read go; head -c 300000 | wc -c")
    async with attach(room, execution_id, owner="a") as (first, _):
        await first.until(b"ready")
        for offset in range(0, 200_000, 100_000):
            await first.type(offset, b"x" * 100_000)
        async with attach(room, execution_id, owner="b", take_over=True) as (second, snapshot):
            taken = snapshot.input_offset
            assert 0 < taken < 200_000
            assert (await first.last()).HasField("taken_over")
            await second.type(taken, b"\n")
    watched = await room.get(execution_id)
    assert watched.state == pb.EXECUTION_STATE_RUNNING
    await room.release(watched.sandbox_id)


async def test_a_release_ends_whoever_is_attached(room: SandboxRoom) -> None:
    execution_id = await start(room, _LONG)
    async with attach(room, execution_id) as (attached, _):
        await attached.until(b"ready")
        releasing = asyncio.create_task(room.release((await room.get(execution_id)).sandbox_id))
        assert (await attached.last()).exit.reason == pb.EXIT_REASON_RELEASED
        await releasing


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([pb.AttachTerminalRequest(detach=pb.DetachTerminal())], "terminal_frame_invalid"),
        ([], "terminal_frame_invalid"),
        ([pb.OpenTerminal(after_sequence=-1)], "offset_invalid"),
        ([pb.OpenTerminal(size=pb.TerminalSize(rows=0, columns=1))], "terminal_size_invalid"),
        ([pb.OpenTerminal(owner="x" * 129)], "argument_invalid"),
        ([pb.OpenTerminal(), pb.OpenTerminal()], "terminal_frame_invalid"),
        ([pb.OpenTerminal(), pb.AttachTerminalRequest()], "terminal_frame_invalid"),
        ([pb.OpenTerminal(), pb.TerminalSize(rows=1)], "terminal_size_invalid"),
        ([pb.OpenTerminal(), pb.TerminalInput(offset=-1)], "offset_invalid"),
        ([pb.OpenTerminal(), pb.TerminalInput(offset=9)], "stdin_offset_invalid"),
    ],
)
async def test_frames_that_are_wrong(room: SandboxRoom, frames: list[object], reason: str) -> None:
    execution_id = await start(room, _LONG)
    async with closing(room.executions.AttachTerminal()) as call:
        for frame in frames:
            match frame:
                case pb.OpenTerminal():
                    opened = pb.OpenTerminal(tenant=TENANT, execution_id=execution_id)
                    opened.MergeFrom(frame)
                    await call.write(pb.AttachTerminalRequest(open=opened))
                case pb.TerminalSize():
                    await call.write(pb.AttachTerminalRequest(resize=frame))
                case pb.TerminalInput():
                    await call.write(pb.AttachTerminalRequest(input=frame))
                case pb.AttachTerminalRequest():
                    await call.write(frame)
        if not frames:
            await call.done_writing()
        with pytest.raises(FairleadError) as caught:
            await Attached(call).last()
    assert caught.value.reason == reason


async def test_what_runs_on_pipes_is_no_terminal(room: SandboxRoom) -> None:
    sandbox = await room.create()
    execution = await room.start(sandbox.sandbox_id, "cat", stdin=True)
    with pytest.raises(FairleadError) as caught:
        async with attach(room, execution.execution_id):
            pass
    assert caught.value.reason == "not_a_terminal"
    size = pb.TerminalSize(rows=1, columns=1)
    for execution_id, reason in (
        (execution.execution_id, "not_a_terminal"),
        ("exe_none", "execution_not_found"),
    ):
        with pytest.raises(FairleadError) as caught, neighbour_errors("worker"):
            await room.executions.ResizeExecution(
                pb.ResizeExecutionRequest(tenant=TENANT, execution_id=execution_id, size=size)
            )
        assert caught.value.reason == reason
