"""What a host does on its own disk, without a wire: takes, bursts, deletions, and
`git worktree add` beside them. The durable record is in every figure.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.local_stack import GIT, Repository
from benchmarks.recording import QUICK
from benchmarks.workspaces.repositories import CHUNK, WorktreePeer, thin_pack
from chassis.clock import SystemClock
from workspace_provisioner.core import Bounds, Core, opened_core
from workspace_provisioner.sources import DEFAULT_LEASE, Source, Tip, checked_source
from workspace_provisioner.workspaces import Miss, Snapshot, Workspace

TENANT = "bench"
TAKES = 10 if QUICK else 200
PEER_RUNS = 2 if QUICK else 5
BURST = 50
BURSTS = 1 if QUICK else 5
_PREPARED = {"overlay", "overlay_delta"}
_SERVICES = Path(__file__).resolve().parents[2] / "services"
_STATUS = """
import os, subprocess, sys, time
sys.path.insert(0, sys.argv[1])
from sandbox_worker.isolation.overlay import enter_mount_namespace, mount_overlay
target, upper, work, *lower = map(os.fsencode, sys.argv[2:])
enter_mount_namespace()
mount_overlay(target, upper=upper, work=work, lower=lower)
start = time.perf_counter()
command = ["git", "-C", target, "status", "--porcelain"]
status = subprocess.run(command, capture_output=True, check=True)
print(time.perf_counter() - start)
assert status.stdout == b"", status.stdout
"""


class NoDirectory:
    """A directory of hosts for one host."""

    async def publish(self, snapshot: Snapshot) -> None:
        """Tell nobody."""

    async def is_current(self) -> bool:
        """Say that nothing was lost."""
        return True


@asynccontextmanager
async def opened_host(root: Path) -> AsyncIterator[Host]:
    """Open a provisioner on a directory of its own."""
    git = shutil.which("git")
    assert git is not None
    async with opened_core(
        host_root=root,
        git_program=git,
        secret=b"bench",
        bounds=Bounds(
            workspaces=10_000,
            builds=64,
            uploads=4,
            pack_bytes=1 << 31,
            idle_seconds=30,
            git_seconds=600,
            reserve_bytes=0,
        ),
        clock=SystemClock(),
        directory=NoDirectory(),
        on_reason=lambda _: None,
    ) as core:
        yield Host(root=root, core=core)


def source_of(repository: Repository) -> Source:
    """Return the repository's clean checkout as a source of the bench's tenant."""
    return checked_source(
        tenant=TENANT,
        project=repository.project,
        object_format="sha1",
        commit=repository.commit,
        branch="main",
        digest="",
        changes=None,
    )


@dataclass
class Host:
    """A provisioner without a wire."""

    root: Path
    core: Core
    rungs: set[str] = field(default_factory=set)

    async def sync(self, repository: Repository) -> float:
        """Import a repository and wait until a launch only takes; returns the seconds of both."""
        pack = await asyncio.to_thread(thin_pack, repository)

        async def chunks() -> AsyncIterator[bytes]:
            for offset in range(0, len(pack), CHUNK):
                yield pack[offset : offset + CHUNK]

        start = time.perf_counter()
        tips = (Tip("refs/heads/main", repository.commit),)
        await self.core.importer.receive(source_of(repository), tips, chunks())
        while True:
            made = await self.take(repository)
            await self.release(made)
            if made.rung in _PREPARED:
                return time.perf_counter() - start
            await asyncio.sleep(0.1)

    async def take(self, repository: Repository, *, branch: str = "") -> Workspace:
        """Make a workspace on a new branch."""
        key = uuid.uuid4().hex
        made = await self.core.provisioner.materialize(
            idempotency_key=key,
            source=source_of(repository),
            branch=branch or f"b-{key}",
            lease=DEFAULT_LEASE,
            claims_branch=True,
            overlay=True,
        )
        assert not isinstance(made, Miss), made
        return made

    async def release(self, workspace: Workspace, *, checked: bool = False) -> None:
        """Give it back."""
        await self.core.provisioner.release(
            TENANT, workspace_id=workspace.workspace_id, checked=checked
        )

    async def takes(self, repository: Repository) -> tuple[list[float], list[float], list[float]]:
        """Time takes, forced and checked deletions, one after the other."""
        taking: list[float] = []
        forced: list[float] = []
        checked: list[float] = []
        for number in range(TAKES):
            made, seconds = await _timed(lambda: self.take(repository))
            self.rungs.add(str(made.rung))
            taking.append(seconds)
            is_checked = number % 4 == 0
            _, seconds = await _timed(lambda: self.release(made, checked=is_checked))  # noqa: B023
            (checked if is_checked else forced).append(seconds)
        return taking, forced, checked

    async def burst(self, repository: Repository) -> tuple[float, float, int]:
        """Take fifty at once; returns per second, the seconds of the last, and the failures."""
        start = time.perf_counter()
        made = await asyncio.gather(
            *(self.take(repository) for _ in range(BURST)), return_exceptions=True
        )
        last = time.perf_counter() - start
        good = [each for each in made if isinstance(each, Workspace)]
        self.rungs |= {str(each.rung) for each in good}
        for each in good[:3]:
            await self.first_status(each)
        for each in good:
            await self.release(each)
        return len(good) / last, last, BURST - len(good)

    async def first_status(self, workspace: Workspace) -> float:
        """Time the first `git status`, with the layers mounted as a sandbox does; it is clean."""
        place = self.root / "layers" / workspace.workspace_id
        lower = json.loads((place / "mount.json").read_text())["lower"]
        tree = self.root / "trees" / workspace.workspace_id
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _STATUS, str(_SERVICES),
            str(tree), str(place / "upper"), str(place / "work"), *lower,
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        printed, _ = await process.communicate()
        assert process.returncode == 0
        return float(printed)


async def _timed(work: Callable[[], Awaitable[Workspace | None]]) -> tuple[Workspace, float]:
    start = time.perf_counter()
    made = await work()
    return made, time.perf_counter() - start  # type: ignore[return-value]


def worktrees(repository: Repository, directory: Path, *, runs: int) -> list[float]:
    """Time `git worktree add` on the same disk."""
    peer = WorktreePeer(repository)
    seconds = []
    for number in range(runs):
        place = directory / f"peer-{number}"
        start = time.perf_counter()
        peer.add(place)
        seconds.append(time.perf_counter() - start)
        peer.remove(place)
    return seconds


def settled_status(repository: Repository, directory: Path) -> list[float]:
    """Time `git status` in a worktree whose index is older than it was racy."""
    peer = WorktreePeer(repository)
    place = directory / "settled"
    peer.add(place)
    time.sleep(1.1)
    command = [*GIT, "-C", str(place), "status", "--porcelain"]
    subprocess.run([*GIT, "-C", str(place), "update-index", "-q", "--refresh"], check=True)
    seconds = []
    for _ in range(PEER_RUNS * 2 + 1):
        start = time.perf_counter()
        printed = subprocess.run(command, capture_output=True, check=True).stdout
        seconds.append(time.perf_counter() - start)
        assert printed == b""
    peer.remove(place)
    return seconds[1:]
