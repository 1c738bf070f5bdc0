"""Forks, releases and looks into workspaces that change at the same moment."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from tests.fakes.clock import FakeClock
from tests.fakes.git_client import GitClient, listing
from tests.fakes.provisioner_room import LEASE, ProvisionerRoom, open_room
from workspace_provisioner.disk.deletion import empty_trash
from workspace_provisioner.disk.host_locks import HostLocks
from workspace_provisioner.errors import HostFull
from workspace_provisioner.trees.layer_views import View, open_file, opened_view
from workspace_provisioner.trees.workspace_copies import WorkspaceCopies
from workspace_provisioner.workspace_errors import ForkFailed, WorkspaceUnpushed
from workspace_provisioner.workspaces import State, Workspace

DEEPER_THAN_ANY = 220


@pytest.fixture
def client(tmp_path: Path) -> GitClient:
    found = GitClient(tmp_path / "laptop")
    for number in range(6):
        found.write(f"d{number % 2}/f{number}", f"line {number}\n".encode())
    found.commit()
    return found


@pytest_asyncio.fixture
async def room(tmp_path: Path, client: GitClient) -> AsyncIterator[ProvisionerRoom]:
    async with open_room(tmp_path / "host") as opened:
        await opened.upload(client)
        yield opened


async def fork(room: ProvisionerRoom, source: Workspace) -> Workspace:
    return await room.provisioner.fork(
        source.tenant,
        source.workspace_id,
        idempotency_key="fork",
        name="",
        branch="",
        lease=LEASE,
        overlay=False,
    )


def test_a_file_that_became_a_link_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    os.symlink(tmp_path / "secret", tmp_path / "link")
    with opened_view([tmp_path]) as view:
        (descriptor,) = view.descriptors
        assert open_file("link", descriptor) is None


def test_a_directory_that_becomes_a_link_after_the_look_is_not_entered(tmp_path: Path) -> None:
    workspace, secrets = tmp_path / "workspace", tmp_path / "secrets"
    for path in (workspace / "d", secrets):
        path.mkdir(parents=True)
    (secrets / "secret").write_bytes(b"secret")

    class Swapped(View):
        def look(self, name: str, descriptor: int) -> os.stat_result | None:
            found = super().look(name, descriptor)
            (workspace / "d").rename(workspace / "aside")
            os.symlink(secrets, workspace / "d")
            return found

    with opened_view([workspace]) as view:
        assert Swapped(view.descriptors).directory("d") is None


def test_a_link_in_the_trash_goes_and_what_it_leads_to_stays(tmp_path: Path) -> None:
    outside, trash = tmp_path / "outside", tmp_path / "trash"
    (outside / "d").mkdir(parents=True)
    (outside / "d/file").write_bytes(b"content")
    outside.chmod(0o750)
    trash.mkdir()
    os.symlink(outside, trash / "link")
    assert empty_trash(trash, seconds=10)
    assert not list(trash.iterdir())
    assert (outside / "d/file").read_bytes() == b"content"
    assert stat.S_IMODE(outside.stat().st_mode) == 0o750


@pytest.mark.asyncio
async def test_a_copy_runs_as_nobody_else(room: ProvisionerRoom, client: GitClient) -> None:
    made, path = await room.make("k", client.source())
    (path / "tool").write_bytes(b"#!/bin/sh\n")
    (path / "tool").chmod(0o6755)
    (path / "d0").chmod(0o2755)
    copy = room.layout.trees / (await fork(room, made)).workspace_id
    assert stat.S_IMODE((copy / "tool").stat().st_mode) == 0o755
    assert stat.S_IMODE((copy / "d0").stat().st_mode) == 0o755


@pytest.mark.asyncio
async def test_directories_nested_too_deeply_are_not_copied(
    room: ProvisionerRoom, client: GitClient
) -> None:
    made, path = await room.make("k", client.source())
    path.joinpath(*"a" * DEEPER_THAN_ANY).mkdir(parents=True)
    with pytest.raises(ForkFailed):
        await fork(room, made)
    assert await room.trees.strays() == {made.workspace_id}
    assert not room.leftovers()


@pytest.mark.asyncio
async def test_a_fork_stops_when_the_disk_is_nearly_full(
    room: ProvisionerRoom, client: GitClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, path = await room.make("k", client.source())
    copy = WorkspaceCopies.copy

    async def copy_with_a_reserve(
        self: WorkspaceCopies, source: Workspace, wanted: Workspace, *, overlay: bool
    ) -> None:
        self._reserve_bytes = 2**62
        await copy(self, source, wanted, overlay=overlay)

    monkeypatch.setattr(WorkspaceCopies, "copy", copy_with_a_reserve)
    with pytest.raises(HostFull):
        await fork(room, made)
    assert await room.trees.strays() == {made.workspace_id}
    assert not room.leftovers()
    assert listing(path) == listing(client.path)


@pytest.mark.asyncio
async def test_a_release_answers_before_anything_is_deleted(
    room: ProvisionerRoom, client: GitClient
) -> None:
    made, path = await room.make("k", client.source())
    files = listing(path)
    (top,) = (path.stat().st_ino,)
    assert await room.provisioner.release("ada", workspace_id=made.workspace_id)
    assert not path.exists()
    moved = [each for each in room.layout.trash.iterdir() if each.stat().st_ino == top]
    assert [listing(each) for each in moved] == [files]
    while not await room.trees.empty_trash():
        continue
    assert not list(room.layout.trash.iterdir())


@pytest.mark.asyncio
async def test_what_cannot_be_compared_is_not_released_unless_forced(
    room: ProvisionerRoom, client: GitClient
) -> None:
    made, path = await room.make("k", client.source())
    await room.preparations.finished()
    for each in (room.layout.store(client.source().key) / "objects/pack").iterdir():
        each.unlink()
    with pytest.raises(WorkspaceUnpushed):
        await room.provisioner.release("ada", workspace_id=made.workspace_id, checked=True)
    found = await room.provisioner.get("ada", made.workspace_id)
    assert found.state is State.PROVISIONED
    assert path.exists()
    assert await room.provisioner.release("ada", workspace_id=made.workspace_id)


@pytest.mark.asyncio
async def test_a_lease_that_is_renewed_at_its_very_end_goes_on(
    tmp_path: Path, client: GitClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    async with open_room(tmp_path / "host", clock=clock) as room:
        await room.upload(client)
        made, path = await room.make("k", client.source())
        clock.advance(LEASE.total_seconds() + 1)
        attempt = HostLocks.attempt

        @asynccontextmanager
        async def attempt_after_a_renewal(self: HostLocks, key: str) -> AsyncIterator[bool]:
            # Another process has the lock until now.
            await room.provisioner.renew("ada", key, LEASE)
            async with attempt(self, key) as held:
                yield held

        monkeypatch.setattr(HostLocks, "attempt", attempt_after_a_renewal)
        await room.provisioner.expire()
        found = await room.provisioner.get("ada", made.workspace_id)
        assert found.state is State.PROVISIONED
        assert found.expires_at == clock.now() + LEASE
        assert path.exists()
