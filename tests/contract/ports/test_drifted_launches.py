"""Launches on a base that was prepared and then damaged: each reason once, and after the upload a
workspace as the warm path makes it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from tests.contract.ports.test_store_history import trees_only
from tests.fakes.git_client import GitClient, listing, run_git
from tests.fakes.mounted_layers import run_inside
from tests.fakes.provisioner_room import ProvisionerRoom, chunked, open_room
from workspace_provisioner.git.checkout import GitCheckouts
from workspace_provisioner.git.index import Contents
from workspace_provisioner.sources import Commits, ProjectKey, Tip
from workspace_provisioner.workspaces import Miss, MissReason, Rung

pytestmark = pytest.mark.asyncio


@pytest.fixture
def client(tmp_path: Path) -> GitClient:
    found = GitClient(tmp_path / "laptop")
    for number in range(10):
        found.write(f"d{number % 3}/f{number}", f"line {number}\n".encode() * 50)
    found.commit()
    return found


@pytest_asyncio.fixture
async def room(tmp_path: Path) -> AsyncIterator[ProvisionerRoom]:
    async with open_room(tmp_path / "host") as opened:
        yield opened


def lose_store(store: Path, commit: str) -> None:
    store.rename(store.with_name("gone"))


def lose_pin(store: Path, commit: str) -> None:
    (store / "refs/fairlead/tips" / commit).unlink()


def lose_record(store: Path, commit: str) -> None:
    for path in (store / "snapshots").iterdir():
        path.unlink()


def lose_pack(store: Path, commit: str) -> None:
    for path in (store / "objects/pack").glob("*.pack"):
        path.unlink()


def cut_pack(store: Path, commit: str) -> None:
    for path in (store / "objects/pack").glob("*.pack"):
        path.chmod(0o644)
        os.truncate(path, path.stat().st_size // 2)


async def workspace_is_right(room: ProvisionerRoom, client: GitClient, key: str) -> str:
    made, path = await room.make(key, client.source())
    assert listing(path) == listing(client.path)
    assert run_git(path, "status", "--porcelain") == b""
    assert run_git(path, "fsck", "--full", "--strict") == b""
    return made.rung


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lose_store, MissReason.NO_BASE),
        (lose_pin, MissReason.REF_DRIFT),
        (lose_record, MissReason.SNAPSHOT_NOT_DURABLE),
        (lose_pack, MissReason.MISSING_OBJECTS),
        (cut_pack, MissReason.MISSING_OBJECTS),
    ],
)
async def test_each_reason_ends_in_the_state_of_the_warm_path(
    room: ProvisionerRoom,
    client: GitClient,
    damage: Callable[[Path, str], None],
    reason: MissReason,
) -> None:
    await room.upload(client)
    await room.preparations.finished()
    await workspace_is_right(room, client, "first")
    await room.preparations.finished()
    warm = await workspace_is_right(room, client, "warm")
    await room.preparations.finished()
    store = room.layout.store(client.source().key)
    damage(store, client.head())
    missed = await room.ask("after", client.source())
    assert missed == Miss(reason, (client.head(),), ())
    assert not room.leftovers()
    await room.upload(client)
    await room.preparations.finished()
    assert await workspace_is_right(room, client, "after") == warm
    run_git(store, "fsck", "--full", "--strict")


async def test_new_commits_in_one_call(room: ProvisionerRoom, client: GitClient) -> None:
    await room.upload(client)
    base = client.head()
    client.write("d0/f0", b"new\n")
    client.commit()
    source = client.source()
    commits = Commits((base,), client.pack([source.commit], [base]))
    made, path = await room.make("k", replace(source, commits=commits))
    assert listing(path) == listing(client.path)
    assert made.commit == source.commit
    await workspace_is_right(room, client, "next")
    # The repeated call is the first one.
    assert await room.ask("k", replace(source, commits=commits)) == made


async def test_tags_are_in_the_workspace(room: ProvisionerRoom, client: GitClient) -> None:
    client.git("tag", "-a", "-m", "one", "v1")
    client.git("tag", "light")
    tag = client.git("rev-parse", "v1").decode().strip()
    tips = (Tip("refs/tags/v1", tag), Tip("refs/tags/light", client.head()))
    await room.upload(client, tips=tips)
    _, path = await room.make("k", client.source())
    assert run_git(path, "tag").split() == [b"light", b"v1"]
    assert run_git(path, "describe") == b"v1\n"


async def test_joining_packs_beside_takes(room: ProvisionerRoom, client: GitClient) -> None:
    await room.upload(client)
    for number in range(27):
        base = client.head()
        client.write("d0/f0", f"{number}\n".encode())
        client.commit()
        await room.upload(client, having=[base])
    await room.preparations.finished()
    key = client.source().key

    paths = []

    async def launch(number: int) -> None:
        _, path = await room.make(f"k{number}", client.source())
        assert listing(path) == listing(client.path)
        assert run_git(path, "status", "--porcelain") == b""
        run_git(path, "rev-list", "--objects", "--quiet", "HEAD")
        paths.append(path)

    async with asyncio.TaskGroup() as calls:
        for number in range(6):
            calls.create_task(launch(number))
        calls.create_task(room.core.upkeep.tend())
    packs = list((room.layout.store(key) / "objects/pack").glob("*.pack"))
    assert len(packs) < 25
    for path in paths:
        assert run_git(path, "fsck", "--full", "--strict") == b""
    await workspace_is_right(room, client, "last")


@pytest.mark.parametrize("overlay", [False, True])
async def test_history_that_comes_while_files_are_prepared_is_in_their_workspaces(
    room: ProvisionerRoom,
    client: GitClient,
    monkeypatch: pytest.MonkeyPatch,
    overlay: bool,
) -> None:
    if overlay and not room.trees.can_overlay:
        pytest.skip("overlays cannot be mounted here")
    client.write("d0/f0", b"second\n")
    client.commit()
    source = client.source()
    history = client.pack([source.commit], [f"{source.commit}^{{tree}}"])
    check_out = GitCheckouts.make
    waiting = [history] if overlay else []

    async def overtaken(
        self: GitCheckouts, staged: Path, key: ProjectKey, commit: str, *, idle: bool = False
    ) -> Contents:
        if idle and waiting:
            await room.importer.receive(source, (), chunked(waiting.pop()))
        return await check_out(self, staged, key, commit, idle=idle)

    monkeypatch.setattr(GitCheckouts, "make", overtaken)
    files = trees_only(client, source.commit)
    await room.importer.receive(source, (), chunked(files), tips_only=True)
    await room.preparations.finished()
    if not overlay:
        waiting.append(history)  # for the entries of the pool, which the first take asks for
        await room.make("first", source)
        await room.preparations.finished()
    assert not waiting
    made, path = await room.make("later", source, overlay=overlay)
    if overlay:
        assert made.rung is Rung.OVERLAY
        counted = run_inside(room.layout, made.workspace_id, "git rev-list --count HEAD")
    else:
        assert made.rung is Rung.POOL
        counted = run_git(path, "rev-list", "--count", "HEAD")
    assert counted == b"2\n"


async def test_tags_that_come_with_the_history_are_in_later_workspaces(
    room: ProvisionerRoom, client: GitClient
) -> None:
    client.write("d0/f0", b"second\n")
    client.commit()
    client.git("tag", "light", "HEAD~")
    source = client.source()
    files = trees_only(client, source.commit)
    await room.importer.receive(source, (), chunked(files), tips_only=True)
    await room.preparations.finished()
    first, _ = await room.make("first", source, overlay=True)
    await room.make("other", source)
    tips = (Tip("refs/tags/light", client.git("rev-parse", "light").decode().strip()),)
    history = client.pack([source.commit], [f"{source.commit}^{{tree}}"])
    await room.importer.receive(source, tips, chunked(history))
    for number in range(3):
        _, path = await room.make(f"k{number}", source)
        assert run_git(path, "tag") == b"light\n"
        assert run_git(path, "describe", "--tags").startswith(b"light-1-g")
        await room.preparations.finished()
    later, _ = await room.make("later", source, overlay=True)
    if first.rung == later.rung == Rung.OVERLAY:
        upper = room.layout.host_root / "layers" / later.workspace_id / "upper"
        assert b"refs/tags/light" in (upper / ".git/packed-refs").read_bytes()
