"""A fork of a workspace in which git goes on: its git directory is of one moment, whatever is
written while it is copied.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from tests.fakes.git_client import GitClient, run_git
from tests.fakes.provisioner_room import LEASE, ProvisionerRoom, open_room
from workspace_provisioner.trees import tree_copies
from workspace_provisioner.trees.layer_views import View, open_file
from workspace_provisioner.workspaces import Workspace

pytestmark = pytest.mark.asyncio


@pytest.fixture
def client(tmp_path: Path) -> GitClient:
    found = GitClient(tmp_path / "laptop")
    for number in range(10):
        found.write(f"f{number}", f"line {number}\n".encode())
    found.commit()
    return found


@pytest_asyncio.fixture
async def room(tmp_path: Path, client: GitClient) -> AsyncIterator[ProvisionerRoom]:
    async with open_room(tmp_path / "host") as opened:
        await opened.upload(client)
        yield opened


@pytest.fixture(autouse=True)
def in_the_order_of_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file system lists objects before refs."""
    listed = View.entries

    def entries(self: View) -> dict[str, int]:
        return dict(sorted(listed(self).items()))

    monkeypatch.setattr(View, "entries", entries)


@pytest.fixture
def on_file(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str], None]], None]:
    """Call something with the name of each file right before it is copied."""

    def patch(act: Callable[[str], None]) -> None:
        def opened(name: str, directory: int) -> int | None:
            act(name)
            return open_file(name, directory)

        monkeypatch.setattr(tree_copies, "open_file", opened)

    return patch


async def fork(room: ProvisionerRoom, source: Workspace) -> Path:
    made = await room.provisioner.fork(
        "ada",
        source.workspace_id,
        idempotency_key="fork",
        name="",
        branch="copy",
        lease=LEASE,
        overlay=False,
    )
    return room.layout.trees / made.workspace_id


def commit(path: Path, number: int) -> str:
    (path / "f0").write_bytes(f"version {number}\n".encode())
    run_git(path, "commit", "-q", "-a", "-m", f"version {number}")
    return run_git(path, "rev-parse", "HEAD").decode().strip()


async def test_commits_while_it_is_copied(
    room: ProvisionerRoom,
    client: GitClient,
    on_file: Callable[[Callable[[str], None]], None],
) -> None:
    source, path = await room.make("k", client.source(), branch="work")
    commits = [commit(path, 0)]

    def write(name: str) -> None:
        if len(commits) < 30:
            commits.append(commit(path, len(commits)))

    on_file(write)
    copied = await fork(room, source)
    assert len(commits) == 30
    run_git(copied, "fsck", "--strict", "--no-dangling")
    assert run_git(copied, "rev-parse", "HEAD").decode().strip() in commits
    assert run_git(copied, "symbolic-ref", "HEAD") == b"refs/heads/copy\n"
    # Each file is whole, and only the one that is written differs from what is staged.
    assert run_git(copied, "status", "--porcelain").split() in ([], [b"M", b"f0"])


async def test_packs_that_are_replaced_while_they_are_copied(
    room: ProvisionerRoom,
    client: GitClient,
    on_file: Callable[[Callable[[str], None]], None],
) -> None:
    source, path = await room.make("k", client.source(), branch="work")
    head = commit(path, 1)
    run_git(path, "repack", "-adq")
    (before,) = (path / ".git/objects/pack").glob("*.pack")

    def repack(name: str) -> None:
        if name.endswith(".pack") and before.exists():
            run_git(path, "-c", "pack.compression=0", "repack", "-adFq")
            assert not before.exists()

    on_file(repack)
    copied = await fork(room, source)
    run_git(copied, "fsck", "--strict", "--no-dangling")
    assert run_git(copied, "rev-parse", "HEAD").decode().strip() == head


async def test_a_branch_that_is_switched_while_the_files_are_copied(
    room: ProvisionerRoom,
    client: GitClient,
    on_file: Callable[[Callable[[str], None]], None],
) -> None:
    source, path = await room.make("k", client.source(), branch="work")
    run_git(path, "switch", "-q", "-c", "other")
    for number in range(10):
        (path / f"f{number}").write_bytes(b"of the other branch\n")
    run_git(path, "commit", "-q", "-a", "-m", "other")
    other = run_git(path, "rev-parse", "HEAD")
    run_git(path, "switch", "-q", "work")

    def switch(name: str) -> None:
        if name == "f5" and run_git(path, "symbolic-ref", "HEAD") == b"refs/heads/work\n":
            run_git(path, "switch", "-q", "other")

    on_file(switch)
    copied = await fork(room, source)
    assert run_git(copied, "rev-parse", "HEAD") == other
    assert run_git(copied, "status", "--porcelain") == b""
