"""Terminals through the front door's gRPC, with a fake host behind it on the wire."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Sequence

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from chassis.errors import FairleadError
from chassis.rpc_channel import closing
from chassis.rpc_errors import neighbour_errors
from fairlead.execution.v1 import execution_pb2 as pb
from signalling.execution import TerminalSize
from tests.contract.wire.launch_mesh import Mesh, running_mesh, wanted

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def mesh(redis: Redis) -> AsyncIterator[Mesh]:
    with tempfile.TemporaryDirectory(prefix="flw-") as directory:
        async with running_mesh(redis, directory) as running:
            yield running


async def started(mesh: Mesh) -> str:
    _, event = await mesh.until("provisioned", wanted())
    answer = await mesh.executions.StartExecution(
        pb.StartExecutionRequest(
            sandbox_id=event.provisioned.launch.sandbox_id,
            command=pb.Command(arguments=["sh"], terminal=pb.TerminalSize(rows=24, columns=80)),
        )
    )
    return answer.execution.execution_id


def opened(execution_id: str) -> pb.AttachTerminalRequest:
    return pb.AttachTerminalRequest(
        open=pb.OpenTerminal(tenant="ignored", execution_id=execution_id, owner="a")
    )


def typed(offset: int, content: bytes) -> pb.AttachTerminalRequest:
    return pb.AttachTerminalRequest(input=pb.TerminalInput(offset=offset, content=content))


def resized(rows: int, columns: int) -> pb.AttachTerminalRequest:
    return pb.AttachTerminalRequest(resize=pb.TerminalSize(rows=rows, columns=columns))


async def talked(
    mesh: Mesh, *requests: pb.AttachTerminalRequest
) -> list[pb.AttachTerminalResponse]:
    responses = []
    async with closing(mesh.executions.AttachTerminal()) as call:
        for request in requests:
            await call.write(request)
        await call.done_writing()
        with neighbour_errors("signalling"):
            async for response in call:
                responses.append(response)
    return responses


async def test_it_passes_both_ways(mesh: Mesh) -> None:
    execution_id = await started(mesh)
    command = mesh.worker.programs[execution_id].command
    assert command.terminal == TerminalSize(24, 80)
    responses = await talked(
        mesh, opened(execution_id), typed(0, b"hello"), resized(5, 6), typed(5, b"exit")
    )
    kinds = [response.WhichOneof("frame") for response in responses]
    assert kinds == ["snapshot", "output", "accepted", "output", "accepted", "exit"]
    assert [r.output.content for r in responses if r.HasField("output")] == [b"hello", b"exit"]
    answer = await mesh.executions.ResizeExecution(
        pb.ResizeExecutionRequest(
            execution_id=execution_id, size=pb.TerminalSize(rows=7, columns=8)
        )
    )
    assert answer.execution.execution_id == execution_id
    assert mesh.worker.sizes == [TerminalSize(5, 6), TerminalSize(7, 8)]


async def test_ending_the_requests_ends_the_attachment(mesh: Mesh) -> None:
    execution_id = await started(mesh)
    for last in (
        typed(0, b"x"),
        pb.AttachTerminalRequest(detach=pb.DetachTerminal()),
    ):
        responses = await talked(mesh, opened(execution_id), last)
        assert responses[0].HasField("snapshot")
        assert not responses[-1].HasField("exit")


@pytest.mark.parametrize(
    ("requests", "reason"),
    [
        ((), "terminal_frame_invalid"),
        ((typed(0, b"x"),), "terminal_frame_invalid"),
        ((None, opened("exe_1")), "terminal_frame_invalid"),
        ((None, pb.AttachTerminalRequest()), "terminal_frame_invalid"),
        ((None, resized(0, 1)), "terminal_size_invalid"),
        ((None, typed(-1, b"")), "offset_invalid"),
        ((None, typed(0, b"x" * (256 * 1024 + 1))), "stdin_too_large"),
        ((opened("exe_" + "a" * 26),), "execution_not_found"),
    ],
)
async def test_what_is_wrong_is_refused(
    mesh: Mesh, requests: Sequence[pb.AttachTerminalRequest | None], reason: str
) -> None:
    execution_id = await started(mesh)
    with pytest.raises(FairleadError) as caught:
        await talked(mesh, *(each or opened(execution_id) for each in requests))
    assert caught.value.reason == reason


async def test_a_size_that_is_none_starts_nothing(mesh: Mesh) -> None:
    _, event = await mesh.until("provisioned", wanted())
    with pytest.raises(FairleadError) as caught, neighbour_errors("signalling"):
        await mesh.executions.StartExecution(
            pb.StartExecutionRequest(
                sandbox_id=event.provisioned.launch.sandbox_id,
                command=pb.Command(arguments=["sh"], terminal=pb.TerminalSize(rows=70_000)),
            )
        )
    assert caught.value.reason == "terminal_size_invalid"
    assert not mesh.worker.programs
