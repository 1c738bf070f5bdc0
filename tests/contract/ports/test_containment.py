"""Hostile programs: held to their sandbox's limits, told by a typed reason, gone at its release; a
neighbour keeps answering meanwhile.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
from collections.abc import AsyncIterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from chassis.clock import SystemClock
from chassis.ids import random_id
from fairlead_walls.survey import Survey
from sandbox_worker.brief_work import BriefWork
from sandbox_worker.errors import SandboxLost
from sandbox_worker.execution import ExitReason, ProgramEnd
from sandbox_worker.isolation.cgroups import Cgroups
from sandbox_worker.isolation.process import ProcessIsolation
from sandbox_worker.isolation.walled import WalledIsolation
from sandbox_worker.ports import Enclosure, Isolation, Program, ProgramOrder
from sandbox_worker.sandbox import HOST_NETWORK, Limits, NetworkMode, NetworkPolicy
from tests.fakes.isolation import EveryTenant, no_cgroups
from tests.fakes.walled import PATH, run

pytestmark = pytest.mark.asyncio

_MIB = 1024 * 1024
_BOMBS = {
    "loop": "while sleep 600 & do :; done",
    "doubling": "f() { while :; do f & done; }; f",
}
_DAEMON = (
    "setsid sh -c 'trap \"\" HUP INT TERM; setsid sleep 600 & sleep 600' >/dev/null 2>&1 &"
    " sleep 0.01; echo away"
)


@dataclass(frozen=True, slots=True)
class Tier:
    """An isolation with the cgroups of this machine, or with none."""

    isolation: Isolation
    network: NetworkPolicy
    cgroups: Cgroups

    async def enclosure(self, limits: Limits) -> tuple[str, Enclosure]:
        sandbox_id = random_id("sbx")
        made = await self.isolation.enclose(sandbox_id, limits, self.network, tenant="t")
        return sandbox_id, made

    def has(self, wall: str) -> bool:
        """Whether this cgroup limit stands."""
        return any(each.stands for each in self.cgroups.walls if each.name == wall)


@asynccontextmanager
async def _cgroups(files: Executor, *, wanted: bool) -> AsyncIterator[Cgroups]:
    if not wanted:
        yield no_cgroups(files)
        return
    name = f"fairlead-test-{secrets.token_hex(6)}"
    async with Cgroups(
        name=name, epoch=1, work=BriefWork(executor=files, clock=SystemClock())
    ) as made:
        if missing := [f"{wall.name}: {wall.reason}" for wall in made.walls if not wall.stands]:
            pytest.skip("; ".join(missing))
        yield made


@pytest_asyncio.fixture(params=["process", "walled", "walled without cgroups"])
async def tier(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Tier]:
    kind, _, bare = request.param.partition(" ")
    with ThreadPoolExecutor(4) as files:
        async with _cgroups(files, wanted=not bare) as cgroups:
            if kind == "process":
                async with ProcessIsolation(
                    private_root=tmp_path / "private",
                    path=PATH,
                    cgroups=cgroups,
                    executor=files,
                    sole_tenant=EveryTenant(),
                ) as process:
                    yield Tier(process, HOST_NETWORK, cgroups)
                return
            found: Survey = request.getfixturevalue("walls")
            async with WalledIsolation(
                survey=found,
                path=PATH,
                cgroups=cgroups,
                pool_size=1,
                clock=SystemClock(),
                host_id=random_id("hst"),
            ) as walled:
                yield Tier(walled, NetworkPolicy(NetworkMode.NONE), cgroups)


async def started(enclosure: Enclosure, script: str) -> Program:
    return await enclosure.start(
        ProgramOrder(
            execution_id=random_id("exe"),
            arguments=("sh", "-c", f"exec 2>&1; {script}"),
            environment={},
            directory="",
            stdin=False,
        )
    )


async def printed(program: Program, word: bytes) -> None:
    """Read until the program has printed this."""
    seen = b""
    while word not in seen:
        pieces = await program.read()
        assert pieces, seen
        seen += b"".join(piece.content for piece in pieces)


async def breach_of(program: Program) -> ExitReason | None:
    """Read to the end, and return the limit that ended it."""
    while await program.read():
        pass
    program.close()
    assert program.end is not None
    return program.end.breach


def inside(sandbox_id: str) -> list[psutil.Process]:
    """Return the live processes of a sandbox."""
    return [each for each in psutil.process_iter() if is_inside(each, sandbox_id)]


def is_inside(process: psutil.Process, sandbox_id: str) -> bool:
    """Say whether this is one of them; a first process may not be looked into."""
    with suppress(psutil.Error):
        found = process.environ().get("FAIRLEAD_SANDBOX_ID") == sandbox_id
        return found and process.status() != psutil.STATUS_ZOMBIE
    return False


def out_of_memory_score() -> int:
    """Return what the kernel adds to this process's score when memory runs out."""
    return int(Path("/proc/self/oom_score_adj").read_text())


def first_process(sandbox_id: str) -> psutil.Process:
    """Return the init, whose environment is empty or hidden."""
    others = inside(sandbox_id)
    found: psutil.Process | None = others[0]
    while found in others:
        found = found.parent()
    assert found is not None
    return found


async def test_when_memory_runs_out_the_worker_is_not_chosen(tier: Tier) -> None:
    _, enclosure = await tier.enclosure(Limits())
    inside = await run(enclosure, "cat /proc/self/oom_score_adj")
    assert int(inside) == min(out_of_memory_score() + 500, 1000)
    await enclosure.destroy()


