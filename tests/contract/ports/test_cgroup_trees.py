"""The cgroups of workers that were killed, and of those that start side by side."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from chassis.clock import SystemClock
from sandbox_worker.brief_work import BriefWork
from sandbox_worker.isolation.cgroup_trees import hold_tree, sweep_beside
from sandbox_worker.isolation.cgroups import Cgroups
from tests.contract.ports.test_cgroups import WAIT, directories, joined, started

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make cgroups here"),
]


@pytest.fixture
def name() -> str:
    return f"fairlead-test-{secrets.token_hex(6)}"


@pytest.fixture
def work() -> Iterator[BriefWork]:
    with ThreadPoolExecutor(2) as executor:
        yield BriefWork(executor=executor, clock=SystemClock())


async def left_by_killed(name: str, work: BriefWork) -> subprocess.Popen[bytes]:
    """Return a process of a sandbox whose worker is dead: nobody holds its cgroups any more."""
    found = Cgroups(name=name, epoch=1, work=work)
    await found.__aenter__()
    process = started(await found.take(), WAIT)
    found._is_over = True
    if found._refill is not None:
        await asyncio.wait([found._refill])
    for lock in found._survey.locks:
        os.close(lock)
    return process


@pytest.mark.parametrize("is_left", [False, True])
def test_a_tree_that_another_worker_sweeps_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_left: bool
) -> None:
    tree = tmp_path / "fairlead-one"
    if is_left:
        tree.mkdir()
    make = os.mkdir
    sweeps: list[bool] = []

    def overtaken(path: str | Path, mode: int = 0o777) -> None:
        try:
            make(path, mode)
        finally:
            if not sweeps:
                sweep_beside(tmp_path / "fairlead-two")
                sweeps.append(tree.exists())

    monkeypatch.setattr(os, "mkdir", overtaken)
    held = hold_tree(tree)
    try:
        assert sweeps == [False]
        assert os.path.samestat(os.fstat(held), tree.stat())
        sweep_beside(tmp_path / "fairlead-two")
        assert tree.exists()
    finally:
        os.close(held)


@pytest.mark.asyncio
async def test_limits_are_held_after_a_worker_was_killed_that_tried_them(
    name: str, work: BriefWork
) -> None:
    async with Cgroups(name=name, epoch=1, work=work) as earlier:
        trees = directories(name)
    for tree in trees:
        leave(tree / "trial")
    async with Cgroups(name=name, epoch=2, work=work) as later:
        assert later.walls == earlier.walls
    assert directories(name) == []


@pytest.mark.asyncio
async def test_an_earlier_life_is_cleared_away_and_nobody_else(name: str, work: BriefWork) -> None:
    async with Cgroups(name=name, epoch=1, work=work) as living:
        neighbour = await living.take()
        beside = started(neighbour, WAIT)
        left = await left_by_killed(f"{name}-killed", work)
        async with Cgroups(name=f"{name}-killed", epoch=2, work=work):
            assert left.wait(timeout=60) == -signal.SIGKILL
        assert directories(f"{name}-killed") == []
        assert beside.poll() is None
        await neighbour.release()
        beside.wait(timeout=60)


@pytest.mark.asyncio
async def test_what_a_dead_worker_left_is_swept_when_nothing_runs_in_it(
    name: str, work: BriefWork
) -> None:
    process = joined((), WAIT)
    try:
        async with Cgroups(name=f"{name}-lives", epoch=1, work=work) as living:
            trees = directories(f"{name}-lives")
            for tree in trees:
                leave(tree.parent / f"{name}-dead" / "1-1")
                leave(tree.parent / f"{name}-busy" / "1-1", process.pid)
            async with Cgroups(name=f"{name}-next", epoch=1, work=work):
                assert directories(f"{name}-dead") == []
                assert len(directories(f"{name}-busy")) == len(trees)
                assert directories(f"{name}-lives") == trees
                assert await living.take()
    finally:
        process.kill()
        process.wait(timeout=60)
    async with Cgroups(name=f"{name}-last", epoch=1, work=work):
        assert directories(f"{name}-busy") == []
    assert directories(name) == []


def leave(group: Path, pid: int = 0) -> None:
    """Make a cgroup, and move a process in; another worker that starts right now sweeps what is
    empty.
    """
    while True:
        with suppress(FileNotFoundError, FileExistsError):
            group.mkdir(parents=True, exist_ok=True)
            if pid:
                (group / "cgroup.procs").write_text(str(pid))
            return
