"""A first sync brings the trees of its tips, and their history after: until then no ancestor is
taken for known, and afterwards nothing shows that it was so.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from tests.fakes.git_client import GitClient, run_git
from tests.fakes.store_room import StoreRoom, chunked, open_store_room
from workspace_provisioner.errors import SnapshotIncomplete, StorageUnavailable
from workspace_provisioner.sources import Commits, Source, Tip
from workspace_provisioner.workspaces import Miss, MissReason, Snapshot

pytestmark = pytest.mark.asyncio


@pytest.fixture
def client(tmp_path: Path) -> GitClient:
    found = GitClient(tmp_path / "laptop")
    for number in range(5):
        found.write(f"f{number}", f"line {number}\n".encode() * 50)
        found.commit()
    return found


@pytest_asyncio.fixture
async def room(tmp_path: Path) -> AsyncIterator[StoreRoom]:
    async with open_store_room(tmp_path / "host") as opened:
        yield opened


def trees_only(client: GitClient, *commits: str) -> bytes:
    """Pack commits with their trees, and no parents."""
    listed = list(commits)
    for commit in commits:
        walked = client.git("rev-list", "--objects", "--no-object-names", f"{commit}^{{tree}}")
        listed += walked.decode().split()
    given = "".join(f"{oid}\n" for oid in dict.fromkeys(listed))
    return client.git("pack-objects", "--stdout", "-q", given=given.encode())


async def sync_tips(
    room: StoreRoom, client: GitClient, source: Source, tips: tuple[Tip, ...] = ()
) -> Snapshot:
    heads = [tip.commit for tip in tips if not tip.ref.startswith("refs/tags/")]
    pack = trees_only(client, *dict.fromkeys((source.commit, *heads)))
    return await room.importer.receive(source, tips, chunked(pack), tips_only=True)


async def lack(room: StoreRoom, source: Source, commit: str) -> MissReason | None:
    return await room.stores.lack(source.key, commit)


async def test_tips_first_then_history(room: StoreRoom, client: GitClient) -> None:
    source = client.source()
    parent = client.git("rev-parse", "HEAD~").decode().strip()
    snapshot = await sync_tips(room, client, source)
    assert snapshot.shallow == (source.commit,)
    assert await room.gate.check(source) is None
    assert await room.stores.is_shallow(source.key, source.commit)
    stamp = await room.stores.stamp(source.key, source.commit)
    assert stamp is not None
    assert stamp.shallow
    assert room.stores.verify(source.key, stamp) is None
    # Nothing is said of ancestors, and nobody may leave them out of a pack.
    assert await lack(room, source, parent) is MissReason.UNKNOWN_COMMIT
    assert await room.stores.tips(source.key) == ()
    assert not (room.store(source) / "shallow").exists()

    history = client.pack([source.commit], [f"{source.commit}^{{tree}}"])
    whole = await room.importer.receive(source, (), chunked(history))
    assert whole.snapshot_id != snapshot.snapshot_id
    assert room.voided == [source.key]
    assert await lack(room, source, parent) is None
    assert not await room.stores.is_shallow(source.key, source.commit)
    assert await room.stores.tips(source.key) == (source.commit,)
    assert room.stores.verify(source.key, stamp) is None  # what was made before stays right
    run_git(room.store(source), "fsck", "--full", "--strict")
    run_git(room.store(source), "rev-list", "--objects", "--all", "--quiet")
    assert all(not each.shallow for each in await room.stores.snapshots())


async def test_several_tips_of_one_line(room: StoreRoom, client: GitClient) -> None:
    source = client.source()
    older = client.git("rev-parse", "HEAD~2").decode().strip()
    root = client.git("rev-list", "--max-parents=0", "HEAD").decode().strip()
    client.git("tag", "-a", "-m", "one", "v1", older)
    tag = client.git("rev-parse", "v1").decode().strip()
    tips = tuple(
        Tip(ref, oid)
        for ref, oid in (
            ("refs/heads/old", older),
            ("refs/heads/root", root),
            ("refs/tags/v1", tag),
        )
    )
    snapshot = await sync_tips(room, client, source, tips)
    assert set(snapshot.shallow) == {source.commit, older}
    assert await lack(room, source, root) is None  # it has no ancestors that could be lacking
    assert await room.stores.tags(source.key) == ()
    whole = await room.upload(client, tips=tips)
    assert whole.tags == ((tag, older),)
    assert not await room.stores.is_shallow(source.key, older)
    assert [tip.ref for tip in await room.stores.tags(source.key)] == ["refs/tags/v1"]


async def test_what_is_shallow_does_not_carry_a_history(room: StoreRoom, client: GitClient) -> None:
    source = client.source()
    await sync_tips(room, client, source)
    client.write("f0", b"next\n")
    client.commit()
    newer = client.source()
    thin = client.pack([newer.commit], [source.commit])
    # On top of what has no history here nothing can be whole: as an upload or inline.
    with pytest.raises(SnapshotIncomplete):
        await room.importer.receive(newer, (), chunked(thin))
    miss = await room.gate.check(replace(newer, commits=Commits((source.commit,), thin)))
    assert miss == Miss(MissReason.UNKNOWN_COMMIT, (newer.commit,), ())
    assert await room.gate.check(source) is None
    await room.upload(client)
    assert await room.gate.check(newer) is None
    assert not await room.stores.is_shallow(source.key, source.commit)


async def test_a_tips_only_pack_without_its_trees(room: StoreRoom, client: GitClient) -> None:
    source = client.source()
    lone = client.git("pack-objects", "--stdout", "-q", given=f"{source.commit}\n".encode())
    with pytest.raises(SnapshotIncomplete):
        await room.importer.receive(source, (), chunked(lone), tips_only=True)
    assert await lack(room, source, source.commit) is MissReason.NO_BASE


async def test_a_crash_before_the_marks_are_dropped_is_made_good(
    room: StoreRoom, client: GitClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = client.source()
    await sync_tips(room, client, source)

    async def killed(*_: object) -> None:
        raise ConnectionAbortedError

    with monkeypatch.context() as patch:
        patch.setattr(type(room.care._admission), "make_whole", killed)
        with pytest.raises(StorageUnavailable):
            await room.upload(client)
    async with open_store_room(room.layout.host_root) as again:
        assert not await again.stores.is_shallow(source.key, source.commit)
        await again.care.tend(source.key)
        assert all(not each.shallow for each in await again.stores.snapshots())
        assert await again.gate.check(source) is None
