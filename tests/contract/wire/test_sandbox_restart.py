"""A worker that is killed, restarted or drained: no process survives it, its journals do."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from chassis.errors import FairleadError
from chassis.ids import random_id
from fairlead.execution.v1 import execution_pb2
from sandbox_worker.journals.encoding import frames
from sandbox_worker.settings import Settings
from tests.contract.wire.sandbox_room import (
    PYTHON,
    SandboxRoom,
    own_worker,
    processes_with,
    room_in_process,
    room_settings,
)
from tests.eventually import eventually

pytestmark = pytest.mark.asyncio

_STUBBORN = """
import os, signal, time
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
up, ready = os.pipe()
if os.fork():
    os.read(up, 1)
    print("up", flush=True)
else:
    os.setsid()
    os.write(ready, b"x")
while True:
    time.sleep(60)
"""


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    with tempfile.TemporaryDirectory(prefix="fls-") as sockets:
        yield room_settings(tmp_path, Path(sockets))


async def stubborn(room: SandboxRoom, name: str) -> tuple[str, str]:
    """Start a program that ignores every polite signal, and its daemon; both carry `name`."""
    sandbox = await room.create("launch")
    execution = await room.start(sandbox.sandbox_id, PYTHON, "-c", _STUBBORN, name, key="main")
    async for frame in room.frames(execution.execution_id):
        if frame.HasField("output"):
            break
    assert len(processes_with(name)) == 2
    return sandbox.sandbox_id, execution.execution_id


def _runs(process: psutil.Process) -> bool:
    with suppress(psutil.Error):  # it ends between two looks
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


async def test_nothing_survives_a_killed_worker(settings: Settings) -> None:
    name = random_id("mrk")
    async with own_worker(settings) as (process, room):
        sandbox_id, execution_id = await stubborn(room, name)
        below = psutil.Process(process.pid).children(recursive=True)
        assert len(below) >= 4
        process.send_signal(signal.SIGKILL)
        process.wait()

        async def left() -> list[psutil.Process]:
            return [each for each in below if _runs(each)]

        await eventually(left, lambda found: found == [])
    async with own_worker(settings) as (process, room):
        output = await room.output(execution_id)
        assert output.stdout == b"up\n"
        assert output.exit.reason == execution_pb2.EXIT_REASON_HOST_LOST
        assert output.exit.last_sequence == 1
        assert (await room.output(execution_id)).exit == output.exit
        again = await room.start(sandbox_id, PYTHON, "-c", _STUBBORN, name, key="main")
        assert again.execution_id == execution_id
        with pytest.raises(FairleadError) as caught:
            await room.start(sandbox_id, "true", key="main")
        assert caught.value.reason == "idempotency_conflict"
        with pytest.raises(FairleadError) as caught:
            await room.create("launch")
        assert caught.value.reason == "sandbox_released"
        assert list((settings.host_root / "sandboxes" / "private").glob("*")) == []
        fresh = await room.create("next")
        assert (await room.run(fresh.sandbox_id, "printf", "x")).stdout == b"x"


async def test_when_all_are_killed_at_once_the_next_worker_cleans_up(settings: Settings) -> None:
    name = random_id("mrk")
    async with own_worker(settings) as (process, room):
        await stubborn(room, name)
        started = psutil.Process(process.pid).children()
        (spawner,) = (each for each in started if "isolation.spawner" in " ".join(each.cmdline()))
        (init,) = spawner.children()
        for each in (process.pid, spawner.pid, init.pid):
            os.kill(each, signal.SIGSTOP)
        for each in (process.pid, spawner.pid, init.pid):
            os.kill(each, signal.SIGKILL)
        process.wait()
        assert len(processes_with(name)) == 2
    async with own_worker(settings):
        assert processes_with(name) == []


async def test_a_drained_worker_leaves_nothing(settings: Settings) -> None:
    name = random_id("mrk")
    async with own_worker(settings) as (process, room):
        _, execution_id = await stubborn(room, name)
        frames = room.frames(execution_id)
        assert (await anext(frames)).HasField("snapshot")
        process.send_signal(signal.SIGTERM)
        (*_, last) = [frame async for frame in frames]
        assert last.exit.reason == execution_pb2.EXIT_REASON_HOST_LOST
        assert await asyncio.to_thread(process.wait, 60) == 0
        assert processes_with(name) == []
    async with room_in_process(settings) as room:
        assert (await room.output(execution_id)).exit == last.exit


async def test_two_workers_do_not_share_a_host(settings: Settings, tmp_path: Path) -> None:
    async with room_in_process(settings):
        with pytest.raises(FairleadError) as caught:
            async with room_in_process(settings):
                pass
    assert caught.value.reason == "host_busy"


async def test_journals_are_cut_where_they_are_torn(settings: Settings) -> None:
    async with room_in_process(settings) as room:
        sandbox = await room.create()
        execution = await room.start(sandbox.sandbox_id, "sh", "-c", "echo 1; sleep 0.2; echo 2")
        await room.output(execution.execution_id)
    journals = settings.host_root / "sandboxes" / "journals"
    (segment,) = journals.glob(f"{execution.execution_id}.*.segment")
    head = journals / f"{execution.execution_id}.head"
    content, description = segment.read_bytes(), head.read_bytes()
    described = next(frames(description)).end
    for cut in (1, 30, len(content) - 20):
        segment.write_bytes(content[: len(content) - cut])
        head.write_bytes(description[: described + 10])
        (journals / random_id("exe")).mkdir()
        async with room_in_process(settings) as room:
            output = await room.output(execution.execution_id)
        assert output.exit.reason == execution_pb2.EXIT_REASON_HOST_LOST
        assert output.exit.last_sequence == len(output.sequences)
        assert b"1\n2\n".startswith(output.stdout)
        assert set(journals.iterdir()) == {head, segment}


async def test_a_worker_may_have_more_files_open_than_its_sandboxes(settings: Settings) -> None:
    """Else one that shares its user could keep it from handing out descriptors."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, limits[1]))
    try:
        async with own_worker(settings) as (process, _):
            soft, hard = psutil.Process(process.pid).rlimit(psutil.RLIMIT_NOFILE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert soft == hard == limits[1]
