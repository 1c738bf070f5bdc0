"""A checked release never loses work, and reads a workspace's git directory as hostile files."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.fakes.git_client import GitClient, run_git
from tests.fakes.mounted_layers import run_inside
from tests.fakes.provisioner_room import ProvisionerRoom, open_room
from workspace_provisioner.sources import Tip
from workspace_provisioner.workspace_errors import WorkspaceDirty, WorkspaceUnpushed
from workspace_provisioner.workspaces import State, Workspace

pytestmark = pytest.mark.asyncio


@pytest.fixture
def client(tmp_path: Path) -> GitClient:
    found = GitClient(tmp_path / "laptop")
    for number in range(20):
        found.write(f"d{number % 3}/f{number}", f"line {number}\n".encode())
    found.write(".gitignore", b"*.log\n")
    found.commit()
    return found


@pytest_asyncio.fixture
async def room(tmp_path: Path, client: GitClient) -> AsyncIterator[ProvisionerRoom]:
    async with open_room(tmp_path / "host") as opened:
        await opened.upload(client)
        yield opened


async def checked(room: ProvisionerRoom, workspace: Workspace) -> bool:
    return await room.provisioner.release(
        workspace.tenant, workspace_id=workspace.workspace_id, checked=True
    )


async def refused(
    room: ProvisionerRoom,
    workspace: Workspace,
    error: type[WorkspaceDirty] | type[WorkspaceUnpushed],
) -> None:
    """It stays as it is, and goes by force."""
    with pytest.raises(error):
        await checked(room, workspace)
    found = await room.provisioner.get(workspace.tenant, workspace.workspace_id)
    assert found.state is State.PROVISIONED
    assert (room.layout.trees / workspace.workspace_id).exists()


async def upload_main(room: ProvisionerRoom, client: GitClient) -> None:
    """The client's main becomes a durable tip."""
    await room.upload(client, tips=(Tip("refs/heads/main", client.head()),))


async def test_clean(room: ProvisionerRoom, client: GitClient) -> None:
    made, path = await room.make("k", client.source())
    (path / "debug.log").write_bytes(b"ignored")
    assert await checked(room, made)
    assert not path.exists()


@pytest.mark.parametrize("change", ["changed", "deleted", "executable", "removed", "staged"])
async def test_dirty(room: ProvisionerRoom, client: GitClient, change: str) -> None:
    made, path = await room.make("k", client.source())
    match change:
        case "changed":
            (path / "d0/f0").write_bytes(b"other\n")
        case "deleted":
            (path / "d0/f0").unlink()
        case "executable":
            (path / "d0/f0").chmod(0o755)
        case "removed":
            run_git(path, "rm", "-q", "d0/f0")
        case "staged":
            (path / "d0/f0").write_bytes(b"only in the index\n")
            run_git(path, "add", "d0/f0")
            (path / "d0/f0").write_bytes(b"line 0\n")
    await refused(room, made, WorkspaceDirty)
    assert await room.provisioner.release("ada", workspace_id=made.workspace_id)


async def test_changes_that_came_along_are_work_too(
    room: ProvisionerRoom, client: GitClient
) -> None:
    client.write("d0/f0", b"changed at home\n")
    made, path = await room.make("k", client.source(changes=client.dirty()))
    await refused(room, made, WorkspaceDirty)
    run_git(path, "checkout", "-q", "--", ".")
    assert await checked(room, made)


async def test_untracked(room: ProvisionerRoom, client: GitClient) -> None:
    made, path = await room.make("k", client.source())
    (path / "fresh").write_bytes(b"fresh")
    await refused(room, made, WorkspaceDirty)
    (path / "fresh").unlink()
    assert await checked(room, made)


async def test_unpushed(room: ProvisionerRoom, client: GitClient) -> None:
    made, path = await room.make("k", client.source(), branch="work")
    (path / "own").write_bytes(b"own\n")
    run_git(path, "add", "own")
    run_git(path, "commit", "-q", "-m", "own")
    await refused(room, made, WorkspaceUnpushed)
    # Also when the commit is on another branch than the one that is checked out, or in the stash.
    run_git(path, "switch", "-q", "-c", "elsewhere", "HEAD~1")
    await refused(room, made, WorkspaceUnpushed)
    run_git(path, "pack-refs", "--all")
    await refused(room, made, WorkspaceUnpushed)
    run_git(path, "branch", "-q", "-D", "work")
    (path / "d0/f0").write_bytes(b"stashed\n")
    run_git(path, "stash")
    await refused(room, made, WorkspaceUnpushed)
    run_git(path, "stash", "drop")
    assert await checked(room, made)


