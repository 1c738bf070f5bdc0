"""Calls whose caller leaves in the middle, and calls that meet: what is there afterwards is whole,
and the next call finds nothing in its way.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.fakes.git_client import GitClient
from tests.fakes.provisioner_room import LEASE, ProvisionerRoom, open_layered_room
from workspace_provisioner.build_runs import Build, BuildRuns
from workspace_provisioner.disk.ledger_files import LedgerFiles
from workspace_provisioner.errors import StorageUnavailable, WorkspaceReleased
from workspace_provisioner.git import checkout
from workspace_provisioner.git.checkout import CHANGES_PACK, GitCheckouts
from workspace_provisioner.git.command import Place
from workspace_provisioner.trees import tree_copies
from workspace_provisioner.trees.layer_views import View, open_file
from workspace_provisioner.workspace_errors import WorkspaceExists
from workspace_provisioner.workspaces import State, Workspace

pytestmark = pytest.mark.asyncio


class Killed(BaseException):
    """The process ends here."""


class SlowRecords:
    """Every record is written, and then its writer is kept until `let_go`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop, put_now = asyncio.get_running_loop(), LedgerFiles.put_now
        self.written, self._left = asyncio.Event(), threading.Event()

        def slow(ledger: LedgerFiles, workspace: Workspace) -> None:
            put_now(ledger, workspace)
            loop.call_soon_threadsafe(self.written.set)
            assert self._left.wait(60)

        monkeypatch.setattr(LedgerFiles, "put_now", slow)

    def let_go(self) -> None:
        self._left.set()


@pytest.fixture
def client(tmp_path: Path) -> GitClient:
    found = GitClient(tmp_path / "laptop")
    for number in range(20):
        found.write(f"f{number}", b"content\n")
    found.commit()
    return found


@pytest_asyncio.fixture
async def room(tmp_path: Path, client: GitClient) -> AsyncIterator[ProvisionerRoom]:
    async with open_layered_room(tmp_path / "host") as opened:
        await opened.upload(client)
        yield opened


async def named(room: ProvisionerRoom, client: GitClient, key: str, name: str) -> Workspace:
    made = await room.provisioner.materialize(
        idempotency_key=key, source=client.source(), branch="", lease=LEASE, name=name
    )
    assert isinstance(made, Workspace)
    return made


async def dirty(room: ProvisionerRoom, client: GitClient, key: str, *, overlay: bool) -> Workspace:
    client.write("f1", b"changed\n")
    made, _ = await room.make(key, client.source(changes=client.dirty()), overlay=overlay)
    return made


