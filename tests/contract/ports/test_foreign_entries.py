"""What a program makes beside its workspace goes at the next start and in upkeep."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from tests.fakes.git_client import GitClient, run_git
from tests.fakes.provisioner_room import ProvisionerRoom, open_room
from workspace_provisioner.workspaces import State

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def room(tmp_path: Path) -> AsyncIterator[ProvisionerRoom]:
    async with open_room(tmp_path / "host") as opened:
        yield opened


@pytest.mark.parametrize("when", ["start", "upkeep"])
async def test_what_is_made_beside_a_workspace_is_taken_away(
    room: ProvisionerRoom, tmp_path: Path, when: str
) -> None:
    client = GitClient(tmp_path / "laptop")
    client.write("f", b"1\n")
    client.commit()
    await room.upload(client)
    made, path = await room.make("a", client.source(), branch="a", overlay=False)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_bytes(b"kept")
    run_git(path, "worktree", "add", "-q", "../wtx", "-b", "beside")
    (path.parent / "link").symlink_to(outside)
    (path.parent / ("\N{ROCKET}" * 63)).write_bytes(b"x")
    locked = path.parent / "wsp_locked"
    (locked / "deep").mkdir(parents=True)
    locked.chmod(0o500)
    sweeps: dict[str, Callable[[], Awaitable[None]]] = {
        "start": room.provisioner.reconcile,
        "upkeep": room.trees.collect,
    }
    await sweeps[when]()
    assert os.listdir(path.parent) == [made.workspace_id]
    while not await room.trees.empty_trash():
        pass
    assert os.listdir(room.layout.trash) == []
    assert (outside / "kept").read_bytes() == b"kept"
    found = await room.provisioner.get(made.tenant, made.workspace_id)
    assert found.state is State.PROVISIONED
    assert (path / "f").read_bytes() == b"1\n"
