"""A launch that brings a few new commits along: what it costs in git processes, and that the short
way ends where the long one does.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fakes.git_client import GitClient
from tests.fakes.mounted_layers import statuses_inside
from tests.fakes.provisioner_room import open_layered_room, open_room
from workspace_provisioner.errors import PackTooLarge
from workspace_provisioner.git import content
from workspace_provisioner.git.pack_caps import PackCaps
from workspace_provisioner.git.tree_changes import Fetch, TreeChanges, compared
from workspace_provisioner.sources import Commits, ObjectFormat, Source
from workspace_provisioner.store import grown_trees
from workspace_provisioner.store.files import may_hold
from workspace_provisioner.wall.git_wall import GitWall
from workspace_provisioner.wall.jobs import Job
from workspace_provisioner.workspaces import Rung

pytestmark = pytest.mark.asyncio


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the git commands that were started."""
    found: Counter[str] = Counter()
    start = GitWall.start

    async def counted(
        wall: GitWall, job: Job, descriptors: Sequence[int]
    ) -> tuple[str, asyncio.Future[int]]:
        found.update(job["arguments"][1:2])
        return await start(wall, job, descriptors)

    monkeypatch.setattr(GitWall, "start", counted)
    return found


@pytest.fixture
def client(tmp_path: Path) -> GitClient:
    found = GitClient(tmp_path / "laptop")
    for number in range(90):
        found.write(f"d{number % 9}/f{number}", f"line {number}\n".encode() * 20)
    found.commit()
    return found


def with_commits(client: GitClient, before: str) -> Source:
    pack = client.pack([client.head()], [before])
    return replace(client.source(), commits=Commits((before,), pack))


async def test_it_costs_few_git_processes(
    tmp_path: Path, client: GitClient, started: Counter[str]
) -> None:
    async with open_layered_room(tmp_path / "host") as room:
        await room.upload(client)
        await room.make("first", client.source(), overlay=True)
        for number in range(3):
            before = client.head()
            client.write(f"d1/new{number}", b"new\n")
            client.write("d2/f2", f"changed {number}\n".encode())
            (client.path / f"d3/f{3 + 9 * number}").unlink()
            client.commit()
            await room.preparations.finished()
            started.clear()
            made, _ = await room.make(f"k{number}", with_commits(client, before), overlay=True)
            assert made.rung is Rung.OVERLAY_DELTA
            # The reader of the store stays.
            expected = {"index-pack": 1, "rev-list": 1, **({} if number else {"cat-file": 1})}
            assert started == expected
            assert statuses_inside(room.layout, made.workspace_id) == []
            assert await room.provisioner.count_changes(made) == 0


async def test_an_unknown_commit_starts_no_git(
    tmp_path: Path, client: GitClient, started: Counter[str]
) -> None:
    async with open_room(tmp_path / "host") as room:
        await room.upload(client)
        await room.preparations.finished()
        tips = await room.stores.tips(client.source().key)
        started.clear()
        assert await room.stores.lack(client.source().key, "ab" * 20)
        assert started == {}
        assert tips == (client.head(),)


async def test_the_limits_hold_for_what_grew(tmp_path: Path, client: GitClient) -> None:
    # 90 files and 9 directories.
    async with open_room(tmp_path / "host", caps=PackCaps(paths=105)) as room:
        await room.upload(client)
        before = client.head()
        for number in range(7):
            client.write(f"new{number}", b"new\n")
        client.commit()
        with pytest.raises(PackTooLarge, match="105 paths in one tree"):
            await room.make("k", with_commits(client, before))
        client.git("reset", "-q", "--hard", before)
        for number in range(20):
            client.write(f"d{number % 9}/f{number}", f"other {number}\n".encode())
        client.commit()
        # More may have come than there is room for, so that it is counted.
        await room.make("k2", with_commits(client, before))


async def test_what_was_counted_may_be_forgotten_while_it_grows(
    tmp_path: Path, client: GitClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Since another tenant's upload is counted meanwhile, and only so many are remembered."""
    others = 0

    async def slow(fetch: Fetch, object_format: ObjectFormat, old: str, wanted: str) -> TreeChanges:
        nonlocal others
        others += 1
        await room.upload(client, client.source(tenant="other"))
        return await compared(fetch, object_format, old, wanted)

    async with open_room(tmp_path / "host") as room:
        await room.upload(client)
        before = client.head()
        client.write("d1/new", b"new\n")
        client.commit()
        monkeypatch.setattr(content, "_MOST_REMEMBERED", 1)
        monkeypatch.setattr(grown_trees, "compared", slow)
        await room.make("k", with_commits(client, before))
        assert others == 1


async def test_long_paths_of_a_small_pack_are_refused(tmp_path: Path, client: GitClient) -> None:
    async with open_room(tmp_path / "host", caps=PackCaps(depth=4)) as room:
        await room.upload(client)
        before = client.head()
        client.write("a/b/c/d/e", b"new\n")
        client.commit()
        with pytest.raises(PackTooLarge, match="4 directories inside each other"):
            await room.make("k", with_commits(client, before))


async def test_what_a_store_may_hold(tmp_path: Path, client: GitClient) -> None:
    async with open_room(tmp_path / "host") as room:
        await room.upload(client)
        store = room.layout.store(client.source().key)
        listed = client.git("rev-list", "--objects", "HEAD").decode().splitlines()
        oids = [line.split()[0] for line in listed]
        assert len(oids) == 101
        for oid in oids:
            assert may_hold(store, oid)
            assert not may_hold(store, oid[:-2] + ("00" if oid[-2:] != "00" else "01"))
        assert not may_hold(store, "00" * 20)
        assert not may_hold(store, "ff" * 20)
        (index,) = (store / "objects/pack").glob("*.idx")
        content = index.read_bytes()
        index.chmod(0o600)
        for damaged in (b"", content[:1000], content[:1040], b"\0" * len(content)):
            index.write_bytes(damaged)
            assert may_hold(store, oids[0])
