"""The warm path: one piece of work, one flush, and nothing left of what was not made."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from tests.fakes.git_client import GitClient
from tests.fakes.mounted_layers import statuses_inside
from tests.fakes.provisioner_room import LEASE, ProvisionerRoom, open_layered_room
from workspace_provisioner.build_runs import Build, BuildRuns
from workspace_provisioner.disk.ledger_files import LedgerFiles
from workspace_provisioner.disk.work import FileWork
from workspace_provisioner.errors import StorageUnavailable, WorkspaceReleased
from workspace_provisioner.ports import CheckoutPlan, Taken
from workspace_provisioner.trees.git_trees import GitTrees
from workspace_provisioner.trees.template_files import TemplateFiles
from workspace_provisioner.workspace_errors import BranchInUse
from workspace_provisioner.workspaces import Miss, Rung, Workspace

pytestmark = pytest.mark.asyncio


@pytest.fixture
def client(tmp_path: Path) -> GitClient:
    found = GitClient(tmp_path / "laptop")
    found.write("file", b"content\n")
    found.commit()
    return found


@pytest_asyncio.fixture
async def room(tmp_path: Path, client: GitClient) -> AsyncIterator[ProvisionerRoom]:
    """A room in which a take of HEAD is warm."""
    async with open_layered_room(tmp_path / "host") as opened:
        await opened.upload(client)
        await opened.preparations.finished()
        await take(opened, client, "first")
        await opened.preparations.finished()
        yield opened


async def take(room: ProvisionerRoom, client: GitClient, key: str, branch: str = "") -> Workspace:
    made = await room.provisioner.materialize(
        idempotency_key=key,
        source=client.source(),
        branch=branch or f"branch-{key}",
        lease=LEASE,
        claims_branch=True,
        overlay=True,
    )
    assert not isinstance(made, Miss)
    return made


def claimed(room: ProvisionerRoom) -> set[str]:
    """The ids of the workspaces that have claims."""
    return {path.read_text() for path in room.layout.names.rglob("*") if path.is_file()}


class Counted:
    """What costs a take or a release its time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hops = self.flushes = 0
        run, fsync, fdatasync = FileWork.run, os.fsync, os.fdatasync

        async def hop(files: FileWork, work: Callable[..., object], *args: object) -> object:
            self.hops += 1
            return await run(files, work, *args)

        def counted(flush: Callable[[int], None]) -> Callable[[int], None]:
            def flushed(descriptor: int) -> None:
                self.flushes += 1
                flush(descriptor)

            return flushed

        monkeypatch.setattr(FileWork, "run", hop)
        monkeypatch.setattr(os, "fsync", counted(fsync))
        monkeypatch.setattr(os, "fdatasync", counted(fdatasync))


async def test_a_take_and_a_release_are_one_piece_of_work_and_one_flush_each(
    room: ProvisionerRoom, client: GitClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        counted = Counted(patch)
        made = await take(room, client, "warm")
        assert (counted.hops, counted.flushes) == (1, 1)
        await room.provisioner.release("ada", workspace_id=made.workspace_id)
        assert (counted.hops, counted.flushes) == (2, 2)
    assert made.rung is Rung.OVERLAY
    assert made.workspace_id not in await room.trees.strays()
    assert made.workspace_id not in claimed(room)


async def test_a_branch_that_somebody_has_is_left_alone(
    room: ProvisionerRoom, client: GitClient
) -> None:
    made = await take(room, client, "winner", "wanted")
    with pytest.raises(BranchInUse):
        await take(room, client, "loser", "wanted")
    assert made.workspace_id in claimed(room)
    assert room.provisioner.workspace_id("ada", "loser") not in claimed(room)
    assert statuses_inside(room.layout, made.workspace_id) == []


async def test_nothing_stays_when_the_record_cannot_be_written(
    room: ProvisionerRoom, client: GitClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    before = await room.trees.strays(), claimed(room)
    with monkeypatch.context() as patch:
        patch.setattr(LedgerFiles, "put_now", full)
        with pytest.raises(StorageUnavailable):
            await take(room, client, "unwritten")
    assert (await room.trees.strays(), claimed(room)) == before
    assert not room.leftovers()
    assert statuses_inside(room.layout, (await take(room, client, "unwritten")).workspace_id) == []


async def test_a_release_during_a_take_leaves_nothing_of_it(
    room: ProvisionerRoom, client: GitClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread is in the middle of it and cannot be stopped."""
    loop, begun, stopped = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    take_ready, stop = GitTrees.take_ready, BuildRuns.stop
    workspace_id = room.provisioner.workspace_id("ada", "k")

    def slow(trees: GitTrees, plan: CheckoutPlan) -> Taken | None:
        taken = take_ready(trees, plan)
        loop.call_soon_threadsafe(begun.set)
        assert stopped.wait(60)
        return taken

    async def told(builds: BuildRuns, build: Build) -> None:
        loop.call_soon(stopped.set)  # by then it is cancelled
        await stop(builds, build)

    monkeypatch.setattr(GitTrees, "take_ready", slow)
    monkeypatch.setattr(BuildRuns, "stop", told)
    asked = asyncio.ensure_future(take(room, client, "k"))
    await begun.wait()
    release = asyncio.ensure_future(room.provisioner.release("ada", workspace_id=workspace_id))
    with pytest.raises(WorkspaceReleased):
        await asked
    assert await release
    assert workspace_id not in await room.trees.strays() | claimed(room)
    with pytest.raises(WorkspaceReleased):
        await take(room, client, "k")


async def test_a_blank_of_a_take_that_failed_is_nobody_elses(
    room: ProvisionerRoom, client: GitClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is thrown away, and what is in stock is not."""
    with monkeypatch.context() as patch:
        patch.setattr(TemplateFiles, "keep", lambda *_: False)
        assert (await take(room, client, "dropped")).rung is not Rung.OVERLAY
    stock = room.trees._stock
    assert all(path.is_dir() for path in (*stock._used, *stock._blanks))
