"""Cgroups of the real kernel: they limit, tell who broke a limit, and leave nothing behind."""

from __future__ import annotations

import os
import secrets
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
import pytest_asyncio

from chassis.clock import SystemClock
from sandbox_worker.brief_work import BriefWork
from sandbox_worker.execution import ExitReason, ProgramEnd
from sandbox_worker.isolation import cgroup_files, cgroup_v2
from sandbox_worker.isolation.cgroup_files import members, own_places
from sandbox_worker.isolation.cgroup_join import join
from sandbox_worker.isolation.cgroup_survey import survey
from sandbox_worker.isolation.cgroup_trees import hold_tree
from sandbox_worker.isolation.cgroup_v2 import CgroupV2Tree
from sandbox_worker.isolation.cgroups import Cgroup, Cgroups
from sandbox_worker.sandbox import Limits
from tests.eventually import eventually

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make cgroups here"),
]

_MIB = 1024 * 1024
WAIT = "import signal; signal.pause()"
_HOG = "held = []\nwhile True: held.append(bytearray(1024 * 1024))"
_LOOP_BOMB = """
import os, sys, time
refused = 0
while refused < 20:
    try:
        if os.fork() == 0:
            time.sleep(600)
    except OSError:
        refused += 1
print("full", flush=True)
sys.exit(1)
"""
_DOUBLING_BOMB = """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""
_DAEMON = """
import os, signal, sys, time
for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}:
    try:
        signal.signal(number, signal.SIG_IGN)
    except OSError:
        pass
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        os.close(1)
        time.sleep(600)
