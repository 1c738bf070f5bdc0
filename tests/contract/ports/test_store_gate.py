"""The gate over real stores: what reaches the tenant's durable tips is served, warm from memory;
every damage is noticed, named and healed by the next upload.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from tests.fakes.git_client import GitClient, run_git
from tests.fakes.store_room import StoreRoom, chunked, open_store_room
from workspace_provisioner.errors import PackInvalid, SnapshotIncomplete
from workspace_provisioner.sources import Changes, Commits, Source, Tip
from workspace_provisioner.workspaces import Miss, MissReason

pytestmark = pytest.mark.asyncio

STALE = ("packed-refs.lock", "config.lock", "refs/fairlead/tips/{tip}.lock")


@pytest.fixture
def client(tmp_path: Path) -> GitClient:
    found = GitClient(tmp_path / "laptop")
    for number in range(10):
        found.write(f"d{number % 3}/f{number}", f"line {number}\n".encode() * 50)
    found.commit()
    return found


@pytest_asyncio.fixture
async def room(tmp_path: Path) -> AsyncIterator[StoreRoom]:
    async with open_store_room(tmp_path / "host") as opened:
        yield opened


async def reason_of(room: StoreRoom, source: Source) -> MissReason | None:
    miss = await room.gate.check(source)
    return miss.reason if miss else None


def grow(client: GitClient, content: bytes = b"more\n") -> str:
    client.write("d0/f0", content)
    return client.commit()


def fsck(room: StoreRoom, source: Source) -> None:
    """Git itself finds nothing wrong, and every pin can be walked."""
    store = room.store(source)
    run_git(store, "fsck", "--full", "--strict")
    run_git(store, "rev-list", "--objects", "--all", "--quiet")


async def test_an_unrelated_branch_never_costs_a_miss(room: StoreRoom, client: GitClient) -> None:
    wanted = client.source()
    await room.upload(client)
    client.git("checkout", "-q", "-b", "other")
    grow(client)
    assert await room.gate.check(replace(wanted, digest="d" * 64)) is None


async def test_two_laptops_with_different_tips_never_thrash(
    room: StoreRoom, client: GitClient, tmp_path: Path
) -> None:
    await room.upload(client)
    other = GitClient(tmp_path / "second")
    other.git("fetch", "-q", str(client.path), "main")
    other.git("reset", "-q", "--hard", "FETCH_HEAD")
    base = client.head()
    grow(client, b"first laptop\n")
    other.write("g", b"second laptop\n")
    other.commit()
    await room.upload(client, having=[base])
    await room.upload(other, having=[base])
    for _ in range(3):
        assert await room.gate.check(client.source()) is None
        assert await room.gate.check(other.source()) is None
    fsck(room, client.source())


async def test_warm_answers_start_no_git_process(
    room: StoreRoom, client: GitClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = client.source()
    await room.upload(client)
    grow(client)
    await room.upload(client, having=[older.commit])
    stamp = await room.stores.stamp(older.key, older.commit)
    assert stamp is not None

    async def refuse(*arguments: str, **_: object) -> None:
        raise AssertionError(arguments)

    newest = client.source()
    monkeypatch.setattr(room.git, "run", refuse)
    assert await room.gate.check(older) is None
    assert await room.gate.check(newest) is None
    assert room.stores.verify(older.key, stamp) is None


async def test_commits_that_travel_with_the_request(room: StoreRoom, client: GitClient) -> None:
    base = client.head()
    await room.upload(client)
    grow(client)
    middle = client.head()
    grow(client, b"even more\n")
    source = client.source(changes=Changes("e" * 40, b"comes with the request"))
    pack = client.pack([source.commit], [base])
    assert await room.gate.check(replace(source, commits=Commits((base,), pack))) is None
    # The same end state as an upload: durable, recorded, and a base for the next ones.
    async with open_store_room(room.layout.host_root) as again:
        assert await again.gate.check(client.source()) is None
        assert await again.stores.knows(source.key, middle)
        assert (await again.stores.tips(source.key))[0] == source.commit
    grow(client, b"third\n")
    source = client.source()
    pack = client.pack([source.commit], [middle])  # no tip any more, but reachable
    assert await room.gate.check(replace(source, commits=Commits((middle,), pack))) is None
    fsck(room, source)


async def test_inline_commits_against_what_the_host_lacks(
    room: StoreRoom, client: GitClient
) -> None:
    base = client.head()
    await room.upload(client)
    unknown = grow(client)
    grow(client, b"even more\n")
    source = client.source()
    pack = client.pack([source.commit], [unknown])
    for against in ((unknown,), (base,), ()):  # honest, lying, empty
        miss = await room.gate.check(replace(source, commits=Commits(against, pack)))
        assert miss == Miss(MissReason.UNKNOWN_COMMIT, (source.commit,), (base,))
    with pytest.raises(PackInvalid):
        await room.gate.check(replace(source, commits=Commits((base,), b"no pack at all")))
    assert not os.listdir(room.layout.incoming)


async def test_a_first_sync_may_bring_its_only_commits_inline(
    room: StoreRoom, client: GitClient
) -> None:
    source = client.source()
    commits = Commits((), client.pack([source.commit]))
    assert await room.gate.check(replace(source, commits=commits)) is None


async def test_tags_travel_and_stay(room: StoreRoom, client: GitClient) -> None:
    client.git("tag", "light")
    client.git("tag", "-a", "-m", "one", "v1")
    tagged = client.head()
    tag = client.git("rev-parse", "v1").decode().strip()
    tips = (Tip("refs/tags/light", tagged), Tip("refs/tags/v1", tag))
    snapshot = await room.upload(client, tips=tips)
    assert snapshot.commits == (tagged,)
    source = client.source()
    grow(client)
    await room.upload(client, having=[tagged])  # without tags: they stay
    assert await room.stores.tags(source.key) == tips
    assert run_git(room.store(source), "cat-file", "-t", tag) == b"tag\n"
    # A tag is no commit that can be checked out, and no tip to be thin against.
    assert await reason_of(room, replace(source, commit=tag)) is MissReason.UNKNOWN_COMMIT
    assert tag not in await room.stores.tips(source.key)
    fsck(room, source)


async def test_nobody_learns_what_another_tenant_has(room: StoreRoom, client: GitClient) -> None:
    await room.upload(client)
    grow(client)
    known, unknown = client.git("rev-parse", "HEAD~").decode().strip(), client.head()
    for has_base in (False, True):
        answers: list[Miss | str] = []
        for commit in (known, unknown):
            theirs = replace(client.source(tenant="bob"), commit=commit)
            miss = await room.gate.check(theirs)
            assert miss is not None
            answers.append(replace(miss, wanted=()))
            with pytest.raises(SnapshotIncomplete) as caught:
                await room.importer.receive(theirs, (), chunked(b""))
            answers.append(caught.value.message.replace(commit, ""))
        assert answers[:2] == answers[2:], has_base
        own = GitClient(client.path.with_name(f"bob{has_base}"))
        own.write("mine", b"1")
        own.commit()
        await room.upload(own, own.source(tenant="bob"))


def let_settle(store: Path) -> None:
    """Make everything look as if it was written an hour ago, so that memory is trusted."""
    hour_ago = time.time() - 3600
    for path in (store, *store.rglob("*")):
        os.utime(path, (hour_ago, hour_ago))


def lose_pin(store: Path, tip: str) -> None:
    (store / "refs/fairlead/tips" / tip).unlink()


def change_pin(store: Path, tip: str) -> None:
    (store / "refs/fairlead/tips" / tip).write_text("0" * 40 + "\n")


def cut_pin(store: Path, tip: str) -> None:
    os.truncate(store / "refs/fairlead/tips" / tip, 0)


def lose_record(store: Path, tip: str) -> None:
    for path in (store / "snapshots").iterdir():
        path.unlink()


def cut_record(store: Path, tip: str) -> None:
    for path in (store / "snapshots").iterdir():
        os.truncate(path, path.stat().st_size // 2)


def lose_pack(store: Path, tip: str) -> None:
    for path in (store / "objects/pack").glob("*.pack"):
        path.unlink()


def cut_pack(store: Path, tip: str) -> None:
    for path in (store / "objects/pack").glob("*.pack"):
        path.chmod(0o644)
        os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lose_pin, MissReason.REF_DRIFT),
        (change_pin, MissReason.REF_DRIFT),
        (cut_pin, MissReason.REF_DRIFT),
        (lose_record, MissReason.SNAPSHOT_NOT_DURABLE),
        (cut_record, MissReason.SNAPSHOT_NOT_DURABLE),
        (lose_pack, MissReason.MISSING_OBJECTS),
        (cut_pack, MissReason.MISSING_OBJECTS),
    ],
)
async def test_a_damaged_base_is_noticed_at_take_and_healed_by_an_upload(
    room: StoreRoom, client: GitClient, damage: Callable[[Path, str], None], reason: MissReason
) -> None:
    await room.upload(client)
    source = client.source()
    let_settle(room.store(source))
    stamp = await room.stores.stamp(source.key, source.commit)
    assert stamp is not None
    assert room.stores.verify(source.key, stamp) is None
    damage(room.store(source), source.commit)
    assert room.stores.verify(source.key, stamp) is reason
    miss = await room.gate.distrust(source)
    assert miss == Miss(reason, (source.commit,), ())
    # The same end state as the warm path.
    await room.upload(client)
    assert await room.gate.check(source) is None
    fresh = await room.stores.stamp(source.key, source.commit)
    assert fresh is not None
    assert room.stores.verify(source.key, fresh) is None
    fsck(room, source)


@pytest.mark.parametrize("damage", [lose_pin, change_pin, lose_record, cut_record, lose_pack])
async def test_the_gate_alone_notices_it_too_after_a_restart(
    room: StoreRoom, client: GitClient, damage: Callable[[Path, str], None]
) -> None:
    await room.upload(client)
    source = client.source()
    damage(room.store(source), source.commit)
    async with open_store_room(room.layout.host_root) as again:
        assert await reason_of(again, source) is not None
        await again.upload(client)
        assert await again.gate.check(source) is None
        fsck(again, source)


async def test_a_base_that_was_rolled_back(
    room: StoreRoom, client: GitClient, tmp_path: Path
) -> None:
    await room.upload(client)
    base = client.source()
    backup = tmp_path / "backup"
    shutil.copytree(room.store(base), backup)
    grow(client)
    await room.upload(client, having=[base.commit])
    newer = client.source()
    stamp = await room.stores.stamp(newer.key, newer.commit)
    assert stamp is not None
    room.store(base).rename(tmp_path / "lost")
    backup.rename(room.store(base))
    assert room.stores.verify(newer.key, stamp) is MissReason.REF_DRIFT
    miss = await room.gate.check(newer)
    assert miss == Miss(MissReason.UNKNOWN_COMMIT, (newer.commit,), (base.commit,))
    assert await room.gate.check(base) is None
    await room.upload(client, having=list(miss.tips))
    assert room.stores.verify(newer.key, stamp) is None


async def test_a_vanished_store_has_no_base(room: StoreRoom, client: GitClient) -> None:
    await room.upload(client)
    source = client.source()
    stamp = await room.stores.stamp(source.key, source.commit)
    assert stamp is not None
    room.store(source).rename(room.layout.trash / "gone")
    assert room.stores.verify(source.key, stamp) is MissReason.MISSING_OBJECTS
    assert await room.gate.check(source) == Miss(MissReason.NO_BASE, (source.commit,), ())
    await room.upload(client)
    assert room.stores.verify(source.key, stamp) is None


async def test_a_lost_index_is_made_again_without_any_upload(
    room: StoreRoom, client: GitClient
) -> None:
    await room.upload(client)
    source = client.source()
    for path in (room.store(source) / "objects/pack").glob("*.idx"):
        path.unlink()
    assert await room.gate.check(source) is None
    fsck(room, source)


async def test_poison_in_a_store_is_taken_out(room: StoreRoom, client: GitClient) -> None:
    await room.upload(client)
    source, store = client.source(), room.store(client.source())
    run_git(store, "config", "core.hooksPath", "evil/hooks")
    run_git(store, "config", "extensions.partialClone", "origin")
    run_git(store, "config", "remote.origin.promisor", "true")
    (store / "objects/info/alternates").write_text("/somebody/elses/objects\n")
    (store / "shallow").write_text(f"{source.commit}\n")
    (store / "info").mkdir()
    (store / "info/grafts").write_text(f"{source.commit}\n")
    for pack in list((store / "objects/pack").glob("*.pack")):
        pack.with_suffix(".promisor").touch()
    for name in STALE:
        (store / name.format(tip=source.commit)).touch()
    (store / "objects/pack/tmp_pack_dead").write_bytes(b"cut")
    grow(client)
    await room.upload(client, having=[source.commit])
    assert "evil" not in (store / "config").read_text()
    assert "romisor" not in (store / "config").read_text()
    left = {path.name for path in store.rglob("*")}
    assert not left & {"alternates", "shallow", "grafts", "tmp_pack_dead", "packed-refs.lock"}
    assert not [name for name in left if name.endswith((".lock", ".promisor"))]
    assert await room.gate.check(client.source()) is None
    fsck(room, source)


async def test_an_upload_on_a_base_that_lost_its_objects_makes_it_whole_again(
    room: StoreRoom, client: GitClient
) -> None:
    await room.upload(client)
    base = client.source()
    lose_pack(room.store(base), base.commit)
    grow(client)
    # Thin against what is gone: refused, and the promise is taken back.
    with pytest.raises(SnapshotIncomplete):
        await room.upload(client, having=[base.commit])
    miss = await room.gate.check(client.source())
    assert miss == Miss(MissReason.NO_BASE, (client.head(),), ())
    await room.upload(client)
    assert await room.gate.check(client.source()) is None
    assert await room.gate.check(base) is None
    fsck(room, base)


async def test_a_lost_list_of_packs_is_made_again_after_a_look_at_all(
    room: StoreRoom, client: GitClient
) -> None:
    await room.upload(client)
    source = client.source()
    before = (room.store(source) / "packs").read_bytes()
    (room.store(source) / "packs").unlink()
    async with open_store_room(room.layout.host_root) as again:
        assert await again.gate.check(source) is None
        assert (room.store(source) / "packs").read_bytes() == before
        (room.store(source) / "packs").unlink()
        lose_pack(room.store(source), source.commit)
        assert await reason_of(again, source) is MissReason.MISSING_OBJECTS
