"""What changes between two looks of the provisioner: others clear up and write meanwhile."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import pytest_asyncio

from tests.fakes.git_client import GitClient
from tests.fakes.mounted_layers import statuses_inside
from tests.fakes.provisioned import provisioned
from tests.fakes.provisioner_room import ProvisionerRoom, open_room
from workspace_provisioner import preparations
from workspace_provisioner.disk import room as disk_room
from workspace_provisioner.sources import ObjectFormat, ProjectKey
from workspace_provisioner.store.states import StoreStates
from workspace_provisioner.templates import Template, family, template_id
from workspace_provisioner.trees.delta_files import DeltaFiles
from workspace_provisioner.trees.pool_files import PoolFiles
from workspace_provisioner.workspaces import Miss, MissReason, Rung

pytestmark = pytest.mark.asyncio

KEY = ProjectKey("ada", "project", ObjectFormat.SHA1)


@pytest.fixture(autouse=True)
def _nobody_else_clears_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparations, "_FIRST_SECONDS", 3600.0)
    monkeypatch.setattr(disk_room, "_LEAST_FREE", 0.0)  # however full this machine's disk is


@pytest.fixture
def client(tmp_path: Path) -> GitClient:
    found = GitClient(tmp_path / "laptop")
    for number in range(8):
        found.write(f"f{number}", f"line {number}\n".encode())
    found.commit()
    return found


@pytest_asyncio.fixture
async def room(tmp_path: Path) -> AsyncIterator[ProvisionerRoom]:
    async with open_room(tmp_path / "host") as opened:
        yield opened


def refreshed(found: PoolFiles) -> None:
    found._refresh(KEY)


def pool(room: ProvisionerRoom) -> PoolFiles:
    return room.trees._pool


async def test_an_entry_finds_its_place_while_the_pool_is_cleared_up(
    room: ProvisionerRoom, client: GitClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await room.upload(client)
    await room.preparations.finished()
    make = os.mkdir
    cleared: list[Path] = []

    def overtaken(path: str | Path, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        make(path, mode, dir_fd=dir_fd)
        if Path(path).parent == room.layout.pool and not cleared:
            cleared.append(Path(path))
            pool(room)._collect()

    monkeypatch.setattr(os, "mkdir", overtaken)
    await room.make("first", client.source())
    await room.preparations.finished()
    assert cleared == [room.layout.pool / template_id(client.source().key, client.head())]
    made, _ = await room.make("later", client.source())
    assert made.rung is Rung.POOL


async def test_an_entry_that_comes_while_the_pool_is_cleared_up_stays(
    room: ProvisionerRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = room.layout.pool / "commit"
    entries.mkdir()
    found_in = os.listdir

    def overtaken(path: str | Path | int = ".") -> list[str]:
        found = found_in(path)
        if path == entries and not found:
            (entries / "entry").mkdir()
        return found

    monkeypatch.setattr(os, "listdir", overtaken)
    await pool(room).collect()
    assert (entries / "entry").is_dir()
    (entries / "entry").rmdir()
    monkeypatch.undo()
    await pool(room).collect()
    assert not entries.exists()


@pytest.mark.parametrize("work", [PoolFiles._collect, PoolFiles.sweep, refreshed])
async def test_what_another_process_takes_from_the_pool_is_no_error(
    room: ProvisionerRoom,
    monkeypatch: pytest.MonkeyPatch,
    work: Callable[[PoolFiles], None],
) -> None:
    for name in (f"{family(KEY)}-one", f"{family(KEY)}-two"):
        (room.layout.pool / name / "entry").mkdir(parents=True)
    found_in = os.listdir

    def overtaken(path: str | Path | int = ".") -> list[str]:
        found = found_in(path)
        if path == room.layout.pool:
            for name in found:
                shutil.rmtree(room.layout.pool / name)
        return found

    monkeypatch.setattr(os, "listdir", overtaken)
    work(pool(room))
    assert not list(room.layout.pool.iterdir())


async def test_a_delta_whose_base_is_dropped_meanwhile_becomes_a_full_checkout(
    room: ProvisionerRoom, client: GitClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not room.trees.can_overlay:
        pytest.skip("overlays cannot be mounted here")
    templates = room.trees._templates
    await room.upload(client)
    base = client.head()
    await room.preparations.finished()
    client.write("f0", b"changed\n")
    client.commit()
    await room.upload(client, having=[base])
    await room.preparations.finished()
    templates._drop(template_id(client.source().key, client.head()))
    compare = DeltaFiles.changes
    dropped: list[str] = []

    async def overtaken(self: DeltaFiles, key: ProjectKey, over: Template, commit: str) -> object:
        found = await compare(self, key, over, commit)
        dropped.append(over.commit)
        templates._drop(over.template_id)
        return found

    monkeypatch.setattr(DeltaFiles, "changes", overtaken)
    made, _ = await room.make("k", client.source(), overlay=True)
    assert dropped == [base]
    assert made.rung is Rung.OVERLAY
    assert statuses_inside(room.layout, made.workspace_id) == []


async def test_a_store_that_is_deleted_while_it_is_asked_has_nothing(
    room: ProvisionerRoom, client: GitClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await room.upload(client)
    await room.preparations.finished()
    source = client.source()
    store = room.layout.store(source.key)
    look = StoreStates.current

    async def overtaken(self: StoreStates, key: ProjectKey) -> object:
        found = await look(self, key)
        if store.exists():
            shutil.rmtree(store)
        return found

    monkeypatch.setattr(StoreStates, "current", overtaken)
    room.stores._used.clear()
    assert await room.ask("k", source) == Miss(MissReason.NO_BASE, (source.commit,), ())


async def test_a_workspace_that_is_recorded_while_the_records_are_listed_is_counted(
    room: ProvisionerRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan = os.scandir
    fresh = provisioned()
    recorded: list[str] = []

    def overtaken(path: str | Path | int) -> AbstractContextManager[Iterator[os.DirEntry[str]]]:
        found = scan(path)
        if path == room.layout.records and not recorded:
            listed = list(found)
            recorded.append(fresh.workspace_id)
            room.ledger.put_now(fresh)
            return Listed(listed)
        return found

    monkeypatch.setattr(os, "scandir", overtaken)
    room.ledger._scanned_at = 0
    list(room.ledger.all())
    assert recorded
    assert room.ledger.provisioned() == 1


class Listed(AbstractContextManager[Iterator[os.DirEntry[str]]]):
    """What was in a directory, as os.scandir returns it."""

    def __init__(self, entries: list[os.DirEntry[str]]) -> None:
        self._entries = entries

    def __enter__(self) -> Iterator[os.DirEntry[str]]:
        return iter(self._entries)

    def __exit__(self, *exception: object) -> None:
        """Nothing is open."""
