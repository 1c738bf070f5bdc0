"""Each way to break a limit ends with a reason of its own, told over the wire, and a neighbour goes
on meanwhile.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from google.protobuf.duration_pb2 import Duration

from chassis.errors import FairleadError
from chassis.ids import random_id
from fairlead.execution.v1 import execution_pb2 as pb
from fairlead.sandbox.v1 import sandbox_pb2 as sb
from tests.contract.wire.sandbox_room import (
    SandboxRoom,
    processes_with,
    room_in_process,
    room_settings,
)
from tests.eventually import eventually

pytestmark = pytest.mark.asyncio

_MIB = 1 << 20
_HELD = {
    "out_of_memory": (sb.Limits(memory_bytes=64 * _MIB), "exec tail /dev/zero"),
    "limit_pids": (sb.Limits(processes=32), "while sleep 600 & do :; done"),
    "limit_disk": (sb.Limits(file_bytes=_MIB), "exec cat /dev/zero > $HOME/big"),
    "timed_out": (sb.Limits(wall_time=Duration(nanos=300_000_000)), "exec sleep 600"),
}
_TOLD_BY = {"out_of_memory": "cgroup_memory", "limit_pids": "cgroup_pids"}


@pytest_asyncio.fixture
async def room(tmp_path: Path) -> AsyncIterator[SandboxRoom]:
    with tempfile.TemporaryDirectory(prefix="fls-") as sockets:
        async with room_in_process(room_settings(tmp_path, Path(sockets))) as opened:
            yield opened


async def created(room: SandboxRoom, isolation: str, limits: sb.Limits) -> sb.Sandbox:
    """Create a sandbox; skips where this isolation cannot be had."""
    try:
        return await room.create(isolation=isolation, limits=limits)
    except FairleadError as refused:
        if refused.reason != "isolation_unavailable":
            raise
        pytest.skip(f"{isolation} cannot be had here: {refused.message}")


async def needs_cgroups(room: SandboxRoom, reason: str) -> None:
    """Skip where nobody counts what this breach is told by."""
    any_ = await created(room, "walled", sb.Limits())
    for wall in any_.walls:
        if wall.name == _TOLD_BY.get(reason) and not wall.stands:
            pytest.skip(wall.reason)


async def still_works(room: SandboxRoom, sandbox: sb.Sandbox) -> None:
    """Use a sandbox, and give it back."""
    assert (await room.run(sandbox.sandbox_id, "echo", "here")).stdout == b"here\n"
    await room.release(sandbox.sandbox_id)


@pytest.mark.parametrize("isolation", ["process", "walled"])
@pytest.mark.parametrize("reason", _HELD)
async def test_a_program_that_breaks_a_limit(
    room: SandboxRoom, isolation: str, reason: str
) -> None:
    limits, script = _HELD[reason]
    hostile = await created(room, isolation, limits)
    neighbour = await created(room, isolation, limits)
    await needs_cgroups(room, reason)
    mark = random_id("mrk")
    output = await room.run(hostile.sandbox_id, "sh", "-c", script, mark)
    assert pb.ExitReason.Name(output.exit.reason) == f"EXIT_REASON_{reason.upper()}"
    await still_works(room, neighbour)
    await room.release(hostile.sandbox_id)
    assert processes_with(mark) == []


@pytest.mark.parametrize("isolation", ["process", "walled"])
async def test_a_workspace_that_is_filled(room: SandboxRoom, isolation: str) -> None:
    """Many small files, one behind the other: the walk ends the sandbox, and nothing else."""
    limits = sb.Limits(disk_bytes=4 * _MIB)
    hostile, neighbour = [await created(room, isolation, limits) for _ in range(2)]
    for sandbox in (hostile, neighbour):
        workspace_id = random_id("wsp")
        room.tree(workspace_id).mkdir(parents=True)
        await room.bind(sandbox.sandbox_id, workspace_id)
    mark = random_id("mrk")
    script = "n=0; while :; do n=$((n + 1)); head -c 65536 /dev/urandom > $n; sleep 0.01; done"
    filler = await room.start(hostile.sandbox_id, "sh", "-c", script, mark)
    waits = await room.start(hostile.sandbox_id, "sleep", "600")
    for execution in (filler, waits):
        output = await room.output(execution.execution_id)
        assert output.exit.reason == pb.EXIT_REASON_LIMIT_DISK
    assert processes_with(mark) == []
    await still_works(room, neighbour)

    async def gone() -> bool:
        try:
            await room.run(hostile.sandbox_id, "true")
        except FairleadError as error:
            return error.reason == "sandbox_not_found"
        return False

    await eventually(gone)
