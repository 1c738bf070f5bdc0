"""How a sandbox that fills the disk is found and ended."""

from __future__ import annotations

import errno
import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from chassis.ids import random_id
from sandbox_worker import disk_watch
from sandbox_worker.disk_watch import DiskWatch, measure
from sandbox_worker.errors import WorkspaceNotFound
from sandbox_worker.execution import Command, ExitReason
from sandbox_worker.executions import Executions
from sandbox_worker.held_sandbox import SandboxOrder
from sandbox_worker.network.networks import Networks
from sandbox_worker.ports import Layers, Tree
from sandbox_worker.profile import Profile
from sandbox_worker.sandbox import Limits
from sandbox_worker.sandbox_plans import SandboxPlans
from sandbox_worker.sandboxes import Sandboxes
from tests.eventually import eventually
from tests.fakes.clock import FakeClock
from tests.fakes.egress_doors import ListedDoors
from tests.fakes.isolation import ScriptedIsolation
from tests.fakes.sandbox_stores import ListedSpans, MemoryJournals, MemoryRecords

_FULL = 1 << 62
_MIB = 1 << 20
_NOBODY = 65_534
_WORKSPACE = random_id("wsp")


class OneTree:
    """A host with one workspace, until it is given back."""

    def __init__(self, tree: Tree) -> None:
        self.tree: Tree | None = tree

    async def find(self, workspace_id: str) -> Tree:
        if self.tree is None:
            raise WorkspaceNotFound(workspace_id)
        return self.tree


class Bench:
    """A sandbox with a command that runs, bound to a workspace on the disk."""

    def __init__(self, tree: Tree) -> None:
        self.trees = OneTree(tree)
        clock = FakeClock()
        self.sandboxes = Sandboxes(
            host_id="hst",
            id_key=b"k" * 32,
            epoch=1,
            plans=SandboxPlans(
                isolations={"process": ScriptedIsolation(home=tree.path)},
                profiles={"default": Profile()},
            ),
            networks=Networks(doors=ListedDoors()),
            records=MemoryRecords(),
            trees=self.trees,
            clock=clock,
            most=5,
            tombstone_seconds=3600,
        )
        self.executions = Executions(
            sandboxes=self.sandboxes,
            journals=MemoryJournals(),
            spans=ListedSpans(),
            clock=clock,
            id_key=b"k" * 32,
            most_running=4,
            most_kept=4,
            retention_seconds=60,
        )

    async def start(self, disk_bytes: int) -> None:
        """Start a command that runs on, in a bound sandbox."""
        sandbox = await self.sandboxes.create(
            tenant="t",
            key="one",
            order=SandboxOrder(limits=Limits(disk_bytes=disk_bytes), workspace_id=_WORKSPACE),
        )
        assert sandbox.limits.disk_bytes == disk_bytes
        self.execution = await self.executions.start(
            tenant="t",
            key="",
            sandbox_id=sandbox.sandbox_id,
            command=Command(arguments=("wait",)),
        )

    async def swept(self, watch: DiskWatch) -> bool:
        """Go round once; says whether the sandbox lives."""
        await watch.sweep()
        return bool(self.sandboxes.bounded_on_disk())

    async def reason(self) -> ExitReason | None:
        """Return how its command ended."""
        exit_ = self.executions.get(tenant="t", execution_id=self.execution.execution_id).exit
        return exit_.reason if exit_ is not None else None


