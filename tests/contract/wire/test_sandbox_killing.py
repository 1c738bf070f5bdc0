"""Killing over the wire: released or lost, a sandbox leaves no process and no file."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from chassis.errors import FairleadError
from chassis.ids import random_id
from fairlead.execution.v1 import execution_pb2
from fairlead.sandbox.v1 import sandbox_pb2
from tests.contract.wire.sandbox_room import (
    PYTHON,
    TENANT,
    SandboxRoom,
    processes_with,
    room_in_process,
    room_settings,
)
from tests.eventually import eventually

pytestmark = pytest.mark.asyncio

_DAEMON = """
import os, signal, sys, time
up, ready = os.pipe()
if os.fork():
    os.read(up, 1)
    os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
print("daemon", flush=True)
os.close(1); os.close(2)
os.write(ready, b"x")
while True: time.sleep(60)
"""

_BOMB = """
import os, sys, time
made = 0
while made < 60:
    try:
        if os.fork() == 0:
            made += 20
        made += 1
    except OSError:
        pass
time.sleep(600)
"""


@pytest.fixture
def sockets() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fls-") as directory:
        yield Path(directory)


@pytest_asyncio.fixture
async def room(tmp_path: Path, sockets: Path) -> AsyncIterator[SandboxRoom]:
    settings = room_settings(tmp_path, sockets, most_sandboxes=60, pool_size=0)
    async with room_in_process(settings) as room:
        yield room


def mark() -> str:
    """Text that only one test's processes carry in their command line."""
    return random_id("mrk")


async def listed(room: SandboxRoom, page_size: int = 0) -> list[str]:
    """The ids of all sandboxes, page by page."""
    found: list[str] = []
    token = ""
    while True:
        page = await room.sandboxes.ListSandboxes(
            sandbox_pb2.ListSandboxesRequest(tenant=TENANT, page_size=page_size, page_token=token)
        )
        found.extend(sandbox.sandbox_id for sandbox in page.sandboxes)
        token = page.next_page_token
        if not token:
            return found


async def test_release_ends_executions_once_and_removes_the_files(room: SandboxRoom) -> None:
    sandbox = await room.create()
    private = room.host_root / "sandboxes" / "private" / sandbox.sandbox_id
    stuck = "mkdir -p $HOME/a/b; echo x > $HOME/a/b/c; chmod 0 $HOME/a/b; echo up; exec sleep 60"
    execution = await room.start(sandbox.sandbox_id, "sh", "-c", stuck)
    async for frame in room.frames(execution.execution_id):
        if frame.HasField("output"):
            break
    assert private.exists()
    watching = asyncio.create_task(room.output(execution.execution_id))
    await room.release(sandbox.sandbox_id)
    exit_ = (await watching).exit
    assert exit_.reason == execution_pb2.EXIT_REASON_RELEASED
    assert not exit_.HasField("code")
    assert not exit_.HasField("signal")
    assert exit_.last_sequence == 1
    assert not private.exists()
    assert (await room.output(execution.execution_id)).stdout == b"up\n"
    for use in (room.run(sandbox.sandbox_id, "true"), room.open_port(sandbox.sandbox_id, 80)):
        with pytest.raises(FairleadError) as caught:
            await use
        assert caught.value.reason == "sandbox_not_found"


async def test_a_daemon_is_gone_after_release(room: SandboxRoom) -> None:
    sandbox = await room.create()
    name = mark()
    output = await room.run(sandbox.sandbox_id, PYTHON, "-c", _DAEMON, name)
    assert output.stdout == b"daemon\n"
    assert len(processes_with(name)) == 1
    await room.release(sandbox.sandbox_id)
    assert processes_with(name) == []


async def test_a_fork_bomb_is_gone_after_release(room: SandboxRoom) -> None:
    sandbox = await room.create()
    name = mark()
    await room.start(sandbox.sandbox_id, PYTHON, "-c", _BOMB, name)

    async def grown() -> int:
        return len(processes_with(name))

    await eventually(grown, lambda count: count > 30)
    await room.release(sandbox.sandbox_id)
    assert processes_with(name) == []


