"""A process that ends, or power that goes, before each single change of an upload: afterwards the
store promises all of a snapshot or nothing of it, and the next upload makes it whole.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.disk import PowerCutDisk
from tests.fakes.git_client import GitClient, run_git
from tests.fakes.store_room import StoreRoom, chunked, open_store_room
from workspace_provisioner.disk.layout import Layout
from workspace_provisioner.sources import Changes, Source, Tip

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

UPLOADER = """
import asyncio, sys
from pathlib import Path
from tests.fakes.disk import KillingDisk
from tests.fakes.store_room import chunked, open_store_room
from workspace_provisioner.sources import checked_source

async def main(root, commit, pack, changes):
    source = checked_source(tenant="ada", project="project", object_format="sha1", commit=commit,
                            branch="main", digest="", changes=None)
    async with open_store_room(Path(root), disk=KillingDisk(changes=int(changes))) as room:
        await room.importer.receive(source, (), chunked(Path(pack).read_bytes()))

asyncio.run(main(*sys.argv[1:]))
"""


class PowerGone(BaseException):
    """Nothing after this happens."""


class FailingDisk(PowerCutDisk):
    """Stops before its n-th change."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.left = 10**9

    def _step(self) -> None:
        if self.left <= 0:
            raise PowerGone
        self.left -= 1

    def write_whole(self, path: Path, content: bytes, *, durably: bool = True) -> None:
        self._step()
        super().write_whole(path, content, durably=durably)

    def rename(self, source: Path, target: Path) -> None:
        self._step()
        super().rename(source, target)
        if target.is_dir():
            for known in [each for each in self._names if each.is_relative_to(source)]:
                self._names[target / known.relative_to(source)] = self._names.pop(known)

    def remove(self, path: Path) -> bool:
        self._step()
        return super().remove(path)

    def sync_directory(self, path: Path) -> None:
        self._step()
        super().sync_directory(path)

    def _flush_names(self, directory: Path) -> None:
        super()._flush_names(directory)
        for entry in os.scandir(directory):
            if entry.is_dir(follow_symlinks=False):
                self._names.setdefault(Path(entry.path), {})  # there, and empty

    def sync_tree(self, path: Path) -> None:
        if hasattr(self, "left") and path != self._root:
            self._step()
        super().sync_tree(path)

    def sync_all(self, path: Path) -> None:
        if hasattr(self, "left"):
            self._step()
        super().sync_all(path)


@pytest.fixture
def client(tmp_path: Path) -> GitClient:
    found = GitClient(tmp_path / "laptop")
    for number in range(5):
        found.write(f"f{number}", f"line {number}\n".encode() * 50)
    found.commit()
    return found


def source_of(client: GitClient) -> tuple[Source, tuple[Tip, ...]]:
    client.write("f0", os.urandom(100))
    changes = client.dirty(inline=False)
    tips = (Tip("refs/heads/main", client.head()),)
    return client.source(changes=Changes(changes.tree, b"")), tips


async def is_promised(room: StoreRoom, source: Source) -> bool:
    """Say whether the gate lets the source through; when it does, all of it has to be there."""
    if await room.gate.check(source) is not None:
        return False
    store = room.store(source)
    assert source.changes
    for root in (source.commit, source.changes.tree):
        run_git(store, "rev-list", "--objects", "--quiet", root)
    return True


@pytest.mark.parametrize(
    ("power", "upload"),
    [
        ("names lost", "first"),
        ("names lost", "second"),
        ("names stay", "first"),
        ("process killed", "second"),
    ],
)
async def test_an_upload_that_stops_before_any_of_its_steps(
    tmp_path: Path, client: GitClient, power: str, upload: str
) -> None:
    outcomes = []
    for steps in range(100):
        root = tmp_path / f"host{steps}"
        Layout(root).make()
        disk = FailingDisk(root)
        older = client.source()
        if upload == "second":
            async with open_store_room(root, disk=disk) as room:
                await room.upload(client)
            disk.sync_all(root)
        client.write("f1", f"{steps}\n".encode())
        client.commit()
        source, tips = source_of(client)
        assert source.changes
        pack = client.pack([source.commit, source.changes.tree])
        disk.left = steps
        ended = False
        try:
            async with open_store_room(root, disk=disk) as room:
                await room.importer.receive(source, tips, chunked(pack))
                ended = True
        except* PowerGone:
            pass
        disk.left = 10**9
        if power != "process killed":
            disk.cut(names_stay=power == "names stay")
        async with open_store_room(root) as room:
            outcomes.append(await is_promised(room, source))
            if upload == "second" and not ended:
                assert await room.stores.lack(older.key, older.commit) is None
            await room.importer.receive(source, tips, chunked(pack))
            assert await is_promised(room, source)
            store = room.store(source)
            run_git(store, "fsck", "--full", "--strict")
            assert not list(store.rglob("*.lock"))
        if ended:
            break
    # Once the caller was told, it stays; before, it came to be there at one step and stayed so.
    assert ended
    assert outcomes[-1]
    assert outcomes == sorted(outcomes)
    assert len(outcomes) > 5


async def test_a_killed_process_leaves_no_lock(tmp_path: Path, client: GitClient) -> None:
    pack = tmp_path / "pack"
    pack.write_bytes(client.pack([client.head()]))
    root = tmp_path / "host"
    for changes in (2, 5):  # in the store's lock, between objects and pins and between those two
        killed = subprocess.run(  # noqa: ASYNC221 - nothing else runs meanwhile
            [sys.executable, "-c", UPLOADER, root, client.head(), pack, str(changes)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            check=False,
        )
        assert killed.returncode == -signal.SIGKILL
        async with open_store_room(root, patience_seconds=1) as room:
            assert await room.gate.check(client.source()) is not None
            await room.upload(client)
            assert await room.gate.check(client.source()) is None
            run_git(room.store(client.source()), "fsck", "--full", "--strict")
            store = room.store(client.source())
        store.rename(tmp_path / f"done{changes}")
