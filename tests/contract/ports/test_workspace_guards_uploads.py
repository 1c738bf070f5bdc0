"""What an upload may lean on, and what upkeep leaves alone meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.contract.ports.test_store_crashes import FailingDisk
from tests.fakes.clock import FakeClock
from tests.fakes.git_client import GitClient, run_git
from tests.fakes.hand_made_packs import (
    BLOB,
    COMMIT,
    NAMED_DELTA,
    TREE,
    copies,
    entry,
    object_id,
    pack,
)
from tests.fakes.provisioner_room import ProvisionerRoom, chunked, open_room
from tests.fakes.store_room import open_store_room
from workspace_provisioner.disk.layout import Layout
from workspace_provisioner.errors import PackTooLarge, SnapshotIncomplete
from workspace_provisioner.git.connectivity import GitConnectivity
from workspace_provisioner.git.pack_caps import PackCaps
from workspace_provisioner.sources import Changes, Source, checked_source
from workspace_provisioner.store import git_upkeep
from workspace_provisioner.workspaces import Miss, MissReason

pytestmark = pytest.mark.asyncio

SECRET = b"what only ada knows\n" * 10


@pytest.fixture
def client(tmp_path: Path) -> GitClient:
    found = GitClient(tmp_path / "laptop")
    found.write("secret", SECRET)
    found.commit()
    return found


@pytest_asyncio.fixture
async def room(tmp_path: Path) -> AsyncIterator[ProvisionerRoom]:
    async with open_room(tmp_path / "host") as opened:
        yield opened


def leaning_on(base: bytes) -> tuple[str, bytes]:
    """A commit whose only file is a delta on the secret; all but the secret is in the pack."""
    blob = object_id(BLOB, base * 2)
    tree = b"100644 stolen\0" + blob
    person = b"B <b@example.com> 1700000000 +0000"
    commit = b"tree %s\nauthor %s\ncommitter %s\n\nmine\n" % (
        object_id(TREE, tree).hex().encode(),
        person,
        person,
    )
    entries = [
        entry(COMMIT, commit),
        entry(TREE, tree),
        entry(NAMED_DELTA, copies(len(base), len(base), 2), base=object_id(BLOB, base)),
    ]
    return object_id(COMMIT, commit).hex(), pack(entries)


def source_of(tenant: str, project: str, commit: str) -> Source:
    return checked_source(
        tenant=tenant,
        project=project,
        object_format="sha1",
        commit=commit,
        branch="main",
        digest="",
        changes=None,
    )


@pytest.mark.parametrize(("tenant", "project"), [("bob", "project"), ("ada", "another")])
async def test_a_whole_pack_with_a_base_in_another_store_is_refused(
    room: ProvisionerRoom, client: GitClient, tenant: str, project: str
) -> None:
    await room.upload(client)
    commit, stealing = leaning_on(SECRET)
    with pytest.raises(SnapshotIncomplete):
        await room.importer.receive(source_of(tenant, project, commit), (), chunked(stealing))
    await room.preparations.finished()  # which stages for templates
    assert not room.leftovers()
    # Where the base is, the very same pack is taken.
    own = source_of("ada", "project", commit)
    await room.importer.receive(own, (), chunked(stealing))
    _, path = await room.make("k", own)
    assert (path / "stolen").read_bytes() == SECRET * 2


async def test_changes_that_are_uploaded_are_measured_before_they_are_promised(
    tmp_path: Path, client: GitClient
) -> None:
    async with open_room(tmp_path / "host", caps=PackCaps(paths=5)) as room:
        await room.upload(client)
        for number in range(6):
            client.write(f"many/{number}", b"x")
        tree = client.changes_tree()
        source = client.source(changes=Changes(tree, b""))
        with pytest.raises(PackTooLarge):
            await room.upload(client, source, having=[client.head()])
        asked = await room.ask("k", source)
        assert isinstance(asked, Miss)
        assert asked.reason is MissReason.UNKNOWN_CHANGES


@pytest.mark.parametrize("kind", ["HEAD", "HEAD:secret"])
async def test_changes_are_a_tree_and_nothing_else(
    room: ProvisionerRoom, client: GitClient, kind: str
) -> None:
    other = client.git("rev-parse", kind).decode().strip()
    with pytest.raises(SnapshotIncomplete):
        await room.upload(client, client.source(changes=Changes(other, b"")))


async def test_an_incomplete_upload_says_who_lacks_the_objects(
    tmp_path: Path, client: GitClient
) -> None:
    async with open_store_room(tmp_path / "host") as room:
        with pytest.raises(SnapshotIncomplete) as caught:
            await room.importer.receive(client.source(), (), chunked(b""))
        assert not caught.value.is_lost_here
        await room.upload(client)
        base = client.head()
        client.write("fresh", b"fresh\n")
        client.commit()
        for each in (room.store(client.source()) / "objects/pack").iterdir():
            each.unlink()
        with pytest.raises(SnapshotIncomplete) as caught:
            await room.upload(client, having=[base])
        assert caught.value.is_lost_here


async def test_an_upload_is_walked_again_when_its_ground_went_meanwhile(
    tmp_path: Path, client: GitClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store_room(tmp_path / "host") as room:
        await room.upload(client)
        base, walk, walks = client.head(), GitConnectivity.walk, []
        store = room.store(client.source())
        client.write("fresh", b"fresh\n")
        client.commit()

        async def walk_beside_damage(self: GitConnectivity, *arguments: object) -> None:
            await walk(self, *arguments)  # type: ignore[arg-type]
            walks.append(arguments)
            if len(walks) == 1:
                for each in (store / "objects/pack").iterdir():
                    each.unlink()
                assert await room.stores.doubt(client.source().key)

        monkeypatch.setattr(GitConnectivity, "walk", walk_beside_damage)
        with pytest.raises(SnapshotIncomplete):
            await room.upload(client, having=[base])
        assert await room.gate.check(client.source()) is not None
        monkeypatch.undo()
        await room.upload(client)
        run_git(store, "fsck", "--full", "--strict")


async def test_what_was_promised_an_hour_ago_is_there_for_the_whole_hour(
    tmp_path: Path, client: GitClient
) -> None:
    clock = FakeClock()
    async with open_store_room(tmp_path / "host", clock=clock) as room:
        client.git("checkout", "-q", "-b", "side")
        client.write("side", b"side\n")
        client.commit()
        side = client.source()
        await room.upload(client)
        client.git("checkout", "-q", "main")
        clock.advance(git_upkeep.KEPT_FOR.total_seconds() + 1)
        await room.upload(client)
        await room.care.tend(side.key)
        clock.advance(3500)
        await room.care.prune(side.key, live_since=None)
        assert run_git(room.store(side), "cat-file", "-t", side.commit) == b"commit\n"
        clock.advance(200)
        await room.care.prune(side.key, live_since=None)
        found = run_git(room.store(side), "cat-file", "--batch-check", given=side.commit.encode())
        assert found.endswith(b"missing\n")


async def test_what_only_a_tip_without_a_record_reaches_is_not_served(
    tmp_path: Path, client: GitClient
) -> None:
    async with open_store_room(tmp_path / "host") as room:
        first = client.source()
        await room.upload(client)
        client.write("second", b"second\n")
        client.commit()
        below = client.source()
        client.write("third", b"third\n")
        client.commit()
        snapshot = await room.upload(client, having=[first.commit])
        assert await room.stores.lack(below.key, below.commit) is None
        (room.store(below) / f"snapshots/{snapshot.snapshot_id}.json").unlink()
        assert await room.stores.lack(first.key, first.commit) is None
        assert await room.stores.lack(below.key, below.commit) is MissReason.UNKNOWN_COMMIT
        tip = client.source()
        assert await room.stores.lack(tip.key, tip.commit) is MissReason.SNAPSHOT_NOT_DURABLE


async def test_what_is_remembered_goes_with_the_tip_that_reached_it(
    tmp_path: Path, client: GitClient
) -> None:
    async with open_store_room(tmp_path / "host") as room:
        first = client.source()
        await room.upload(client)
        client.write("second", b"second\n")
        client.commit()
        below = client.source()
        client.write("third", b"third\n")
        tip = client.commit()
        await room.upload(client, having=[first.commit])
        assert await room.gate.check(below) is None
        (room.store(below) / "refs/fairlead/tips" / tip).unlink()
        assert await room.gate.check(first) is None
        assert await room.gate.check(below) is not None


@pytest.mark.parametrize("names_stay", [False, True], ids=["names lost", "names stay"])
async def test_a_first_upload_that_was_answered_outlives_a_power_cut(
    tmp_path: Path, client: GitClient, names_stay: bool
) -> None:
    root = tmp_path / "host"
    Layout(root).make()
    disk = FailingDisk(root)
    async with open_store_room(root, disk=disk) as room:
        await room.upload(client)
    disk.cut(names_stay=names_stay)
    async with open_store_room(root) as room:
        assert await room.gate.check(client.source()) is None
        run_git(room.store(client.source()), "fsck", "--full", "--strict")