async def test_release_during_start_leaves_nothing(room: SandboxRoom) -> None:
    name = mark()
    reasons = []
    for attempt in range(15):
        sandbox = await room.create()
        starting = asyncio.create_task(
            room.start(sandbox.sandbox_id, PYTHON, "-c", "import time; time.sleep(60)", name)
        )
        await asyncio.sleep(attempt * 0.0007)
        await room.release(sandbox.sandbox_id)
        try:
            output = await room.output((await starting).execution_id)
        except FairleadError as error:
            reasons.append(error.reason)
        else:
            assert output.exit.reason == execution_pb2.EXIT_REASON_RELEASED
            reasons.append("released")
        assert processes_with(name) == []
    assert set(reasons) <= {"released", "sandbox_not_found"}


async def test_killing_the_init_loses_one_sandbox(room: SandboxRoom) -> None:
    lost, kept = await room.create(), await room.create()
    name = mark()
    await room.run(lost.sandbox_id, PYTHON, "-c", _DAEMON, name)
    execution = await room.start(lost.sandbox_id, "sleep", "60")
    shown = await room.run(lost.sandbox_id, "sh", "-c", "echo $PPID")
    os.kill(int(shown.stdout), signal.SIGKILL)
    output = await room.output(execution.execution_id)
    assert output.exit.reason == execution_pb2.EXIT_REASON_HOST_LOST
    assert processes_with(name) == []
    await eventually(lambda: listed(room), lambda found: found == [kept.sandbox_id])
    assert (await room.run(kept.sandbox_id, "printf", "x")).stdout == b"x"


async def test_an_init_that_is_stopped_is_released_all_the_same(room: SandboxRoom) -> None:
    sandbox = await room.create()
    name = mark()
    await room.run(sandbox.sandbox_id, PYTHON, "-c", _DAEMON, name)
    shown = await room.run(sandbox.sandbox_id, "sh", "-c", "echo $PPID")
    os.kill(int(shown.stdout), signal.SIGSTOP)
    assert await room.release(sandbox.sandbox_id)
    assert processes_with(name) == []
    assert not psutil.pid_exists(int(shown.stdout))


async def test_killing_the_spawner_loses_all_and_it_comes_back(room: SandboxRoom) -> None:
    sandbox = await room.create()
    name = mark()
    await room.run(sandbox.sandbox_id, PYTHON, "-c", _DAEMON, name)
    execution = await room.start(sandbox.sandbox_id, "sleep", "60")
    shown = await room.run(sandbox.sandbox_id, "sh", "-c", "echo $PPID")
    os.kill(psutil.Process(int(shown.stdout)).ppid(), signal.SIGKILL)
    output = await room.output(execution.execution_id)
    assert output.exit.reason == execution_pb2.EXIT_REASON_HOST_LOST
    await eventually(lambda: listed(room), lambda found: found == [])
    assert processes_with(name) == []
    fresh = await room.create()
    assert (await room.run(fresh.sandbox_id, "printf", "x")).stdout == b"x"


async def test_rounds_leave_no_descriptor_and_no_process(room: SandboxRoom) -> None:
    worker = psutil.Process()

    async def go_round() -> None:
        sandbox = await room.create()
        execution = await room.start(sandbox.sandbox_id, "cat", stdin=True)
        await room.write(execution.execution_id, 0, b"x")
        with pytest.raises(FairleadError):
            await room.start(sandbox.sandbox_id, "no-such-program")
        await room.run(sandbox.sandbox_id, "sh", "-c", "sleep 60 & echo x")
        await room.release(sandbox.sandbox_id)

    await asyncio.gather(*(go_round() for _ in range(10)))
    before = worker.num_fds()
    await asyncio.gather(*(go_round() for _ in range(20)))

    async def descriptors() -> int:
        return worker.num_fds()

    await eventually(descriptors, lambda found: found <= before + 2)
    (spawner,) = [child for child in worker.children() if "spawner" in " ".join(child.cmdline())]
    assert spawner.children(recursive=True) == []
