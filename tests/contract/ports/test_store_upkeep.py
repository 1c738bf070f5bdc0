"""Upkeep: packs are joined, old snapshots go, nothing goes that a live workspace may borrow; the
epoch moves on before anything is deleted; who waits too long is told so.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
import pytest_asyncio

from tests.fakes.checkouts import MemoryCare, MemoryLedger, MemoryTrees
from tests.fakes.clock import FakeClock
from tests.fakes.git_client import GitClient, run_git
from tests.fakes.provisioner_cases import room_with_commit
from tests.fakes.store_room import StoreRoom, open_store_room
from workspace_provisioner.sources import ObjectFormat, ProjectKey, Source, Tip
from workspace_provisioner.store import git_upkeep
from workspace_provisioner.store.files import read_epoch, read_pins
from workspace_provisioner.store.git_upkeep import to_join
from workspace_provisioner.store.writer import StoreWriter
from workspace_provisioner.store_errors import StoreLocked
from workspace_provisioner.upkeep import Upkeep
from workspace_provisioner.workspaces import MissReason, State

pytestmark = pytest.mark.asyncio


@pytest.fixture
def client(tmp_path: Path) -> GitClient:
    found = GitClient(tmp_path / "laptop")
    for number in range(5):
        found.write(f"f{number}", f"line {number}\n".encode() * 50)
    found.commit()
    return found


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest_asyncio.fixture
async def room(tmp_path: Path, clock: FakeClock) -> AsyncIterator[StoreRoom]:
    async with open_store_room(tmp_path / "host", clock=clock) as opened:
        yield opened


def packs(room: StoreRoom, source: Source) -> list[Path]:
    return sorted((room.store(source) / "objects/pack").glob("*.pack"))


def fsck(room: StoreRoom, source: Source) -> None:
    run_git(room.store(source), "fsck", "--full", "--strict")
    run_git(room.store(source), "rev-list", "--objects", "--all", "--quiet")


async def fill(room: StoreRoom, client: GitClient, count: int) -> None:
    await room.upload(client)
    for number in range(count - 1):
        base = client.head()
        client.write("f0", f"{number}\n".encode() * 20)
        client.commit()
        await room.upload(client, having=[base])


def side_branch(client: GitClient) -> Source:
    """Commit on a branch that no other reaches, and go back to main."""
    client.git("checkout", "-q", "-b", "side")
    client.write("side", os.urandom(2000))
    client.commit()
    source = client.source(branch="side")
    client.git("checkout", "-q", "main")
    return source


async def test_many_packs_are_joined(room: StoreRoom, client: GitClient) -> None:
    first = client.source()
    await fill(room, client, git_upkeep.MOST_PACKS)
    source = client.source()
    stamp = await room.stores.stamp(source.key, source.commit)
    assert stamp is not None
    assert len(packs(room, source)) == git_upkeep.MOST_PACKS
    await room.care.tend(source.key)
    assert len(packs(room, source)) <= git_upkeep.MOST_PACKS // 2
    # The stamp is void; the store was right all the time, and its stamps are made again.
    assert room.voided == [source.key]
    assert room.stores.verify(source.key, stamp) is MissReason.MISSING_OBJECTS
    assert await room.gate.distrust(source) is None
    again = await room.stores.stamp(source.key, source.commit)
    assert again is not None
    assert room.stores.verify(source.key, again) is None
    assert await room.gate.check(first) is None
    fsck(room, source)
    await room.care.tend(source.key)
    assert room.voided == [source.key]


async def test_the_largest_packs_are_left_alone() -> None:
    sizes = {f"p{number}": 10 for number in range(30)} | {"big": 10**6, "index only": -1}
    assert set(to_join(sizes)) == {f"p{number}" for number in range(30)}
    assert to_join({f"p{number}": 10 for number in range(24)}) == []


async def test_the_epoch_moves_on_before_a_pack_goes(
    room: StoreRoom, client: GitClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The window of a take, between its look at the stamp and its rename: whoever looks again
    after the rename sees the new epoch while the old packs are still there.
    """
    await fill(room, client, git_upkeep.MOST_PACKS)
    source = client.source()
    stamp = await room.stores.stamp(source.key, source.commit)
    assert stamp is not None
    seen = []
    drop = StoreWriter.drop

    def looking(self: StoreWriter, paths: list[Path]) -> None:
        present = [path for path in paths if path.suffix == ".idx" and path.exists()]
        if present:
            seen.append(room.stores.verify(source.key, stamp))
        drop(self, paths)

    monkeypatch.setattr(StoreWriter, "drop", looking)
    await room.care.tend(source.key)
    assert seen == [MissReason.MISSING_OBJECTS]


