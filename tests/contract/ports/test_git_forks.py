"""Forks of live workspaces: everything comes along, nothing that exists is touched."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from chassis.errors import FairleadError
from tests.eventually import eventually
from tests.fakes.git_client import GitClient, listing, run_git, run_script
from tests.fakes.mounted_layers import copy_out, run_inside, statuses_inside
from tests.fakes.provisioner_room import LEASE, ProvisionerRoom, open_room
from workspace_provisioner.errors import (
    IdempotencyConflict,
    WorkspaceNotFound,
    WorkspaceReleased,
)
from workspace_provisioner.trees.layer_files import read_layer
from workspace_provisioner.workspace_errors import BranchInUse, ForkFailed, WorkspaceExists
from workspace_provisioner.workspaces import Rung, State, Workspace

pytestmark = pytest.mark.asyncio


@pytest.fixture
def client(tmp_path: Path) -> GitClient:
    found = GitClient(tmp_path / "laptop")
    for number in range(30):
        found.write(f"d{number % 3}/f{number}", f"line {number}\n".encode())
    found.write("run.sh", b"#!/bin/sh\n", executable=True)
    found.write(".gitignore", b"*.log\n")
    found.commit()
    return found


@pytest_asyncio.fixture
async def room(tmp_path: Path, client: GitClient) -> AsyncIterator[ProvisionerRoom]:
    async with open_room(tmp_path / "host") as opened:
        await opened.upload(client)
        yield opened


async def fork(
    room: ProvisionerRoom,
    source: Workspace,
    key: str = "fork",
    *,
    name: str = "",
    branch: str = "",
    overlay: bool = False,
) -> tuple[Workspace, Path]:
    made = await room.provisioner.fork(
        source.tenant,
        source.workspace_id,
        idempotency_key=key,
        name=name,
        branch=branch,
        lease=LEASE,
        overlay=overlay,
    )
    return made, room.layout.trees / made.workspace_id


def work_in(path: Path) -> None:
    """What a program leaves: staged, changed, deleted, untracked, ignored, linked, committed."""
    (path / "own").write_bytes(b"committed here\n")
    run_git(path, "add", "own")
    run_git(path, "commit", "-q", "-m", "own")
    (path / "d0/f0").write_bytes(b"changed\n")
    (path / "d1/f1").unlink()
    (path / "staged").write_bytes(b"staged\n")
    run_git(path, "add", "staged")
    (path / "untracked").write_bytes(b"untracked\n")
    (path / "debug.log").write_bytes(b"ignored\n")
    (path / "run.sh").chmod(0o644)
    os.symlink("/etc/passwd", path / "outside")
    os.symlink("nowhere", path / "dangling")


def entries_below(root: Path) -> dict[str, tuple[int, int, int]]:
    """Every path with mode, size and time."""
    found = {}
    for each in sorted(root.rglob("*")):
        seen = each.lstat()
        found[str(each)] = (seen.st_mode, seen.st_size, seen.st_mtime_ns)
    return found


async def test_a_fork_carries_commits_and_uncommitted_changes(
    room: ProvisionerRoom, client: GitClient
) -> None:
    source, path = await room.make("k", client.source(), branch="work")
    work_in(path)
    status = run_git(path, "status", "--porcelain")
    head = run_git(path, "rev-parse", "HEAD")
    before = entries_below(path)
    made, copied = await fork(room, source, name="copy", branch="try/2")
    assert entries_below(path) == before
    assert listing(copied) == listing(path)
    assert run_git(copied, "status", "--porcelain") == status
    assert run_git(copied, "symbolic-ref", "HEAD") == b"refs/heads/try/2\n"
    assert run_git(copied, "rev-parse", "HEAD") == head
    assert run_git(copied, "rev-parse", "work") == head
    assert run_git(path, "symbolic-ref", "HEAD") == b"refs/heads/work\n"
    assert (made.rung, made.name, made.branch) == (Rung.FORK, "copy", "try/2")
    assert made.commit == source.commit
    assert not os.access(copied / ".git/refs/heads/try/2.lock", os.F_OK)
    (copied / "d0/f0").write_bytes(b"only here\n")
    run_git(copied, "commit", "-q", "-am", "in the copy")
    assert entries_below(path) == before
    assert run_git(copied, "fsck", "--connectivity-only") == b""
    assert room.leftovers() == []
    changes = await room.provisioner.count_changes(made)
    assert changes == await room.provisioner.count_changes(source)


async def test_without_a_branch_it_stays_on_the_branch_of_its_source(
    room: ProvisionerRoom, client: GitClient
) -> None:
    source, _ = await room.make("k", client.source(), branch="work")
    made, copied = await fork(room, source)
    assert made.branch == "work"
    assert run_git(copied, "symbolic-ref", "HEAD") == b"refs/heads/work\n"


async def test_a_repeated_fork_is_the_first_one_also_after_a_restart(
    tmp_path: Path, client: GitClient
) -> None:
    async with open_room(tmp_path / "host") as room:
        await room.upload(client)
        source, path = await room.make("k", client.source())
        made, copied = await fork(room, source, name="copy", branch="b")
        (copied / "later").write_bytes(b"later")
        assert (await fork(room, source, name="copy", branch="b"))[0] == made
        shutil.rmtree(path)
    async with open_room(tmp_path / "host") as room:
        assert (await fork(room, source, name="copy", branch="b"))[0] == made
        assert (copied / "later").read_bytes() == b"later"
        with pytest.raises(IdempotencyConflict):
            await fork(room, made, name="other")
        await room.provisioner.release("ada", idempotency_key="fork")
        with pytest.raises(WorkspaceReleased):
            await fork(room, source, name="copy", branch="b")


async def test_a_fork_of_what_is_not_there(room: ProvisionerRoom, client: GitClient) -> None:
    source, _ = await room.make("k", client.source())
    with pytest.raises(WorkspaceNotFound):
        await room.provisioner.fork(
            "bob",
            source.workspace_id,
            idempotency_key="f",
            name="",
            branch="",
            lease=LEASE,
            overlay=False,
        )
    await room.provisioner.release("ada", workspace_id=source.workspace_id)
    with pytest.raises(WorkspaceNotFound):
        await fork(room, source)
    assert list(room.layout.trees.iterdir()) == []


async def test_a_taken_name_or_branch_fails_and_touches_nothing(
    room: ProvisionerRoom, client: GitClient
) -> None:
    source, path = await room.make("k", client.source())
    work_in(path)
    first, copied = await fork(room, source, "1", name="copy", branch="b")
    before = entries_below(room.layout.trees)
    with pytest.raises(WorkspaceExists):
        await fork(room, source, "2", name="copy", branch="c")
    with pytest.raises(BranchInUse):
        await fork(room, source, "3", name="other", branch="b")
    with pytest.raises(BranchInUse):
        await fork(room, source, "4", name="other", branch="main/below")
    assert entries_below(room.layout.trees) == before
    # Whoever lost holds nothing: both names are free.
    await fork(room, source, "5", name="other", branch="c")
    assert copied.exists()
    assert first.state is State.PROVISIONED


async def test_a_branch_with_other_commits_in_the_source_is_never_reset(
    room: ProvisionerRoom, client: GitClient
) -> None:
    source, path = await room.make("k", client.source(), branch="work")
    run_git(path, "switch", "-q", "-c", "precious")
    run_git(path, "commit", "-q", "--allow-empty", "-m", "only here")
    precious = run_git(path, "rev-parse", "precious")
    run_git(path, "switch", "-q", "work")
    with pytest.raises(BranchInUse):
        await fork(room, source, "1", branch="precious")
    run_git(path, "pack-refs", "--all")
    with pytest.raises(BranchInUse):
        await fork(room, source, "2", branch="precious")
    assert run_git(path, "rev-parse", "precious") == precious
    _, copied = await fork(room, source, "3", branch="fresh")
    assert run_git(copied, "rev-parse", "precious") == precious


async def test_what_a_hostile_source_holds_leads_nowhere(
    room: ProvisionerRoom, client: GitClient, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_bytes(b"secret")
    source, path = await room.make("k", client.source())
    os.symlink(secret, path / "directory")
    os.mkfifo(path / "pipe")
    os.symlink(secret / "key", path / ".git/packed-refs.lock")
    (path / ".git/config.lock").write_bytes(b"a lock of a running git")
    (path / ".git/config").write_bytes(b"[core]\n\tfsmonitor = touch /tmp/owned\n")
    hole = path / "hole"
    hole.touch()
    os.truncate(hole, 2**42)
    _, copied = await fork(room, source, "1", branch="b")
    assert os.readlink(copied / "directory") == str(secret)
    assert not (copied / "pipe").exists()
    assert not (copied / ".git/config.lock").exists()
    assert (copied / "hole").stat().st_size == 2**42
    assert (copied / "hole").stat().st_blocks == 0
    for broken in (b"ref: refs/heads/../../../escape\n", b"ref: refs/heads/a\nref:", b"\xff", b""):
        (path / ".git/HEAD").write_bytes(broken)
        with pytest.raises(ForkFailed):
            await fork(room, source, repr(broken), branch="c")
    (path / ".git/HEAD").unlink()
    os.symlink(secret / "key", path / ".git/HEAD")
    with pytest.raises(ForkFailed):
        await fork(room, source, "link", branch="c")
    shutil.rmtree(path / ".git")
    os.symlink(secret, path / ".git")
    with pytest.raises(ForkFailed):
        await fork(room, source, "git", branch="c")
    assert sorted(each.name for each in secret.iterdir()) == ["key"]
    assert room.leftovers() == []


async def test_refs_behind_links_are_not_written(
    room: ProvisionerRoom, client: GitClient, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    source, path = await room.make("k", client.source())
    run_git(path, "pack-refs", "--all")
    shutil.rmtree(path / ".git/refs/heads")
    os.symlink(outside, path / ".git/refs/heads")
    with pytest.raises(FairleadError):
        await fork(room, source, "1", branch="b")
    assert list(outside.iterdir()) == []


async def test_a_directory_that_is_in_the_way_is_left_alone(
    room: ProvisionerRoom, client: GitClient
) -> None:
    source, path = await room.make("k", client.source())
    work_in(path)
    before = entries_below(path)
    copy_id = room.provisioner.workspace_id("ada", "fork")
    there = room.layout.baselines / copy_id
    there.mkdir()
    (there / "sibling").write_bytes(b"mine")
    with pytest.raises(FairleadError):
        await fork(room, source, name="copy")
    assert entries_below(path) == before
    assert not (room.layout.trees / copy_id).exists()
    await fork(room, source, "again", name="copy")


async def test_releasing_the_source_or_the_copy_stops_the_copying(
    room: ProvisionerRoom, client: GitClient
) -> None:
    async def begun() -> bool:
        return any(room.layout.staging.glob("*/tree/f1*"))

    source, path = await room.make("k", client.source())
    for number in range(3000):
        (path / f"f{number}").write_bytes(b"x")
    task = asyncio.create_task(fork(room, source, name="copy"))
    await eventually(begun)
    await room.provisioner.release("ada", idempotency_key="fork")
    with pytest.raises(WorkspaceReleased):
        await task
    assert not await begun()
    task = asyncio.create_task(fork(room, source, "2", name="copy"))
    await eventually(begun)
    assert await room.provisioner.release("ada", workspace_id=source.workspace_id)
    with pytest.raises(FairleadError) as failed:
        await task
    assert failed.value.reason in ("workspace_not_found", "fork_failed")
    assert list(room.layout.trees.iterdir()) == []
    assert not await begun()


async def test_a_fork_of_an_overlay_shares_its_template_and_nothing_else(
    room: ProvisionerRoom, client: GitClient, tmp_path: Path
) -> None:
    if not room.trees.can_overlay:
        pytest.skip("overlays cannot be mounted here")
    layout = room.layout
    source, _ = await room.make("k", client.source(), branch="work", overlay=True)
    assert source.rung is Rung.OVERLAY
    run_inside(
        layout,
        source.workspace_id,
        "echo changed > d0/f0; rm d1/f1; rm -r d2; mkdir d2; echo new > d2/new\n"
        "ln -s /etc/passwd outside; echo u > untracked; chmod 644 run.sh\n"
        "git add d2/new; git commit -qm own d2",
    )
    status = statuses_inside(layout, source.workspace_id)
    made, _ = await fork(room, source, branch="try", overlay=True)
    assert statuses_inside(layout, made.workspace_id) == status
    left = copy_out(layout, source.workspace_id, tmp_path / "left")
    right = copy_out(layout, made.workspace_id, tmp_path / "right")
    assert listing(right) == listing(left)
    head = run_inside(layout, made.workspace_id, "git symbolic-ref HEAD")
    assert head == b"refs/heads/try\n"
    run_inside(layout, made.workspace_id, "echo only here > d0/f0")
    assert run_inside(layout, source.workspace_id, "cat d0/f0") == b"changed\n"
    whole, copied = await fork(room, source, "whole", branch="whole", overlay=False)
    assert read_layer(layout.layers / whole.workspace_id) is None
    assert listing(copied) == listing(left)
    head = run_inside(layout, source.workspace_id, "git rev-parse HEAD")
    assert run_git(copied, "rev-parse", "whole") == head
    counts = [await room.provisioner.count_changes(each) for each in (source, made, whole)]
    assert counts[0] == counts[1] == counts[2] is not None


@pytest.mark.parametrize("overlay", [False, True])
async def test_a_branch_and_a_submodule_by_the_name_of_gits_packs(
    room: ProvisionerRoom, client: GitClient, tmp_path: Path, overlay: bool
) -> None:
    if overlay and not room.trees.can_overlay:
        pytest.skip("overlays cannot be mounted here")
    sub = GitClient(tmp_path / "sub")
    sub.write("inside", b"inside\n")
    sub.commit()
    source, path = await room.make("k", client.source(), overlay=overlay)
    work = (
        f"git -c protocol.file.allow=always submodule --quiet add {sub.path} pack\n"
        "git switch -q -c pack/new/feature\n"
        "git commit -q -m own\n"
        "git switch -q -c objects/pack/deep/one"
    )
    look = (
        "git for-each-ref --format='%(refname) %(objectname)' refs/heads; git rev-parse HEAD\n"
        "git -C pack rev-parse HEAD; git -C pack status --porcelain; git fsck --no-dangling"
    )

    def inside(made: Workspace, at: Path, script: str) -> bytes:
        if overlay:
            return run_inside(room.layout, made.workspace_id, script)
        return run_script(at, script)

    inside(source, path, work)
    before = inside(source, path, look)
    made, copied = await fork(room, source, overlay=overlay)
    assert b"refs/heads/pack/new/feature" in before
    assert inside(made, copied, look) == before