async def test_pushed(room: ProvisionerRoom, client: GitClient, tmp_path: Path) -> None:
    made, path = await room.make("k", client.source(), branch="work")
    (path / "own").write_bytes(b"own\n")
    run_git(path, "add", "own")
    run_git(path, "commit", "-q", "-m", "own")
    client.git("pull", "-q", "--no-rebase", str(path), "work")
    client.commit("more on top")
    await upload_main(room, client)
    assert await checked(room, made)
    # Or it went to a remote of the workspace's own.
    other, path = await room.make("other", client.source(), branch="work")
    run_git(path, "commit", "-q", "--allow-empty", "-m", "own")
    await refused(room, other, WorkspaceUnpushed)
    origin = tmp_path / "origin.git"
    run_git(tmp_path, "init", "-q", "--bare", str(origin))
    run_git(path, "remote", "add", "origin", str(origin))
    run_git(path, "push", "-q", "origin", "work")
    run_git(path, "switch", "-q", "--detach", "HEAD")
    assert await checked(room, other)


async def test_squash_merged(room: ProvisionerRoom, client: GitClient) -> None:
    made, path = await room.make("k", client.source(), branch="work")
    for number in range(3):
        (path / "own").write_bytes(f"version {number}\n".encode())
        (path / "d0/f0").write_bytes(f"version {number}\n".encode())
        run_git(path, "add", "own")
        run_git(path, "commit", "-q", "-am", f"step {number}")
    run_git(path, "rm", "-q", "d1/f1")
    run_git(path, "commit", "-q", "-m", "removed")
    client.write("own", b"version 2\n")
    client.write("d0/f0", b"version 2\n")
    client.write("unrelated", b"goes on\n")
    client.commit("all at once but for what was removed")
    await upload_main(room, client)
    await refused(room, made, WorkspaceUnpushed)
    (client.path / "d1/f1").unlink()
    client.commit("removed too")
    await upload_main(room, client)
    assert await checked(room, made)


async def test_already_gone(room: ProvisionerRoom, client: GitClient) -> None:
    made, path = await room.make("k", client.source())
    assert await room.provisioner.release("ada", workspace_id=made.workspace_id)
    assert not await checked(room, made)
    assert not await room.provisioner.release("ada", workspace_id="wsp_" + "a" * 26, checked=True)
    other, path = await room.make("other", client.source())
    shutil.rmtree(path)
    with pytest.raises(WorkspaceUnpushed):
        await checked(room, other)
    path.mkdir()
    with pytest.raises(WorkspaceUnpushed):
        await checked(room, other)
    assert await room.provisioner.release("ada", workspace_id=other.workspace_id)


async def test_a_layered_workspace(room: ProvisionerRoom, client: GitClient) -> None:
    if not room.trees.can_overlay:
        pytest.skip("overlays cannot be mounted here")
    made, _ = await room.make("k", client.source(), branch="work", overlay=True)
    run_inside(room.layout, made.workspace_id, "echo x > fresh")
    await refused(room, made, WorkspaceDirty)
    run_inside(room.layout, made.workspace_id, "git add fresh; git commit -qm fresh")
    await refused(room, made, WorkspaceUnpushed)
    run_inside(room.layout, made.workspace_id, "git reset -q --hard HEAD~1")
    assert await checked(room, made)
    assert not (room.layout.layers / made.workspace_id).exists()


async def test_a_hostile_git_directory_runs_nothing_and_shows_nothing(
    room: ProvisionerRoom, client: GitClient, tmp_path: Path
) -> None:
    bob = GitClient(tmp_path / "bob")
    bob.write("theirs", b"theirs\n")
    bob.commit()
    await room.upload(bob, bob.source(tenant="bob"))
    made, path = await room.make("k", client.source(), branch="work")
    touched = tmp_path / "touched"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {touched}\n")
    program.chmod(0o755)
    git = path / ".git"
    (git / "config").write_text(
        f"[core]\n\tfsmonitor = {program}\n\thooksPath = {tmp_path}\n"
        f'[filter "x"]\n\tclean = {program}\n\tsmudge = {program}\n'
        "[include]\n\tpath = /etc/passwd\n"
    )
    (path / ".gitattributes").write_bytes(b"* filter=x\n")
    await refused(room, made, WorkspaceDirty)
    (path / ".gitattributes").unlink()
    index = (git / "index").read_bytes()
    (git / "index").write_bytes(b"DIRC\0\0\0\2garbage")
    await refused(room, made, WorkspaceDirty)
    (git / "index").write_bytes(index)
    # A commit of another tenant, reached through alternates that the program wrote.
    (git / "objects/info/alternates").write_text(
        f"{room.layout.store(bob.source(tenant='bob').key)}/objects\n"
    )
    (git / "refs/heads/theirs").write_text(f"{bob.head()}\n")
    await refused(room, made, WorkspaceUnpushed)
    (git / "refs/heads/theirs").unlink()
    for broken in ("ref: refs/heads/../../x\n", "", "0" * 39, "ref: refs/heads/loop\n"):
        (git / "HEAD").write_text(broken)
        (git / "refs/heads/loop").write_text("ref: refs/heads/loop\n")
        await refused(room, made, WorkspaceUnpushed)
    (git / "refs/heads/loop").unlink()
    shutil.rmtree(git / "objects")
    os.symlink(room.layout.store(bob.source(tenant="bob").key) / "objects", git / "objects")
    (git / "HEAD").write_text(f"{bob.head()}\n")
    await refused(room, made, WorkspaceUnpushed)
    assert not touched.exists()