@pytest.mark.parametrize("step", ["move_packs", "bump_epoch", "packs", "drop"])
async def test_killed_while_packs_are_joined(
    room: StoreRoom,
    client: GitClient,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    await fill(room, client, git_upkeep.MOST_PACKS)
    source = client.source()

    class Killed(BaseException):
        """The process ends here."""

    done = getattr(StoreWriter, step)

    def killed(self: StoreWriter, *arguments: object) -> None:
        done(self, *arguments)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(StoreWriter, step, killed)
        with pytest.raises(Killed):
            await room.care.tend(source.key)
    async with open_store_room(room.layout.host_root, clock=clock) as again:
        assert await again.gate.check(source) is None
        await again.care.tend(source.key)
        assert await again.gate.check(source) is None
        assert len(packs(again, source)) <= git_upkeep.MOST_PACKS
        assert not list(again.store(source).glob("draft-*"))
        fsck(again, source)


async def test_old_snapshots_go_and_the_newest_stays(
    room: StoreRoom, client: GitClient, clock: FakeClock
) -> None:
    side = side_branch(client)
    await room.upload(client, side)
    await room.upload(client)
    main = client.source()
    clock.advance(git_upkeep.KEPT_FOR.total_seconds() + 1)
    client.write("f1", b"new\n")
    client.commit()
    await room.upload(client, having=[main.commit])
    await room.care.tend(main.key)
    assert len(await room.stores.snapshots()) == 1
    assert await room.gate.check(client.source()) is None
    assert await room.gate.check(main) is None  # still reachable
    miss = await room.gate.check(side)
    assert miss is not None
    assert miss.reason is MissReason.UNKNOWN_COMMIT
    # What is taken back is not gone: a workspace may borrow it.
    assert run_git(room.store(side), "cat-file", "-t", side.commit) == b"commit\n"


async def test_snapshots_do_not_grow_without_limit(
    room: StoreRoom,
    client: GitClient,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(git_upkeep, "MOST_SNAPSHOTS", 6)
    monkeypatch.setattr(git_upkeep, "KEPT_SNAPSHOTS", 3)
    for number in range(7):
        clock.advance(60)
        client.write("f0", f"{number}\n".encode())
        client.commit()
        await room.upload(client)
    source = client.source()
    await room.care.tend(source.key)
    assert len(await room.stores.snapshots()) == 3
    pins = read_pins(room.store(source))
    assert sum(name.startswith("refs/fairlead/tips/") for name in pins) == 3
    clock.advance(7200)
    await room.care.prune(source.key, live_since=None)
    assert len(read_pins(room.store(source))) == 3
    assert await room.gate.check(source) is None
    fsck(room, source)


async def test_nothing_goes_that_a_live_workspace_may_borrow(
    room: StoreRoom, client: GitClient, clock: FakeClock
) -> None:
    side = side_branch(client)
    await room.upload(client, side)
    made = clock.now()
    clock.advance(git_upkeep.KEPT_FOR.total_seconds() + 1)
    await room.upload(client)
    await room.care.tend(side.key)
    clock.advance(2 * git_upkeep.GRACE.total_seconds())
    await room.care.prune(side.key, live_since=made)
    assert run_git(room.store(side), "cat-file", "-t", side.commit) == b"commit\n"
    stamp = await room.stores.stamp(side.key, client.head())
    assert stamp is not None
    # The workspace is given back.
    await room.care.prune(side.key, live_since=None)
    assert room.stores.verify(side.key, stamp) is MissReason.MISSING_OBJECTS
    missing = run_git(room.store(side), "cat-file", "--batch-check", given=side.commit.encode())
    assert missing.endswith(b"missing\n")
    assert await room.gate.check(client.source()) is None
    fsck(room, side)
    # And comes back by an upload.
    await room.upload(client, side)
    assert await room.gate.check(side) is None


async def test_a_build_that_runs_is_given_an_hour(
    room: StoreRoom, client: GitClient, clock: FakeClock
) -> None:
    side = side_branch(client)
    await room.upload(client, side)
    clock.advance(git_upkeep.KEPT_FOR.total_seconds() + 1)
    await room.upload(client)
    await room.care.tend(side.key)
    await room.care.prune(side.key, live_since=None)
    assert run_git(room.store(side), "cat-file", "-t", side.commit) == b"commit\n"


async def test_tags_are_never_pruned(room: StoreRoom, client: GitClient, clock: FakeClock) -> None:
    side = side_branch(client)
    client.git("tag", "-a", "-m", "one", "v1", side.commit)
    client.git("tag", "light", side.commit)
    tag = client.git("rev-parse", "v1").decode().strip()
    await room.upload(
        client, side, tips=(Tip("refs/tags/v1", tag), Tip("refs/tags/light", side.commit))
    )
    clock.advance(git_upkeep.KEPT_FOR.total_seconds() + 1)
    await room.upload(client)
    await room.care.tend(side.key)
    clock.advance(2 * git_upkeep.GRACE.total_seconds())
    await room.care.prune(side.key, live_since=None)
    for oid in (tag, side.commit):
        run_git(room.store(side), "rev-list", "--objects", "--quiet", oid)
    assert [tip.ref for tip in await room.stores.tags(side.key)] == [
        "refs/tags/light",
        "refs/tags/v1",
    ]


async def test_a_forgotten_store_keeps_its_objects_while_workspaces_live(
    room: StoreRoom, client: GitClient, clock: FakeClock
) -> None:
    await room.upload(client)
    source = client.source()
    epoch = read_epoch(room.store(source))
    await room.care._repair.forget(source.key)
    assert read_epoch(room.store(source)) > epoch
    made = clock.now() - timedelta(minutes=1)
    clock.advance(2 * git_upkeep.GRACE.total_seconds())
    await room.care.tend(source.key)
    await room.care.prune(source.key, live_since=made)
    run_git(room.store(source), "rev-list", "--objects", "--quiet", source.commit)
    assert await room.gate.check(source) is not None
    await room.upload(client)
    assert await room.gate.check(source) is None


async def test_a_store_of_no_use_for_long_is_deleted(
    room: StoreRoom, client: GitClient, clock: FakeClock
) -> None:
    await room.upload(client)
    source = client.source()
    assert await room.gate.check(source) is None  # marks the use
    clock.advance(git_upkeep.UNUSED_FOR.total_seconds() - 60)
    assert await room.care.keys() == [source.key]
    await room.care.prune(source.key, live_since=None)
    assert room.store(source).is_dir()
    clock.advance(120)
    await room.care.prune(source.key, live_since=clock.now())
    assert room.store(source).is_dir()
    await room.care.prune(source.key, live_since=None)
    assert not room.store(source).exists()
    assert await room.care.keys() == []
    miss = await room.gate.check(source)
    assert miss is not None
    assert miss.reason is MissReason.NO_BASE


async def test_who_waits_too_long_for_a_store_is_told_so(tmp_path: Path, client: GitClient) -> None:
    async with open_store_room(tmp_path / "host", patience_seconds=0.05) as room:
        await room.upload(client)
        source = client.source()
        client.write("f0", b"more\n")
        client.commit()
        entered, ended = asyncio.Event(), asyncio.Event()

        async def long_upkeep() -> None:
            async with room.care._states.alone(source.key):
                entered.set()
                await ended.wait()

        upkeep = asyncio.create_task(long_upkeep())
        await entered.wait()
        with pytest.raises(StoreLocked) as caught:
            await room.upload(client, having=[source.commit])
        assert caught.value.reason == "base_locked"
        assert await room.gate.check(source) is None  # warm launches do not wait
        ended.set()
        await upkeep
        await room.upload(client, having=[source.commit])
        assert await room.gate.check(client.source()) is None


async def test_another_process_at_the_same_store_is_waited_for(
    tmp_path: Path, client: GitClient
) -> None:
    async with (
        open_store_room(tmp_path / "host") as room,
        open_store_room(tmp_path / "host", patience_seconds=0.05) as other,
    ):
        await room.upload(client)
        source = client.source()
        assert await other.gate.check(source) is None
        async with room.care._states.alone(source.key):
            with pytest.raises(StoreLocked):
                await other.care.tend(source.key)
        # What one changes the other sees at once.
        await room.care._repair.forget(source.key)
        assert await other.gate.check(source) is not None
        await other.upload(client)
        assert await room.gate.check(source) is None


async def test_upkeep_knows_the_oldest_workspace_of_each_tenant() -> None:
    ada, bob = (ProjectKey(tenant, "p", ObjectFormat.SHA1) for tenant in ("ada", "bob"))
    room = await room_with_commit()
    made = await room.make()
    ledger, trees, care = MemoryLedger(), MemoryTrees(), MemoryCare(ada, bob)
    await ledger.put(made)
    trees.placed = {made.workspace_id}
    upkeep = Upkeep(care=care, ledger=ledger, trees=trees)
    await upkeep.tend()
    assert care.asked == [
        ("tend", ada, None),
        ("prune", ada, made.created_at),
        ("tend", bob, None),
        ("prune", bob, None),
    ]
    # While a workspace is there that no record names, nothing is deleted.
    trees.placed.add("wsp_unknown")
    care.asked.clear()
    await upkeep.tend()
    assert [verb for verb, *_ in care.asked] == ["tend", "tend"]
    assert made.state is State.PROVISIONED
