"""Starting a command and watching it in one call."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from opentelemetry.sdk.trace import TracerProvider

from chassis.clock import SystemClock
from chassis.errors import FairleadError
from chassis.ids import random_id
from chassis.rpc_channel import closing, open_channel
from chassis.rpc_errors import neighbour_errors
from fairlead.execution.v1 import execution_pb2 as pb
from signalling.execution import Command
from signalling.neighbour_channels import ChannelCache
from signalling.neighbours import GrpcExecutions
from tests.contract.wire.sandbox_room import TENANT, SandboxRoom, room_in_process, room_settings
from tests.fakes.faults import Faults
from tests.fakes.host_server import SandboxServer
from tests.fakes.mesh import HOST
from tests.fakes.worker import FakeWorker

pytestmark = pytest.mark.asyncio
EXIT_ALONE = 2**62


@pytest_asyncio.fixture
async def room(tmp_path: Path, sockets: Path) -> AsyncIterator[SandboxRoom]:
    async with room_in_process(room_settings(tmp_path, sockets)) as room:
        yield room


@pytest.fixture
def sockets() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fls-") as directory:
        yield Path(directory)


async def running(
    room: SandboxRoom,
    sandbox_id: str,
    *arguments: str,
    key: str = "",
    after: int = 0,
    stdin: bool = False,
) -> AsyncGenerator[pb.WatchOutputResponse, None]:
    """Run a command and yield its frames."""
    start = pb.StartExecutionRequest(
        tenant=TENANT,
        idempotency_key=key,
        sandbox_id=sandbox_id,
        command=pb.Command(arguments=arguments, stdin=stdin),
    )
    request = pb.RunExecutionRequest(start=start, after_sequence=after)
    async with closing(room.executions.RunExecution(request)) as call:
        with neighbour_errors("worker"):
            async for response in call:
                yield response.frame


async def frames_of(
    room: SandboxRoom, sandbox_id: str, *arguments: str, key: str = "", after: int = 0
) -> list[pb.WatchOutputResponse]:
    seen: list[pb.WatchOutputResponse] = []
    await collect(seen, running(room, sandbox_id, *arguments, key=key, after=after))
    return seen


async def collect(
    seen: list[pb.WatchOutputResponse], watch: AsyncGenerator[pb.WatchOutputResponse, None]
) -> None:
    async with aclosing(watch) as frames:
        async for frame in frames:
            seen.append(frame)


def stdout_of(frames: list[pb.WatchOutputResponse]) -> bytes:
    return b"".join(frame.output.content for frame in frames if frame.HasField("output"))


def kinds_of(frames: list[pb.WatchOutputResponse]) -> list[str | None]:
    return [frame.WhichOneof("frame") for frame in frames]


class Mute(SandboxServer):
    """A worker that ends the call without a frame."""

    async def RunExecution(
        self, request: pb.RunExecutionRequest, context: object
    ) -> AsyncIterator[pb.RunExecutionResponse]:
        for nothing in list[pb.RunExecutionResponse]():
            yield nothing


class Stuck(SandboxServer):
    """A worker that never answers."""

    async def RunExecution(
        self, request: pb.RunExecutionRequest, context: object
    ) -> AsyncIterator[pb.RunExecutionResponse]:
        await asyncio.Event().wait()
        yield pb.RunExecutionResponse()


@pytest.mark.parametrize("make", [Mute, Stuck])
async def test_a_worker_that_says_nothing_is_unavailable(
    make: type[SandboxServer], sockets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("signalling.neighbours._UNARY_SECONDS", 1.0)
    address = f"unix:{sockets}/mute"
    server = grpc.aio.server()
    make(worker=FakeWorker(faults=Faults(), clock=SystemClock())).register(server)
    server.add_insecure_port(address)
    await server.start()
    dial = partial(open_channel, tracer_provider=TracerProvider())
    async with ChannelCache(open_channel=dial) as channels:
        run = GrpcExecutions(channels=channels).run(
            replace(HOST, sandbox_address=address),
            tenant=TENANT,
            key="k",
            sandbox_id=random_id("sbx"),
            command=Command(("true",)),
            after=0,
        )
        with pytest.raises(FairleadError) as caught:
            await run.__aenter__()
        assert caught.value.reason == "sandbox_worker_unavailable"
    await server.stop(None)


async def test_the_execution_its_output_and_one_exit(room: SandboxRoom) -> None:
    sandbox = await room.create()
    frames = await frames_of(room, sandbox.sandbox_id, "sh", "-c", "echo one; echo two >&2; exit 3")
    execution = frames[0].snapshot
    assert kinds_of(frames)[0] == "snapshot"
    assert kinds_of(frames)[1:-1] == ["output"] * (len(frames) - 2)
    assert sorted(stdout_of(frames).split()) == [b"one", b"two"]
    assert frames[-1].exit.code == 3
    kept = await room.get(execution.execution_id)
    assert kept.exit == frames[-1].exit
    assert kept.arguments == execution.arguments


async def test_beyond_the_last_record_there_is_the_exit_alone(room: SandboxRoom) -> None:
    sandbox = await room.create()
    frames = await frames_of(room, sandbox.sandbox_id, "echo", "one", after=EXIT_ALONE)
    assert kinds_of(frames) == ["snapshot", "exit"]
    assert frames[-1].exit.last_sequence == 1


async def test_what_cannot_start_has_no_frame(room: SandboxRoom) -> None:
    sandbox = await room.create()
    await frames_of(room, sandbox.sandbox_id, "true", key="taken")
    for arguments, sandbox_id, key, after, reason in (
        (("no-such-program",), sandbox.sandbox_id, "", 0, "command_not_found"),
        (("/etc",), sandbox.sandbox_id, "", 0, "command_not_executable"),
        ((), sandbox.sandbox_id, "", 0, "command_invalid"),
        (("true",), random_id("sbx"), "", 0, "sandbox_not_found"),
        (("false",), sandbox.sandbox_id, "taken", 0, "idempotency_conflict"),
        (("touch", "started"), sandbox.sandbox_id, "", -1, "offset_invalid"),
    ):
        seen: list[pb.WatchOutputResponse] = []
        with pytest.raises(FairleadError) as caught:
            await collect(seen, running(room, sandbox_id, *arguments, key=key, after=after))
        assert caught.value.reason == reason
        assert seen == []
    listed = await frames_of(room, sandbox.sandbox_id, "ls")
    assert stdout_of(listed) == b"", "a refused call started its command"


async def test_the_same_key_runs_it_once_and_shows_all_of_it(room: SandboxRoom) -> None:
    sandbox = await room.create()
    script = ("sh", "-c", "echo run >> $HOME/runs; cat $HOME/runs")
    runs = await asyncio.gather(
        *(frames_of(room, sandbox.sandbox_id, *script, key="one") for _ in range(4))
    )
    runs.append(await frames_of(room, sandbox.sandbox_id, *script, key="one"))
    assert len({frames[0].snapshot.execution_id for frames in runs}) == 1
    assert [stdout_of(frames) for frames in runs] == [b"run\n"] * 5
    assert {kinds_of(frames).count("exit") for frames in runs} == {1}
    started = await room.start(sandbox.sandbox_id, *script, key="one")
    assert started.execution_id == runs[0][0].snapshot.execution_id


async def test_who_leaves_stops_nothing_and_goes_on_by_the_cursor(room: SandboxRoom) -> None:
    sandbox = await room.create()
    execution_id, seen = "", 0
    async with aclosing(running(room, sandbox.sandbox_id, "cat", stdin=True)) as frames:
        async for frame in frames:
            if frame.HasField("snapshot"):
                execution_id = frame.snapshot.execution_id
                await room.write(execution_id, 0, b"one")
            if frame.HasField("output"):
                seen = frame.output.sequence
                break
    await room.write(execution_id, 3, b"two", close=True)
    rest = await room.output(execution_id, seen)
    assert rest.stdout == b"two"
    assert rest.exit.code == 0


async def test_who_leaves_during_the_start_does_not_stop_it(room: SandboxRoom) -> None:
    sandbox = await room.create()
    script = ("sh", "-c", "echo run >> $HOME/runs; cat $HOME/runs")
    for turns in range(40):
        starting = asyncio.create_task(
            frames_of(room, sandbox.sandbox_id, *script, str(turns), key=f"k{turns}")
        )
        for _ in range(turns):
            await asyncio.sleep(0)
        starting.cancel()
        await asyncio.wait([starting])
        frames = await frames_of(room, sandbox.sandbox_id, *script, str(turns), key=f"k{turns}")
        assert stdout_of(frames) == b"run\n" * (turns + 1)
        assert kinds_of(frames).count("exit") == 1