async def test_what_only_a_tag_names_is_kept(room: ProvisionerRoom, client: GitClient) -> None:
    client.git("tag", "-a", "-m", "one", "v1")
    noted = client.git("rev-parse", "v1").decode().strip()
    tips = (Tip("refs/tags/v1", noted), Tip("refs/tags/light", client.head()))
    await room.upload(client, tips=tips)
    made, path = await room.make("k", client.source(), branch="work")
    assert run_git(path, "tag").split() == [b"light", b"v1"]
    run_git(path, "commit", "-q", "--allow-empty", "-m", "own")
    run_git(path, "tag", "-a", "-m", "mine", "mine")
    run_git(path, "reset", "-q", "--hard", "HEAD~1")
    await refused(room, made, WorkspaceUnpushed)
    run_git(path, "pack-refs", "--all")
    await refused(room, made, WorkspaceUnpushed)
    run_git(path, "tag", "light2", "mine^{}")
    run_git(path, "tag", "-d", "mine")
    await refused(room, made, WorkspaceUnpushed)
    run_git(path, "tag", "-d", "light2")
    # However many there are of what is elsewhere.
    for number in range(101):
        commit = run_git(path, "rev-parse", "HEAD")
        run_git(path, "tag", "-a", "-m", f"{number}", f"t{number}", commit.decode().strip())
    assert await checked(room, made)


async def test_what_only_a_linked_worktree_names_is_kept(
    room: ProvisionerRoom, client: GitClient
) -> None:
    made, path = await room.make("k", client.source(), branch="work")
    linked = path / ".git/linked"
    run_git(path, "worktree", "add", "-q", "--detach", str(linked))
    run_git(linked, "commit", "-q", "--allow-empty", "-m", "own")
    await refused(room, made, WorkspaceUnpushed)
    head = path / ".git/worktrees/linked/HEAD"
    for broken in ("ref: refs/heads/../../x\n", "", "0" * 39):
        head.write_text(broken)
        await refused(room, made, WorkspaceUnpushed)
    head.write_text("ref: refs/heads/work\n")
    assert await checked(room, made)


@pytest.mark.parametrize("overlay", [False, True])
async def test_no_git_process_looks_at_an_untouched_layer_with_tags(
    room: ProvisionerRoom,
    client: GitClient,
    monkeypatch: pytest.MonkeyPatch,
    overlay: bool,
) -> None:
    """Names that Unicode would break into lines are names all the same."""
    if overlay and not room.trees.can_overlay:
        pytest.skip("overlays cannot be mounted here")
    client.git("tag", "-a", "-m", "one", "v1")
    noted = client.git("rev-parse", "v1").decode().strip()
    names = ("refs/tags/a\u2028b", "refs/tags/c\u0085", "refs/tags/\u00e9")
    await room.upload(client, tips=tuple(Tip(name, noted) for name in names))
    made, _ = await room.make("k", client.source(), overlay=overlay)

    async def refuse(*_: object) -> None:
        raise AssertionError("git was started")

    if overlay:
        monkeypatch.setattr("workspace_provisioner.wall.git_wall.GitWall.start", refuse)
    assert await checked(room, made)


async def test_names_that_are_no_text(room: ProvisionerRoom, client: GitClient) -> None:
    made, path = await room.make("k", client.source(), branch="work")
    run_git(path, "commit", "-q", "--allow-empty", "-m", "own")
    own = run_git(path, "rev-parse", "HEAD").decode().strip()
    run_git(path, "reset", "-q", "--hard", "HEAD~1")
    lines = [(own, b"caf\xe9"), (client.head(), b"caf\xe8")]
    text = b"".join(oid.encode() + b" refs/heads/" + name + b"\n" for oid, name in lines)
    (path / ".git/packed-refs").write_bytes(text)
    await refused(room, made, WorkspaceUnpushed)
    (path / ".git/packed-refs").unlink()
    assert await checked(room, made)