@pytest.mark.asyncio
@pytest.mark.parametrize("layered", [True, False])
async def test_a_sandbox_that_writes_too_much_ends(tmp_path: Path, layered: bool) -> None:
    upper = tmp_path / "upper"
    upper.mkdir()
    (upper / "checked-out").write_bytes(os.urandom(_MIB // 2))
    layers = Layers(lower=(str(tmp_path),), upper=str(upper), work=str(tmp_path / "work"))
    tree = Tree(tmp_path / "empty", layers) if layered else Tree(upper)
    bench = Bench(tree)
    with ThreadPoolExecutor(1) as files:
        watch = DiskWatch(sandboxes=bench.sandboxes, trees=bench.trees, executor=files)
        await bench.start(disk_bytes=_MIB)
        assert await bench.swept(watch)
        (upper / "more").write_bytes(os.urandom(_MIB // 4))
        assert await bench.swept(watch)
        (upper / "much more").write_bytes(os.urandom(_MIB))
        assert not await bench.swept(watch)
        assert await eventually(bench.reason) is ExitReason.LIMIT_DISK
    await bench.sandboxes.close()
    await bench.executions.close()


@pytest.mark.asyncio
async def test_a_workspace_that_was_given_back_ends_nobody(tmp_path: Path) -> None:
    bench = Bench(Tree(tmp_path))
    with ThreadPoolExecutor(1) as files:
        watch = DiskWatch(sandboxes=bench.sandboxes, trees=bench.trees, executor=files)
        await bench.start(disk_bytes=_MIB)
        bench.trees.tree = None
        assert await bench.swept(watch)
        assert await bench.reason() is None
    await bench.sandboxes.close()
    await bench.executions.close()


def test_blocks_are_counted_and_an_entry_counts_at_least_an_inode(tmp_path: Path) -> None:
    assert measure(tmp_path, _FULL) == 0
    (tmp_path / "empty").touch()
    assert measure(tmp_path, _FULL) == 1024
    (tmp_path / "folder" / "below").mkdir(parents=True)
    (tmp_path / "folder" / "below" / "big").write_bytes(os.urandom(1 << 20))
    assert measure(tmp_path, _FULL) >= (1 << 20) + 1024


def test_a_file_with_two_names_counts_once(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(os.urandom(1 << 20))
    alone = measure(tmp_path, _FULL)
    os.link(tmp_path / "one", tmp_path / "two")
    assert measure(tmp_path, _FULL) == alone


def test_a_hole_is_not_on_the_disk(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    assert measure(tmp_path, _FULL) < 1 << 20


def test_no_link_is_followed(tmp_path: Path) -> None:
    elsewhere, inside = tmp_path / "elsewhere", tmp_path / "inside"
    elsewhere.mkdir()
    inside.mkdir()
    (elsewhere / "big").write_bytes(os.urandom(1 << 20))
    (inside / "link").symlink_to(elsewhere)
    assert measure(inside, _FULL) < 1 << 16
    assert measure(tmp_path / "nowhere", _FULL) == 0
    with pytest.raises(OSError, match="Not a directory"):
        measure(inside / "link", _FULL)


def test_what_is_shut_is_counted_all_the_same() -> None:
    """By a worker without rights, whose sandboxes have its own uid."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / "upper"
        for folder in ("shut", "listed", "listed/shut"):
            (root / folder).mkdir(parents=True)
            (root / folder / "big").write_bytes(os.urandom(_MIB))
        (root / "listed" / "shut").chmod(0)
        (root / "listed").chmod(0o400)
        (root / "shut").chmod(0)
        root.chmod(0)
        Path(name).chmod(0o711)
        assert _measured_by_its_owner(root) >= 3 * _MIB


def _measured_by_its_owner(root: Path) -> int:
    """Measure as somebody whom permissions hold."""
    reading, writing = os.pipe()
    rights = os.getuid() == 0
    if rights:
        for path in (root, *root.rglob("*")):
            os.chown(path, _NOBODY, _NOBODY)
    child = os.fork()
    if child == 0:
        try:
            if rights:
                os.setgroups([])
                os.setresgid(_NOBODY, _NOBODY, _NOBODY)
                os.setresuid(_NOBODY, _NOBODY, _NOBODY)
            os.write(writing, str(measure(root, _FULL)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        found = answer.read()
    os.waitpid(child, 0)
    return int(found)


@pytest.mark.asyncio
async def test_a_walk_that_fails_keeps_no_other_sandbox_unseen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(Tree(tmp_path))
    with ThreadPoolExecutor(1) as files:
        watch = DiskWatch(sandboxes=bench.sandboxes, trees=bench.trees, executor=files)
        await bench.start(disk_bytes=_MIB)
        seen: list[Path] = []

        def failing(root: Path, most: int) -> int:
            seen.append(root)
            raise OSError(errno.EIO, "Input/output error")

        monkeypatch.setattr(disk_watch, "measure", failing)
        (one,) = bench.sandboxes.bounded_on_disk()
        monkeypatch.setattr(bench.sandboxes, "bounded_on_disk", lambda: [one, one])
        await watch.sweep()
        assert len(seen) == 2
    await bench.sandboxes.close()
    await bench.executions.close()


def test_a_walk_ends_when_the_answer_is_certain(tmp_path: Path) -> None:
    for number in range(100):
        (tmp_path / str(number)).mkdir()
    assert measure(tmp_path, 10_000) > 10_000
    deep = tmp_path / "deep"
    deep.mkdir()
    inside = os.open(deep, os.O_RDONLY)
    for _ in range(300):
        os.mkdir("d", dir_fd=inside)
        below = os.open("d", os.O_RDONLY, dir_fd=inside)
        os.close(inside)
        inside = below
    os.close(inside)
    held = len(os.listdir("/proc/self/fd"))
    assert measure(deep, _FULL) > _FULL
    assert len(os.listdir("/proc/self/fd")) == held