async def test_a_rename_whose_caller_leaves_gives_one_name(
    room: ProvisionerRoom, client: GitClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await named(room, client, "k", "one")
    with monkeypatch.context() as patch:
        records = SlowRecords(patch)
        renaming = asyncio.create_task(
            room.provisioner.rename("ada", made.workspace_id, "two"), name="rename"
        )
        await records.written.wait()
        renaming.cancel()
        records.let_go()
        with pytest.raises(asyncio.CancelledError):
            await renaming
    assert (await room.provisioner.get("ada", made.workspace_id)).name == "two"
    with pytest.raises(WorkspaceExists):
        await named(room, client, "other", "two")
    assert (await named(room, client, "again", "one")).name == "one"


async def test_a_rename_that_fails_after_it_was_written_gives_one_name(
    room: ProvisionerRoom, client: GitClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await named(room, client, "k", "one")
    put_now = LedgerFiles.put_now

    def failing(ledger: LedgerFiles, workspace: Workspace) -> None:
        put_now(ledger, workspace)
        raise OSError("the disk does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(LedgerFiles, "put_now", failing)
        with pytest.raises(StorageUnavailable):
            await room.provisioner.rename("ada", made.workspace_id, "two")
    with pytest.raises(WorkspaceExists):
        await named(room, client, "other", "two")
    assert (await named(room, client, "again", "one")).name == "one"


@pytest.mark.parametrize("forked", [False, True], ids=["made", "forked"])
async def test_a_release_whose_caller_leaves_leaves_no_record_without_files(
    room: ProvisionerRoom, client: GitClient, monkeypatch: pytest.MonkeyPatch, forked: bool
) -> None:
    source, _ = await room.make("source", client.source())

    async def make() -> Workspace:
        if not forked:
            return await named(room, client, "k", "one")
        return await room.provisioner.fork(
            "ada", source.workspace_id,
            idempotency_key="k", name="one", branch="", lease=LEASE, overlay=False,
        )  # fmt: skip

    stopping, stop = asyncio.Event(), BuildRuns.stop

    async def told(builds: BuildRuns, build: Build) -> None:
        asyncio.get_running_loop().call_soon(stopping.set)  # by then it is cancelled
        await stop(builds, build)

    with monkeypatch.context() as patch:
        records = SlowRecords(patch)
        patch.setattr(BuildRuns, "stop", told)
        asked = asyncio.create_task(make(), name="make")
        await records.written.wait()
        release = asyncio.create_task(
            room.provisioner.release("ada", idempotency_key="k"), name="release"
        )
        await stopping.wait()
        release.cancel()
        with pytest.raises(asyncio.CancelledError):
            await release
        # Of what is still being taken away nobody is given anything.
        with pytest.raises(WorkspaceReleased):
            await make()
        records.let_go()
        with pytest.raises(WorkspaceReleased):
            await asked
    again = await make()
    assert again.state is State.PROVISIONED
    assert again.name == "one"
    assert (room.layout.trees / again.workspace_id / "f0").read_bytes() == b"content\n"


@pytest.mark.parametrize("overlay", [False, True], ids=["tree", "overlay"])
async def test_a_reader_who_leaves_is_in_nobodys_way(
    room: ProvisionerRoom, client: GitClient, monkeypatch: pytest.MonkeyPatch, overlay: bool
) -> None:
    made = await dirty(room, client, "k", overlay=overlay)
    begun = asyncio.Event()

    async def endless(_: GitCheckouts, place: Place, *arguments: str) -> None:
        assert place.index is not None
        place.index.with_name(f"{place.index.name}.lock").touch()  # as git leaves it when killed
        begun.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(GitCheckouts, "read_tree", endless)
        reading = asyncio.create_task(room.provisioner.count_changes(made), name="count")
        await begun.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
    assert await room.provisioner.count_changes(made) == 0
    names = {path.name for path in (room.layout.baselines / made.workspace_id).iterdir()}
    assert names == {"git", "index"}


async def test_a_git_directory_that_was_half_made_is_in_nobodys_way(
    room: ProvisionerRoom, client: GitClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await dirty(room, client, "k", overlay=False)

    def half(path: Path, **_: object) -> None:
        path.mkdir()
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(checkout, "make_git_directory", half)
        with pytest.raises(Killed):
            await room.provisioner.count_changes(made)
    assert await room.provisioner.count_changes(made) == 0


@pytest.mark.parametrize("overlay", [False, True], ids=["tree", "overlay"])
async def test_readers_at_once_bring_the_baseline_up_once(
    room: ProvisionerRoom, client: GitClient, monkeypatch: pytest.MonkeyPatch, overlay: bool
) -> None:
    made = await dirty(room, client, "k", overlay=overlay)
    assert (room.layout.baselines / made.workspace_id / CHANGES_PACK).exists()
    calls, read_tree = [], GitCheckouts.read_tree

    async def counted(checkouts: GitCheckouts, place: Place, *arguments: str) -> None:
        if "-i" in arguments:  # no file is written
            calls.append(arguments)
        await read_tree(checkouts, place, *arguments)

    monkeypatch.setattr(GitCheckouts, "read_tree", counted)
    counts = await asyncio.gather(*(room.provisioner.count_changes(made) for _ in range(3)))
    assert counts == [0, 0, 0]
    assert len(calls) == 1


async def test_a_fork_beside_a_reader_has_all_that_the_changes_are_counted_against(
    room: ProvisionerRoom, client: GitClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = await dirty(room, client, "k", overlay=False)
    twin = await dirty(room, client, "twin", overlay=False)
    assert await room.provisioner.count_changes(twin) == 0
    baseline, finished = (
        room.layout.baselines / each.workspace_id for each in (source, twin)
    )  # fmt: skip
    listed = View.entries

    def backwards(view: View) -> dict[str, int]:
        return dict(sorted(listed(view).items(), reverse=True))

    def opened(name: str, directory: int) -> int | None:
        if name == CHANGES_PACK:  # now the reader is done
            shutil.copytree(finished, baseline, dirs_exist_ok=True)
            (baseline / CHANGES_PACK).unlink()
        return open_file(name, directory)

    with monkeypatch.context() as patch:
        patch.setattr(View, "entries", backwards)
        patch.setattr(tree_copies, "open_file", opened)
        made = await room.provisioner.fork(
            "ada", source.workspace_id,
            idempotency_key="fork", name="", branch="", lease=LEASE, overlay=False,
        )  # fmt: skip
    assert not (baseline / CHANGES_PACK).exists()
    assert await room.provisioner.count_changes(made) == 0


async def test_another_process_that_is_slower_changes_no_finished_baseline(
    room: ProvisionerRoom, client: GitClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It saw no index, and has one to bring when the other is done with everything."""
    made = await dirty(room, client, "k", overlay=True)
    index = room.layout.baselines / made.workspace_id / "index"
    assert await room.provisioner.count_changes(made) == 0
    finished, exists = index.read_bytes(), Path.exists
    stale = tmp_path / "stale"
    stale.write_bytes(b"an index of the commit")
    monkeypatch.setattr(Path, "exists", lambda path: path != index and exists(path))
    checkout.start_baseline(stale, index.parent)
    assert index.read_bytes() == finished
    assert {path.name for path in index.parent.iterdir()} == {"git", "index"}
