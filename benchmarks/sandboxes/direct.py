"""Creates in the worker itself, without a wire: all walls, cgroup limits and the workspace bound,
by a fork and from the pool; a peer of every kind runs between two of them.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.recording import QUICK
from chassis.clock import SystemClock
from chassis.ids import random_id
from sandbox_worker.brief_work import BriefWork
from sandbox_worker.isolation.cgroups import Cgroups
from sandbox_worker.isolation.wall_survey import survey_walls, walls_of
from sandbox_worker.isolation.walled import WalledIsolation
from sandbox_worker.ports import ProgramOrder
from sandbox_worker.sandbox import Limits, NetworkMode, NetworkPolicy
from sandbox_worker.trees import HostTrees

ROUNDS = 5 if QUICK else 150
MOST_CREATES = 2 * (ROUNDS + 1)
TENANT = "bench"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LIMITS = Limits(memory_bytes=256 * 1024 * 1024, processes=64, open_files=4096)
_FIRST_UIDS = (1_900_000_000, 1_900_100_000)
_UIDS = 1000


@dataclass(frozen=True, slots=True)
class Life:
    """The seconds of one create, and of it together with running `true` to its end."""

    create: float
    create_and_true: float


class Lane:
    """One way to create: with so many inits kept ready."""

    def __init__(self, *, isolation: WalledIsolation, pool_size: int, trees: HostTrees) -> None:
        self._isolation = isolation
        self._pool_size = pool_size
        self._trees = trees

    async def calm(self) -> None:
        """Wait until everything that is kept ready is ready."""
        async with asyncio.timeout(30):
            while True:
                living = [each for each in self._isolation.zygotes.generations if each.can_fork]
                ours = [each for each in living if each.tenant == TENANT]
                if len(living) > len(ours) and all(
                    each.depth >= self._pool_size for each in living
                ):
                    return
                await asyncio.sleep(0.005)

    async def live(self, workspace_id: str) -> Life:
        """Create, run `true`, and release."""
        begun = time.perf_counter()
        tree = await self._trees.find(workspace_id)
        enclosure = await self._isolation.enclose(
            random_id("sbx"),
            LIMITS,
            NetworkPolicy(NetworkMode.NONE),
            tenant=TENANT,
            workspace=tree,
        )
        created = time.perf_counter()
        program = await enclosure.start(
            ProgramOrder(
                execution_id=random_id("exe"),
                arguments=("true",),
                environment={},
                directory="",
                stdin=False,
            )
        )
        await program.ended()
        ended = time.perf_counter()
        assert program.end is not None
        assert program.end.code == 0, program.end
        program.close()
        await enclosure.destroy()
        return Life(created - begun, ended - begun)


@asynccontextmanager
async def opened_lanes(host_root: Path, notes: list[str]) -> AsyncIterator[Mapping[str, Lane]]:
    """Open a worker's walled isolation twice, without and with a pool; none where walls cannot be
    had, with a note.
    """
    surveys = [
        await survey_walls(host_root, path=PATH, first_uid=first, uids=_UIDS)
        for first in _FIRST_UIDS
    ]
    missing = [wall for wall in walls_of(surveys[0]) if not wall.stands]
    if not surveys[0].stands:
        notes += [f"wall {wall.name} is missing: {wall.reason}" for wall in missing]
        yield {}
        return
    async with AsyncExitStack() as stack:
        files = stack.enter_context(ThreadPoolExecutor(4))
        cgroups = await stack.enter_async_context(
            Cgroups(
                name=f"fairlead-bench-{os.getpid()}",
                epoch=1,
                work=BriefWork(executor=files, clock=SystemClock()),
            )
        )
        missing += [wall for wall in cgroups.walls if not wall.stands]
        notes += [f"wall {wall.name} is missing: {wall.reason}" for wall in missing]
        trees = HostTrees(host_root=host_root)
        lanes: dict[str, Lane] = {}
        for name, pool_size, survey in zip(("forked", "pooled"), (0, 2), surveys, strict=True):
            isolation = WalledIsolation(
                survey=survey,
                path=PATH,
                cgroups=cgroups,
                pool_size=pool_size,
                clock=SystemClock(),
                host_id=random_id("hst"),
            )
            await stack.enter_async_context(isolation)
            lanes[name] = Lane(isolation=isolation, pool_size=pool_size, trees=trees)
        yield lanes


async def interleaved(
    lanes: Mapping[str, Lane],
    peers: Mapping[str, Callable[[], float]],
    workspaces: Iterator[str],
) -> tuple[Mapping[str, list[Life]], Mapping[str, list[float]]]:
    """Take turns: one create of every lane, in a workspace of its own, and one of every peer."""
    lives: dict[str, list[Life]] = {name: [] for name in lanes}
    seconds: dict[str, list[float]] = {name: [] for name in peers}
    for number in range(ROUNDS + 1):
        for name, lane in lanes.items():
            life = await lane.live(next(workspaces))
            await lane.calm()
            if number:  # the first of a tenant claims its zygote
                lives[name].append(life)
        for name, peer in peers.items():
            # In the loop, so that nothing of ours runs meanwhile.
            seconds[name].append(peer())
    return lives, seconds
