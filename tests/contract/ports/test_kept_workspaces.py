"""What a live workspace stands on stays: the objects that it borrows and the template below it,
whoever clears up, and whenever the machine starts again.
"""

from __future__ import annotations

import fcntl
import shutil
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from tests.fakes.checkouts import MemoryCare
from tests.fakes.clock import FakeClock
from tests.fakes.disk import PowerCutDisk
from tests.fakes.git_client import GitClient, run_git
from tests.fakes.mounted_layers import statuses_inside
from tests.fakes.provisioned import provisioned
from tests.fakes.provisioner_room import LEASE, ProvisionerRoom, open_layered_room, open_room
from tests.fakes.store_room import open_store_room
from workspace_provisioner import core
from workspace_provisioner.disk.host_root import Owners
from workspace_provisioner.disk.layout import Layout
from workspace_provisioner.disk.ledger_files import LedgerFiles
from workspace_provisioner.disk.record_logs import RecordLogs
from workspace_provisioner.disk.work import FileWork
from workspace_provisioner.store import git_upkeep
from workspace_provisioner.templates import template_id
from workspace_provisioner.trees import pool_files, template_files
from workspace_provisioner.trees.git_trees import GitTrees
from workspace_provisioner.trees.template_records import READY, read_ready
from workspace_provisioner.upkeep import Upkeep
from workspace_provisioner.workspaces import Rung, Workspace

pytestmark = pytest.mark.asyncio


@pytest.fixture
def client(tmp_path: Path) -> GitClient:
    found = GitClient(tmp_path / "laptop")
    found.write("file", b"content\n")
    found.commit()
    return found


async def forked(room: ProvisionerRoom, source: Workspace, key: str) -> Workspace:
    made = await room.provisioner.fork(
        "ada", source.workspace_id,
        idempotency_key=key, name="", branch="", lease=LEASE, overlay=False,
    )  # fmt: skip
    await room.provisioner.release("ada", workspace_id=source.workspace_id)
    return made


async def test_a_copy_borrows_since_its_source_did(tmp_path: Path, client: GitClient) -> None:
    clock = FakeClock()
    async with open_room(tmp_path / "host", clock=clock) as room:
        await room.upload(client)
        first, _ = await room.make("first", client.source())
        clock.advance(60)
        second = await forked(room, first, "second")
        clock.advance(60)
        third = await forked(room, second, "third")
        assert third.created_at == first.created_at + timedelta(seconds=120)
    async with open_room(tmp_path / "host", clock=clock) as room:
        assert await room.provisioner.get("ada", third.workspace_id) == third
        key = client.source().key
        care = MemoryCare(key)
        await Upkeep(care=care, ledger=room.ledger, trees=room.trees).tend()
        assert care.asked == [("tend", key, None), ("prune", key, first.created_at)]


@pytest.mark.parametrize("by", ["age", "damage"])
async def test_what_is_taken_back_in_the_second_of_a_workspace_stays(
    tmp_path: Path, client: GitClient, by: str
) -> None:
    clock = FakeClock()
    async with open_store_room(tmp_path / "host", clock=clock) as room:
        client.git("checkout", "-q", "--orphan", "other")
        client.commit("other history")
        old = client.source()
        await room.upload(client)
        clock.advance(git_upkeep.KEPT_FOR.total_seconds() + 0.2)
        client.git("checkout", "-q", "main")
        await room.upload(client)
        made = clock.now()
        clock.advance(0.5)
        if by == "damage":
            await room.care._repair.forget(old.key)
            await room.upload(client)
        await room.care.tend(old.key)
        clock.advance(2 * git_upkeep.GRACE.total_seconds())
        await room.care.prune(old.key, live_since=made)
        assert run_git(room.store(old), "cat-file", "-t", old.commit) == b"commit\n"
        await room.care.prune(old.key, live_since=made + timedelta(seconds=1))
        missing = run_git(room.store(old), "cat-file", "--batch-check", given=old.commit.encode())
        assert missing.endswith(b"missing\n")