@pytest.mark.parametrize("bomb", _BOMBS)
async def test_a_fork_bomb_goes_with_its_sandbox(tier: Tier, bomb: str) -> None:
    hostile_id, hostile = await tier.enclosure(Limits(processes=48))
    _, neighbour = await tier.enclosure(Limits(processes=48))
    assert hostile.limits.processes == 48
    program = await started(hostile, _BOMBS[bomb])
    await printed(program, b"fork")
    assert await run(neighbour, "(echo one; echo two) | cat; echo three") == "one\ntwo\nthree\n"
    assert len(inside(hostile_id)) <= 48
    if bomb == "loop":
        await program.ended()
        assert program.end is not None
        # Without a cgroup nobody but the program learns that a fork was refused.
        told = ExitReason.LIMIT_PIDS if tier.has("cgroup_pids") else None
        assert program.end.breach is told
        assert program.end.code != 0
    await hostile.destroy()
    assert inside(hostile_id) == []
    program.close()
    assert await run(neighbour, "echo still here") == "still here\n"
    await neighbour.destroy()


async def test_a_memory_hog_is_ended_alone(tier: Tier) -> None:
    _, hostile = await tier.enclosure(Limits(memory_bytes=64 * _MIB))
    _, neighbour = await tier.enclosure(Limits(memory_bytes=64 * _MIB))
    told = ExitReason.OUT_OF_MEMORY if tier.has("cgroup_memory") else None
    beside = await started(neighbour, "echo begun; sleep 600")
    await printed(beside, b"begun")
    # Without a line's end tail keeps all that it has read.
    for script in ("exec tail /dev/zero", "tail /dev/zero; exit $?"):
        hog = await started(hostile, script)
        assert await breach_of(hog) is told
        assert hog.end != ProgramEnd(code=0)
    assert await run(hostile, "echo it lives on") == "it lives on\n"
    assert beside.end is None
    await hostile.destroy()
    await neighbour.destroy()
    beside.close()


async def test_files_in_memory_do_not_cost_a_sandbox_its_life(tier: Tier) -> None:
    """They fill their own bound before the memory: what is killed for memory would not free it."""
    if tier.isolation.name != "walled":
        pytest.skip("a plain sandbox has these on the machine's disk")
    _, hostile = await tier.enclosure(Limits(memory_bytes=64 * _MIB))
    _, neighbour = await tier.enclosure(Limits(memory_bytes=64 * _MIB))
    full = "cat /dev/zero > /tmp/a || cat /dev/zero > $HOME/b || cat /dev/zero > /dev/shm/c"
    assert (await run(hostile, f"{full} || echo no room")).endswith("no room\n")
    script = "head -c 1000000 /dev/zero > /tmp/a; wc -c < /tmp/a"
    assert await run(neighbour, script) == "1000000\n"
    assert await run(hostile, f"rm /tmp/a; {script}") == "1000000\n"
    await hostile.destroy()
    await neighbour.destroy()


async def test_a_file_that_is_too_large_ends_its_writer(tier: Tier) -> None:
    _, enclosure = await tier.enclosure(Limits(file_bytes=_MIB))
    filler = await started(enclosure, "cd; exec cat /dev/zero > big")
    assert await breach_of(filler) is ExitReason.LIMIT_DISK
    assert await run(enclosure, "cd; wc -c < big") == f"{_MIB}\n"
    await enclosure.destroy()


async def test_a_flood_that_nobody_reads_waits(tier: Tier) -> None:
    flooding_id, flooding = await tier.enclosure(Limits())
    _, neighbour = await tier.enclosure(Limits())
    program = await started(flooding, "exec yes")
    await printed(program, b"y")
    assert await run(neighbour, "echo dry") == "dry\n"
    await flooding.destroy()
    assert inside(flooding_id) == []
    program.close()
    await neighbour.destroy()


async def test_a_daemon_that_left_its_session_goes_with_its_sandbox(tier: Tier) -> None:
    sandbox_id, enclosure = await tier.enclosure(Limits())
    assert await run(enclosure, _DAEMON) == "away\n"
    assert inside(sandbox_id)
    await enclosure.destroy()
    assert inside(sandbox_id) == []


async def test_a_time_limit_holds_where_the_first_process_is_stopped(
    tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandbox_worker.isolation.init_program._PATIENCE", 0.2)
    sandbox_id, enclosure = await tier.enclosure(Limits())
    program = await started(enclosure, "echo begun; sleep 600")
    await printed(program, b"begun")
    first_process(sandbox_id).suspend()
    await program.expire(signal.SIGTERM)
    assert program.end is None
    await program.expire(signal.SIGKILL)
    async with asyncio.timeout(60):
        await program.ended()
    assert inside(sandbox_id) == []
    await enclosure.destroy()
    program.close()


async def test_a_first_process_that_is_stopped_and_was_sent_much_is_ended(tier: Tier) -> None:
    sandbox_id, enclosure = await tier.enclosure(Limits())
    program = await started(enclosure, "echo begun; sleep 600")
    await printed(program, b"begun")
    first = inside(sandbox_id)[0].parent()
    while first is not None and is_inside(first, sandbox_id):
        first = first.parent()
    assert first is not None
    first.suspend()
    starts = [asyncio.create_task(started(enclosure, ":" + " " * 100_000)) for _ in range(30)]
    ending = asyncio.create_task(enclosure.destroy())
    async with asyncio.timeout(60):
        await ending
    assert inside(sandbox_id) == []
    outcomes = await asyncio.gather(*starts, return_exceptions=True)
    assert {type(each) for each in outcomes} == {SandboxLost}
    program.close()
