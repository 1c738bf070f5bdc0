"""A host whose disk fills up: typed refusals, nothing half made, and all well with room again."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from chassis.errors import FairleadError
from tests.fakes.git_client import GitClient
from tests.fakes.provisioner_room import ProvisionerRoom, open_room
from workspace_provisioner.workspaces import Workspace

pytestmark = [pytest.mark.asyncio, pytest.mark.root]

_BYTES = 24 * 1024**2


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={_BYTES}", "tmpfs", str(place)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a small file system needs root")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(disk: Path) -> Path:
    """Take every free byte."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            try:
                while True:
                    file.write(b"\0" * size)
            except OSError:
                continue
    return ballast


async def refused(room: ProvisionerRoom, client: GitClient, key: str) -> str:
    """Ask for a workspace that cannot be; returns the reason."""
    with pytest.raises(FairleadError) as caught:
        await room.ask(key, client.source())
    return caught.value.reason


async def test_a_full_disk_refuses_and_loses_nothing(small_disk: Path, tmp_path: Path) -> None:
    client = GitClient(tmp_path / "client")
    for number in range(40):
        client.write(f"d{number}/file", os.urandom(20_000))
    client.commit("first")
    async with open_room(small_disk / "host") as room:
        await room.upload(client)
        kept, tree = await room.make("kept", client.source())
        (tree / "mine").write_bytes(b"precious")
        await room.preparations.finished()
        ballast = await asyncio.to_thread(fill, small_disk)
        assert await refused(room, client, "late") in {"host_full", "storage_unavailable"}
        client.write("big", os.urandom(4_000_000))
        client.commit("second")
        with pytest.raises(FairleadError) as caught:
            await room.upload(client)
        assert caught.value.reason in {"host_full", "storage_unavailable"}
        assert room.leftovers() == []
        assert (tree / "mine").read_bytes() == b"precious"
        found, _ = await room.provisioner.list(kept.tenant, size=10, after="")
        assert [each.workspace_id for each in found] == [kept.workspace_id]
        ballast.unlink()
        await room.upload(client)
        made = await room.ask("late", client.source())
        assert isinstance(made, Workspace)
        assert (room.layout.trees / made.workspace_id / "big").stat().st_size == 4_000_000
    async with open_room(small_disk / "host") as room:
        assert room.ledger.get(kept.workspace_id) is not None
        assert (tree / "mine").read_bytes() == b"precious"


async def test_a_release_works_on_a_full_disk(small_disk: Path, tmp_path: Path) -> None:
    client = GitClient(tmp_path / "client")
    client.write("file", b"content")
    client.commit("first")
    async with open_room(small_disk / "host") as room:
        await room.upload(client)
        made, tree = await room.make("one", client.source())
        await room.preparations.finished()
        await asyncio.to_thread(fill, small_disk)
        await room.provisioner.release(made.tenant, workspace_id=made.workspace_id)
        assert not tree.exists()
        found, _ = await room.provisioner.list(made.tenant, size=10, after="")
        assert found == []