async def test_a_start_leaves_a_template_alone_that_another_process_looks_at(
    tmp_path: Path, client: GitClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While that one looks who uses it, the template is not ready, and has no other sign either."""
    async with open_layered_room(tmp_path / "host") as room:
        await room.upload(client)
        made, _ = await room.make("k", client.source(), overlay=True)
        await room.preparations.finished()
        path = room.layout.templates / template_id(client.source().key, client.head())
        (path / READY).rename(path / "away")
        await room.trees.sweep()
        (path / "away").rename(path / READY)
        assert statuses_inside(room.layout, made.workspace_id) == []

        def locked_out(_: Layout) -> frozenset[str]:
            with open(room.layout.templates / ".lock") as lock, pytest.raises(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            looked.append(None)
            return frozenset()

        looked: list[None] = []
        monkeypatch.setattr(template_files, "used_templates", locked_out)
        await room.trees.sweep()
        assert looked


def start_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (core, template_files, pool_files):
        monkeypatch.setattr(module, "boot_id", lambda: "another boot")


class CutAtFlush(PowerCutDisk):
    """Keeps what a power cut would leave as soon as workspaces are said to outlive one."""

    def __init__(self, root: Path, left: Path) -> None:
        super().__init__(root)
        self._left = left

    def write_whole(self, path: Path, content: bytes, *, durably: bool = True) -> None:
        super().write_whole(path, content, durably=durably)
        if path.name == ".flushed" and not self._left.exists():
            self.leave(self._left)


@pytest.mark.parametrize("ends", ["power cut", "clean"])
async def test_a_workspace_over_a_template_made_on_demand_outlives_a_start_of_the_machine(
    tmp_path: Path, client: GitClient, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    root, left, clock = tmp_path / "host", tmp_path / "left", FakeClock()
    Layout(root).make()

    async def busy(*_: object, **__: object) -> None:
        """Something else is prepared first."""

    with monkeypatch.context() as patch:
        patch.setattr(GitTrees, "prepare", busy)
        async with open_room(root, clock=clock, disk=CutAtFlush(root, left)) as room:
            if not room.trees.can_overlay:
                pytest.skip("overlays cannot be mounted here")
            await room.upload(client)
            made, _ = await room.make("k", client.source(), overlay=True)
            assert made.rung is Rung.OVERLAY
            if ends == "power cut":
                clock.advance(31)
                await room.provisioner.expire()
                assert left.exists()
            else:
                assert not left.exists()
    if ends == "power cut":
        shutil.rmtree(root)
        left.rename(root)
    start_again(monkeypatch)
    async with open_room(root, clock=clock) as room:
        assert await room.provisioner.get("ada", made.workspace_id) == made
        assert statuses_inside(room.layout, made.workspace_id) == []
        template = template_id(client.source().key, client.head())
        found = read_ready(room.layout.templates / template)
        assert found is not None
        assert found[1] == ""  # it is trusted for ever


async def test_a_workspace_that_comes_during_a_flush_waits_for_the_next(tmp_path: Path) -> None:
    """Nobody has made durable yet what it stands on."""
    root = tmp_path / "host"
    for name in ("records", "logs"):
        (root / name).mkdir(parents=True)
    disk = PowerCutDisk(root)
    first, second = provisioned("a"), provisioned("b")
    with ThreadPoolExecutor(max_workers=1) as executor:
        ledgers = []
        for boot in ("1", "2"):
            owners = Owners(root / "owners", f"process{boot}")
            logs = RecordLogs(directory=root / "logs", disk=disk, owners=owners, boot=boot)
            files = FileWork(executor=executor)
            ledgers.append(
                LedgerFiles(
                    directory=root / "records", logs=logs, disk=disk, files=files, boot=boot
                )
            )
        before, after = ledgers
        await before.load()
        await before.put(first)
        await before.flush(lambda: before.put(second))
        disk.cut()
        await after.load()
        assert list(after.all()) == [first]
