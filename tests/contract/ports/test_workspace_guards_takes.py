"""Between the look at READY and the answer a store may be cleaned up, in earnest and by another
process: what was prepared before is then not trusted.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.fakes.git_client import GitClient, listing, run_git
from tests.fakes.mounted_layers import is_layered, statuses_inside
from tests.fakes.provisioner_room import ProvisionerRoom, open_layered_room, open_room
from workspace_provisioner.git.index import Contents
from workspace_provisioner.git.tree_changes import TreeChanges
from workspace_provisioner.sources import ObjectFormat, ProjectKey
from workspace_provisioner.store.files import read_epoch
from workspace_provisioner.templates import Template, template_id
from workspace_provisioner.trees.delta_files import DeltaFiles
from workspace_provisioner.trees.take import Takes
from workspace_provisioner.trees.template_files import RETIRED, USED
from workspace_provisioner.trees.template_records import READY, read_ready
from workspace_provisioner.workspaces import Miss, MissReason, Rung

pytestmark = pytest.mark.asyncio

KEY = ProjectKey("ada", "project", ObjectFormat.SHA1)
TWO_HOURS = 2 * 3600


@pytest.fixture
def client(tmp_path: Path) -> GitClient:
    found = GitClient(tmp_path / "laptop")
    for number in range(8):
        found.write(f"d{number % 2}/f{number}", f"line {number}\n".encode() * 20)
    found.commit()
    return found


@pytest_asyncio.fixture
async def room(tmp_path: Path, client: GitClient) -> AsyncIterator[ProvisionerRoom]:
    async with open_layered_room(tmp_path / "host") as opened:
        await opened.upload(client)
        await opened.preparations.finished()
        yield opened


def move_epoch_on(store: Path) -> None:
    (store / "epoch").write_bytes(b"%d\n" % (read_epoch(store) + 1))


def epoch_of(room: ProvisionerRoom, commit: str) -> int:
    found = read_ready(room.layout.templates / template_id(KEY, commit))
    assert found is not None
    return found[0].stamp.epoch


async def test_an_epoch_that_moves_on_during_a_take_is_noticed_and_the_take_made_again(
    room: ProvisionerRoom, client: GitClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, move = room.layout.store(KEY), Takes._move
    moves: list[Path] = []

    def move_beside_upkeep(self: Takes, source: Path, target: Path) -> None:
        if not moves:
            move_epoch_on(store)
        moves.append(target)
        move(self, source, target)

    before = epoch_of(room, client.head())
    monkeypatch.setattr(Takes, "_move", move_beside_upkeep)
    made, _ = await room.make("k", client.source(), overlay=True)
    assert moves[0] in moves[1:]  # put in place twice
    assert made.rung is Rung.OVERLAY
    assert epoch_of(room, client.head()) == before + 1
    assert await room.trees.strays() == {made.workspace_id}
    assert statuses_inside(room.layout, made.workspace_id) == []


async def test_a_promise_that_is_taken_back_during_a_take_is_a_miss_and_leaves_nothing(
    room: ProvisionerRoom, client: GitClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, move = room.layout.store(KEY), Takes._move

    def move_beside_upkeep(self: Takes, source: Path, target: Path) -> None:
        pin = store / "refs/fairlead/tips" / client.head()
        if pin.exists():
            move_epoch_on(store)
            pin.unlink()
        move(self, source, target)

    monkeypatch.setattr(Takes, "_move", move_beside_upkeep)
    asked = await room.ask("k", client.source(), overlay=True)
    assert isinstance(asked, Miss)
    assert asked.reason is MissReason.REF_DRIFT
    assert await room.trees.strays() == frozenset()
    assert not room.leftovers()
    await room.trees.refresh(KEY)
    assert not (room.layout.templates / template_id(KEY, client.head()) / READY).exists()


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from tests.fakes.provisioner_room import open_room
from workspace_provisioner.trees import take
from workspace_provisioner.sources import checked_source
from workspace_provisioner.store.files import read_epoch

async def main() -> None:
    source = checked_source(
        tenant="ada", project="project", object_format="sha1", commit=sys.argv[2], branch="main",
        digest="", changes=None,
    )
    async with open_room(Path(sys.argv[1])) as room:
        left = int(sys.argv[3])
        def move(self, source_path, target, _move=take.Takes._move):
            nonlocal left
            if left == 0:
                store = room.layout.store(source.key)
                (store / "epoch").write_bytes(b"%d" % (read_epoch(store) + 1))
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            _move(self, source_path, target)
        take.Takes._move = move
        await room.ask("killed", source, overlay=True)

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("moves", [0, 1])
async def test_killed_between_ready_and_the_rename_while_the_epoch_moves_on(
    tmp_path: Path, client: GitClient, moves: int
) -> None:
    async with open_layered_room(tmp_path / "host") as room:
        await room.upload(client)
        await room.preparations.finished()
        before = epoch_of(room, client.head())
    killed = subprocess.run(  # noqa: ASYNC221 - nothing else runs meanwhile
        [sys.executable, "-c", KILLED, tmp_path / "host", client.head(), str(moves)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    async with open_room(tmp_path / "host") as room:
        assert await room.trees.strays() == frozenset()
        made, _ = await room.make("killed", client.source(), overlay=True)
        assert statuses_inside(room.layout, made.workspace_id) == []
        assert epoch_of(room, client.head()) == before + 1


async def test_a_template_that_was_taken_within_the_hour_stays_without_its_workspaces(
    room: ProvisionerRoom, client: GitClient
) -> None:
    used = room.layout.templates / template_id(KEY, client.head()) / USED
    os.utime(used, (time.time() - TWO_HOURS, time.time() - TWO_HOURS))
    made, _ = await room.make("k", client.source(), overlay=True)
    assert await room.provisioner.release("ada", workspace_id=made.workspace_id)
    assert time.time() - used.stat().st_mtime < TWO_HOURS / 2


def small_change(client: GitClient) -> str:
    client.write("d0/f0", b"changed\n")
    client.commit()
    return client.head()


async def test_a_delta_whose_base_is_dropped_during_a_take_leads_to_the_next_rung(
    room: ProvisionerRoom, client: GitClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = room.layout.templates / template_id(KEY, client.head()) / READY
    small_change(client)
    await room.upload(client)
    await room.preparations.finished()
    move = Takes._move

    def move_beside_a_drop(self: Takes, source: Path, target: Path) -> None:
        if base.exists():
            base.rename(base.with_name(RETIRED))
        move(self, source, target)

    monkeypatch.setattr(Takes, "_move", move_beside_a_drop)
    made, path = await room.make("k", client.source(), overlay=True)
    assert made.rung not in (Rung.OVERLAY, Rung.OVERLAY_DELTA)
    assert listing(path) == listing(client.path)
    assert not is_layered(room.layout, made.workspace_id)


async def test_no_delta_is_ready_without_its_base(
    room: ProvisionerRoom, client: GitClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = room.layout.templates / template_id(KEY, client.head()) / READY
    write = DeltaFiles.write

    async def write_beside_a_drop(
        self: DeltaFiles, staged: Path, key: ProjectKey, below: Template, changes: TreeChanges
    ) -> Contents:
        contents = await write(self, staged, key, below, changes)
        base.rename(base.with_name(RETIRED))
        return contents

    monkeypatch.setattr(DeltaFiles, "write", write_beside_a_drop)
    small_change(client)
    await room.upload(client)
    await room.preparations.finished()
    assert not base.exists()
    ready = read_ready(room.layout.templates / template_id(KEY, client.head()))
    assert ready is not None
    assert ready[0].base == ""
    monkeypatch.undo()
    made, _ = await room.make("k", client.source(), overlay=True)
    assert statuses_inside(room.layout, made.workspace_id) == []


async def test_what_another_boot_left_in_the_pool_is_neither_taken_nor_kept(
    tmp_path: Path, client: GitClient
) -> None:
    host = tmp_path / "host"
    async with open_room(host) as room:
        await room.upload(client)
        await room.trees.prepare(KEY, client.head(), depth=1)
        entries = room.layout.pool / template_id(KEY, client.head())
        (entry,) = entries.iterdir()
        ready = json.loads((entry / READY).read_bytes())
        (entry / READY).write_text(json.dumps({**ready, "boot": "another boot"}))
        # Torn, as by a power cut.
        (entry / "tree/d0/f0").write_bytes(b"")
        spare = tmp_path / "spare"
        shutil.copytree(entry, spare, symlinks=True)
        made, path = await room.make("k", client.source())
        assert made.rung is Rung.CHECKOUT
        assert run_git(path, "status", "--porcelain") == b""
        await room.preparations.finished()
        left = entries / "0123456789abcdef"
        entries.mkdir(exist_ok=True)
        spare.rename(left)
    async with open_room(host):
        assert not left.exists()