"""


@pytest.fixture
def name() -> str:
    return f"fairlead-test-{secrets.token_hex(6)}"


@pytest.fixture
def work() -> Iterator[BriefWork]:
    with ThreadPoolExecutor(2) as executor:
        yield BriefWork(executor=executor, clock=SystemClock())


@pytest_asyncio.fixture
async def cgroups(name: str, work: BriefWork) -> AsyncIterator[Cgroups]:
    async with Cgroups(name=name, epoch=1, work=work) as made:
        missing = [f"{wall.name}: {wall.reason}" for wall in made.walls if not wall.stands]
        if missing:
            pytest.skip("; ".join(missing))
        yield made


def directories(name: str) -> list[Path]:
    """Return what carries this name in any hierarchy."""
    places = own_places(
        Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text()
    )
    return [path for place in places for path in place.path.glob(f"{name}*")]


def started(group: Cgroup, program: str, *, read: bool = False) -> subprocess.Popen[bytes]:
    """Run a Python program in a cgroup, which it joins as an init does."""
    with group.doors() as doors:
        return joined(doors, program, output=subprocess.PIPE if read else subprocess.DEVNULL)


def joined(
    doors: Sequence[int], program: str, *, output: int = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-ISc", program],
        pass_fds=doors,
        preexec_fn=lambda: join(doors),
        stdout=output,
    )


def end_of(process: subprocess.Popen[bytes]) -> ProgramEnd:
    code = process.wait(timeout=60)
    return ProgramEnd(signal=-code) if code < 0 else ProgramEnd(code=code)


@pytest.mark.asyncio
async def test_all_walls_stand_and_a_cgroup_is_left_by_nobody(cgroups: Cgroups, name: str) -> None:
    group = await cgroups.take()
    process = started(group, WAIT)
    await group.release()
    assert process.wait(timeout=60) == -signal.SIGKILL
    await group.release()
    assert [wall.name for wall in cgroups.walls] == ["cgroup_memory", "cgroup_pids", "cgroup_cpu"]


@pytest.mark.asyncio
async def test_nothing_stays_after_the_end(name: str, work: BriefWork) -> None:
    async with Cgroups(name=name, epoch=1, work=work) as cgroups:
        taken = await cgroups.take()
        process = started(taken, WAIT)
        assert directories(name)
    assert process.wait(timeout=60) == -signal.SIGKILL
    assert directories(name) == []


def test_a_user_without_rights_is_told_what_to_do(name: str) -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            told = "\n".join(wall.reason for wall in survey(name=name).walls)
            os.write(writing, told.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        reasons = answer.read().splitlines()
    os.waitpid(child, 0)
    assert len(reasons) == 3
    assert all("Delegate=yes" in reason or "mounted" in reason for reason in reasons), reasons
    assert directories(name) == []


@pytest.mark.asyncio
async def test_a_memory_hog_is_killed_and_told(cgroups: Cgroups) -> None:
    hungry, neighbour = await cgroups.take(), await cgroups.take()
    for group in (hungry, neighbour):
        group.limit(Limits(memory_bytes=64 * _MIB))
    mark = hungry.mark()
    beside = started(neighbour, "print(input)")
    end = end_of(started(hungry, _HOG))
    assert end.signal == signal.SIGKILL
    assert hungry.breach(mark, end) is ExitReason.OUT_OF_MEMORY
    assert hungry.breach(mark, ProgramEnd(code=137)) is ExitReason.OUT_OF_MEMORY
    assert hungry.breach(mark, ProgramEnd()) is ExitReason.OUT_OF_MEMORY
    assert hungry.breach(mark, ProgramEnd(code=0)) is None
    assert hungry.breach(mark, ProgramEnd(code=3)) is None
    assert hungry.breach(hungry.mark(), end) is None
    assert end_of(beside) == ProgramEnd(code=0)
    for group in (hungry, neighbour):
        await group.release()


@pytest.mark.asyncio
async def test_a_tmpfs_counts_as_memory(cgroups: Cgroups, tmp_path: Path) -> None:
    group = await cgroups.take()
    group.limit(Limits(memory_bytes=64 * _MIB))
    mark = group.mark()
    shared = Path("/dev/shm") / f"fairlead-test-{secrets.token_hex(6)}"  # noqa: S108
    try:
        end = end_of(
            started(
                group, f"out = open({str(shared)!r}, 'wb')\nwhile True: out.write(bytes(65536))"
            )
        )
    finally:
        shared.unlink()
    assert group.breach(mark, end) is ExitReason.OUT_OF_MEMORY
    await group.release()


@pytest.mark.parametrize("bomb", [_LOOP_BOMB, _DOUBLING_BOMB], ids=["loop", "doubling"])
@pytest.mark.asyncio
async def test_a_fork_bomb_is_held_killed_and_told(
    cgroups: Cgroups, work: BriefWork, bomb: str
) -> None:
    hostile, neighbour = await cgroups.take(), await cgroups.take()
    hostile.limit(Limits(processes=48))
    mark = hostile.mark()
    process = started(hostile, bomb)

    async def refused() -> int:
        return hostile.mark().refused_forks

    await eventually(refused)
    beside = started(
        neighbour, "import os\nif os.fork() == 0: os._exit(0)\nassert os.wait()[1] == 0"
    )
    assert end_of(beside) == ProgramEnd(code=0)
    assert neighbour.mark().refused_forks == 0
    if bomb == _LOOP_BOMB:
        end = end_of(process)
        assert hostile.breach(mark, end) is ExitReason.LIMIT_PIDS
        assert hostile.breach(mark, ProgramEnd(code=0)) is None
    await hostile.release()
    process.wait(timeout=60)
    await neighbour.release()


@pytest.mark.asyncio
async def test_a_daemon_that_hides_is_killed(cgroups: Cgroups) -> None:
    group = await cgroups.take()
    process = started(group, _DAEMON, read=True)
    daemon = int(process.communicate(timeout=60)[0])
    pinned = os.pidfd_open(daemon)
    await group.release()
    # The kernel takes the dead out of their cgroup before it tells of their end.
    ended, _, _ = select.select([pinned], [], [], 60)
    os.close(pinned)
    assert ended


@pytest.mark.asyncio
async def test_processor_time_is_held(cgroups: Cgroups) -> None:
    group = await cgroups.take()
    group.limit(Limits(cpu_milli=100))
    process = started(
        group,
        "import time\nbegun, spent = time.monotonic(), time.process_time()\n"
        "while time.process_time() < spent + 0.1: pass\n"
        "print(time.monotonic() - begun)",
        read=True,
    )
    # A tenth of a second of work at a tenth of a processor cannot end before the quota of nine
    # further periods was given out.
    assert float(process.communicate(timeout=60)[0]) > 0.5
    await group.release()


@pytest.mark.asyncio
async def test_a_limit_can_be_written_after_the_join(cgroups: Cgroups) -> None:
    group = await cgroups.take()
    mark = group.mark()
    hungry = started(group, _HOG)
    group.limit(Limits(memory_bytes=64 * _MIB))
    assert group.breach(mark, end_of(hungry)) is ExitReason.OUT_OF_MEMORY
    await group.release()


class Unified:
    """A version 2 tree without controllers, on whatever this machine mounts."""

    def __init__(self, parent: Path) -> None:
        self.parent = parent
        self.tree = CgroupV2Tree(parent=parent, controllers=frozenset())


@pytest.fixture
def unified(name: str) -> Iterator[Unified]:
    places = own_places(
        Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text()
    )
    for place in places:
        if not place.controllers:
            with suppress(OSError):
                held = hold_tree(place.path / name)
                yield Unified(place.path / name)
                (place.path / name).rmdir()
                os.close(held)
                return
    pytest.skip("no cgroup hierarchy of version 2 can be written here")


@pytest.mark.parametrize("old_kernel", [False, True])
@pytest.mark.asyncio
async def test_version_2_kills_a_bomb_at_once(
    unified: Unified, monkeypatch: pytest.MonkeyPatch, work: BriefWork, old_kernel: bool
) -> None:
    tree = unified.tree
    if old_kernel:
        _without_kill(monkeypatch)
    tree.make("one")
    doors = tree.doors("one")
    process = joined(doors, f"import os\nfor _ in range(5): os.fork()\n{WAIT}")
    for door in doors:
        os.close(door)

    async def inside() -> Sequence[int]:
        return members(unified.parent / "one")

    await eventually(inside, lambda found: len(found) == 32)
    assert tree.kill("one") is False
    await eventually(inside, lambda found: not found)
    process.wait(timeout=60)
    assert tree.kill("one") is True
    assert tree.names() == ["one"]
    tree.remove("one")
    tree.remove("one")
    assert tree.names() == []


def _without_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[[Path, str], None] = cgroup_files.write

    def written(path: Path, text: str) -> None:
        if path.name == "cgroup.kill":
            raise FileNotFoundError(path)
        real(path, text)

    monkeypatch.setattr(cgroup_v2, "write", written)


@pytest.mark.asyncio
async def test_version_2_writes_what_is_asked(tmp_path: Path) -> None:
    group = tmp_path / "one"
    tree = CgroupV2Tree(parent=tmp_path, controllers={"memory", "pids", "cpu"})
    tree.make("one")
    for file in ("memory.max", "memory.swap.max", "pids.max", "cpu.max"):
        (group / file).touch()
    tree.limit("one", Limits(memory_bytes=64 * _MIB, processes=20, cpu_milli=1500))
    (group / "memory.events").write_text("low 0\nhigh 0\nmax 9\noom 2\noom_kill 1\n")
    (group / "pids.events").write_text("max 3\n")
    assert (group / "memory.max").read_text() == str(64 * _MIB)
    assert (group / "memory.swap.max").read_text() == "0"
    assert (group / "pids.max").read_text() == "20"
    assert (group / "cpu.max").read_text() == "150000 100000"
    counts = tree.counts("one")
    assert (counts.memory_kills, counts.refused_forks) == (1, 3)
