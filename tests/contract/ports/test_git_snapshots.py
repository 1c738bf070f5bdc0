"""Uploads into real stores: thin packs, quarantine, connectivity, tips, tenants, damage."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.eventually import eventually
from tests.fakes.git_client import GitClient, listing, run_git
from tests.fakes.provisioner_room import ProvisionerRoom, SnapshotList, chunked, open_room
from workspace_provisioner.errors import (
    PackInvalid,
    PackTooLarge,
    SnapshotIncomplete,
    UploadIdle,
)
from workspace_provisioner.sources import Changes, Tip
from workspace_provisioner.store.quarantine import Intake
from workspace_provisioner.workspaces import Miss, MissReason, Snapshot

pytestmark = pytest.mark.asyncio


@pytest.fixture
def client(tmp_path: Path) -> GitClient:
    found = GitClient(tmp_path / "laptop")
    for number in range(20):
        found.write(f"d{number % 3}/f{number}", f"line {number}\n".encode() * 50)
    found.commit()
    return found


@pytest_asyncio.fixture
async def room(tmp_path: Path) -> AsyncIterator[ProvisionerRoom]:
    async with open_room(tmp_path / "host") as opened:
        yield opened


def store_files(room: ProvisionerRoom) -> list[str]:
    """Every file of every store but the locks."""
    found = []
    for directory, _, names in os.walk(room.layout.root):
        if "/." not in directory.removeprefix(str(room.layout.root)):
            found += [n for n in names if not n.startswith(".") and not n.endswith(".lock")]
    return found


async def test_thin_packs_build_on_each_other(room: ProvisionerRoom, client: GitClient) -> None:
    first = client.head()
    missed = await room.ask("k", client.source())
    assert missed == Miss(MissReason.NO_BASE, (first,))
    whole = await room.upload(client)
    client.write("d0/f0", b"line 0\n" * 50 + b"more\n")
    second = client.commit()
    missed = await room.ask("k", client.source())
    assert missed == Miss(MissReason.UNKNOWN_COMMIT, (second,), (first,))
    thin = await room.upload(client, having=[first])
    assert thin.received_bytes < whole.received_bytes / 2
    _, path = await room.make("k", client.source())
    assert listing(path) == listing(client.path)
    assert run_git(path, "fsck", "--full", "--strict") == b""
    assert run_git(path, "log", "--format=%H").decode().split() == [second, first]

    async def staged() -> list[str]:
        return room.leftovers()  # a ready tree is made beside this

    await eventually(staged, [].__eq__)


async def test_sha256_repositories(room: ProvisionerRoom, tmp_path: Path) -> None:
    client = GitClient(tmp_path / "sha256", object_format="sha256")
    client.write("a", b"1")
    client.commit()
    await room.upload(client)
    client.write("a", b"2")
    made, path = await room.make("k", client.source(changes=client.dirty()))
    assert len(made.commit) == 64
    assert listing(path) == {b"a": ("file", b"2")}
    assert run_git(path, "status", "--porcelain") == b" M a\n"
    assert await room.provisioner.count_changes(made) == 0


async def test_the_wanted_commit_may_lie_below_a_tip(
    room: ProvisionerRoom, client: GitClient
) -> None:
    older = client.source()
    client.write("new", b"n")
    await room.upload(client)
    client.commit()
    await room.upload(client, having=[older.commit])
    async with open_room(room.layout.host_root) as again:
        made, path = await again.make("k", older)
        assert made.commit == older.commit
        assert not (path / "new").exists()


async def test_tips_are_the_newest_64(room: ProvisionerRoom, client: GitClient) -> None:
    commits = []
    for number in range(70):
        client.git("checkout", "-q", "-b", f"b{number}", "main")
        client.write("f", str(number).encode())
        commits.append(client.commit())
    tips = tuple(Tip(f"refs/heads/b{n}", c) for n, c in enumerate(commits))
    snapshot = await room.upload(client, tips=tips)
    assert snapshot.tips == tips
    client.write("f", b"unknown")
    client.commit()
    missed = await room.ask("k", client.source())
    assert isinstance(missed, Miss)
    assert missed.reason is MissReason.UNKNOWN_COMMIT
    assert missed.tips == tuple(reversed(commits))[:64]
    # Many new refs are packed; they still count after a restart.
    async with open_room(room.layout.host_root) as again:
        assert await again.stores.knows(client.source().key, commits[0])


async def test_an_upload_of_nothing_new(room: ProvisionerRoom, client: GitClient) -> None:
    await room.upload(client)
    client.git("branch", "other")
    source = client.source(digest="c" * 64)
    tips = (Tip("refs/heads/other", client.head()),)
    snapshot = await room.importer.receive(source, tips, chunked(b""))
    assert snapshot.received_bytes == 0
    empty = client.pack([])
    assert len(empty) == 32
    assert (await room.importer.receive(source, tips, chunked(empty))).received_bytes == 32
    assert sum(1 for name in store_files(room) if name.endswith(".pack")) == 1


async def test_changes_too_large_for_a_request(room: ProvisionerRoom, client: GitClient) -> None:
    await room.upload(client)
    client.write("noise", os.urandom(400_000))
    source = client.source(changes=client.dirty(inline=False))
    missed = await room.ask("k", source)
    assert source.changes
    assert missed == Miss(MissReason.UNKNOWN_CHANGES, (source.changes.tree,), (client.head(),))
    await room.upload(client, source, having=[client.head()])
    made, path = await room.make("k", source)
    assert listing(path) == listing(client.path)
    assert run_git(path, "status", "--porcelain") == b"?? noise\n"
    assert await room.provisioner.count_changes(made) == 0


@pytest.mark.parametrize("damage", ["cut", "flipped", "text"])
async def test_packs_that_git_refuses(
    room: ProvisionerRoom, client: GitClient, damage: str
) -> None:
    pack = client.pack([client.head()])
    flipped = bytes([*pack[:-30], pack[-30] ^ 0xFF, *pack[-29:]])
    bad = {"cut": pack[:-50], "flipped": flipped, "text": b"hello" * 10}
    with pytest.raises(PackInvalid) as caught:
        await room.importer.receive(client.source(), (), chunked(bad[damage]))
    assert str(room.layout.root) not in caught.value.message
    assert not room.leftovers()
    assert not store_files(room)


async def test_uploads_that_are_not_whole(room: ProvisionerRoom, client: GitClient) -> None:
    first = client.head()
    client.write("d0/f0", b"changed\n")
    second = client.commit()
    lone_commit = client.git("pack-objects", "--stdout", "-q", given=f"{second}\n".encode())
    without_base = client.pack([second], [first])
    for pack in (lone_commit, without_base, b""):
        with pytest.raises(SnapshotIncomplete):
            await room.importer.receive(client.source(), (), chunked(pack))
    whole = client.pack([second])
    tree = client.git("rev-parse", "HEAD^{tree}").decode().strip()
    for commit in ("e" * 40, tree):
        tips = (Tip("refs/heads/x", commit),)
        with pytest.raises(SnapshotIncomplete):
            await room.importer.receive(client.source(), tips, chunked(whole))
    source = client.source(changes=Changes("e" * 40, b""))
    with pytest.raises(SnapshotIncomplete):
        await room.importer.receive(source, (), chunked(whole))
    assert not room.leftovers()
    assert not store_files(room)


async def test_a_tree_that_would_leave_its_directory(
    room: ProvisionerRoom, client: GitClient
) -> None:
    blob = client.git("hash-object", "-w", "--stdin", given=b"evil").strip()
    for name in (b"..", b".git"):
        inner = client.git(
            "hash-object", "-t", "tree", "-w", "--literally", "--stdin",
            given=b"100644 f\x00" + bytes.fromhex(blob.decode()),
        )  # fmt: skip
        raw = b"40000 " + name + b"\x00" + bytes.fromhex(inner.decode().strip())
        tree = client.git("hash-object", "-t", "tree", "-w", "--literally", "--stdin", given=raw)
        commit = client.git("commit-tree", "-m", "evil", tree.decode().strip())
        client.git("update-ref", "refs/heads/evil", commit.decode().strip())
        pack = client.pack([commit.decode().strip()])
        tips = (Tip("refs/heads/evil", commit.decode().strip()),)
        with pytest.raises(PackInvalid):
            await room.importer.receive(client.source(), tips, chunked(pack))
    assert not room.leftovers()


async def test_limits_of_an_upload(tmp_path: Path, client: GitClient) -> None:
    client.write("noise", os.urandom(200_000))
    client.commit()

    async def slow() -> AsyncIterator[bytes]:
        yield client.pack([client.head()])[:1000]
        await asyncio.Event().wait()

    async with open_room(tmp_path / "host", intake=Intake(100_000, 0.2, 60)) as room:
        with pytest.raises(PackTooLarge):
            await room.upload(client)
        with pytest.raises(UploadIdle):
            await room.importer.receive(client.source(), (), slow())
        assert not room.leftovers()
        assert not store_files(room)


async def test_a_client_that_leaves_in_the_middle(room: ProvisionerRoom, client: GitClient) -> None:
    begun = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        yield client.pack([client.head()])[:1000]
        begun.set()
        await asyncio.Event().wait()

    call = asyncio.create_task(room.importer.receive(client.source(), (), endless()))
    await begun.wait()
    assert room.leftovers()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert not room.leftovers()
    assert not store_files(room)
    assert await room.ask("k", client.source()) == Miss(MissReason.NO_BASE, (client.head(),))


async def test_cancelling_while_a_quarantine_opens(
    room: ProvisionerRoom, client: GitClient
) -> None:
    async def open_quarantine() -> None:
        async with room.stores.quarantine(client.source().key):
            await asyncio.Event().wait()

    opening = asyncio.create_task(open_quarantine())
    await asyncio.sleep(0)
    opening.cancel()
    await asyncio.wait({opening})
    assert opening.cancelled()
    assert room.leftovers() == []


async def test_uploads_at_the_same_time(room: ProvisionerRoom, client: GitClient) -> None:
    await asyncio.gather(*(room.upload(client) for _ in range(8)))
    await room.make("k", client.source())
    assert sum(1 for name in store_files(room) if name.endswith(".pack")) == 1


async def test_tenants_never_get_each_others_commits(
    room: ProvisionerRoom, client: GitClient
) -> None:
    await room.upload(client)
    others = client.source(tenant="bob")
    assert await room.ask("k", others) == Miss(MissReason.NO_BASE, (others.commit,))
    with pytest.raises(SnapshotIncomplete):
        await room.importer.receive(others, (), chunked(b""))
    # Nor by a thin pack whose bases only the other tenant has.
    first = client.head()
    client.write("d0/f0", b"line 0\n" * 50 + b"x")
    second = client.commit()
    pack = client.pack([second], [first])
    with pytest.raises(SnapshotIncomplete):
        await room.importer.receive(client.source(tenant="bob"), (), chunked(pack))
    # Nor another project of the same tenant.
    assert isinstance(await room.ask("k2", client.source(project="other")), Miss)


async def test_a_vanished_pack_is_a_miss_and_heals(
    room: ProvisionerRoom, client: GitClient
) -> None:
    await room.upload(client)
    store = room.layout.store(client.source().key)
    (pack,) = (store / "objects/pack").glob("*.pack")
    pack.unlink()
    missed = await room.ask("k", client.source())
    assert missed == Miss(MissReason.MISSING_OBJECTS, (client.head(),))
    assert not room.leftovers()
    with pytest.raises(SnapshotIncomplete):
        await room.importer.receive(client.source(), (), chunked(b""))
    await room.upload(client)
    _, path = await room.make("k", client.source())
    assert listing(path) == listing(client.path)


async def test_a_rotten_pack_is_a_miss_and_heals(room: ProvisionerRoom, client: GitClient) -> None:
    client.write("noise", os.urandom(100_000))
    client.commit()
    await room.upload(client)
    store = room.layout.store(client.source().key)
    (pack,) = (store / "objects/pack").glob("*.pack")
    pack.chmod(0o644)
    with pack.open("r+b") as stream:
        stream.seek(50_000)
        stream.write(b"\xff" * 20)
    missed = await room.ask("k", client.source(changes=client.dirty()))
    assert isinstance(missed, Miss)
    assert missed.reason is MissReason.MISSING_OBJECTS
    assert missed.tips == ()
    await room.upload(client)
    _, path = await room.make("k", client.source())
    assert listing(path) == listing(client.path)


async def test_a_vanished_store_is_a_miss(room: ProvisionerRoom, client: GitClient) -> None:
    await room.upload(client)
    room.layout.store(client.source().key).rename(room.layout.trash / "gone")
    missed = await room.ask("k", client.source())
    assert isinstance(missed, Miss)
    assert missed.reason is MissReason.NO_BASE
    await room.upload(client)
    await room.make("k", client.source())


async def test_snapshots_are_announced_again_after_a_restart(
    tmp_path: Path, client: GitClient
) -> None:
    async with open_room(tmp_path / "host") as room:
        snapshot = await room.upload(client, tips=(Tip("refs/heads/main", client.head()),))
    directory = SnapshotList()
    async with open_room(tmp_path / "host", directory=directory) as room:
        await room.importer.republish()
    published: list[Snapshot] = directory.published
    assert set(published) == {snapshot}


async def test_what_lies_in_the_store_unconnected_makes_no_upload_whole(
    room: ProvisionerRoom, client: GitClient
) -> None:
    await room.upload(client)
    client.write("d0/f0", b"lost on the way\n")
    lost = client.commit()
    # The pack brings the commit and its trees; a blob of theirs is nowhere.
    tree = client.git("rev-parse", f"{lost}^{{tree}}").strip()
    inner = client.git("rev-parse", f"{lost}:d0").strip()
    given = b"%s\n%s\n%s\n" % (lost.encode(), tree, inner)
    torn = client.git("pack-objects", "--stdout", "-q", given=given)
    store = room.layout.store(client.source().key)
    run_git(store, "index-pack", "--stdin", given=torn)
    client.write("d1/f1", b"goes on\n")
    source = client.source(digest="d" * 64)
    client.commit()
    for tips, pack in (
        ((), client.pack([])),
        ((Tip("refs/heads/main", client.head()),), client.pack([client.head()], [lost])),
    ):
        with pytest.raises(SnapshotIncomplete):
            await room.importer.receive(source, tips, chunked(pack))
    assert not await room.stores.knows(source.key, lost)
    assert not await room.stores.knows(source.key, client.head())
