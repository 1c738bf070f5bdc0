"""The use cases over fakes: gate, one build for each key, releases that win, leases."""

from __future__ import annotations

import asyncio

import pytest

from tests.fakes.provisioner_cases import COMMIT, LEASE, TREE, Room, room_with_commit, source
from workspace_provisioner import leases
from workspace_provisioner.errors import (
    CheckoutFailed,
    HostFull,
    IdempotencyConflict,
    ProvisionerStopping,
    WorkspaceNotFound,
    WorkspaceReleased,
)
from workspace_provisioner.sources import Changes
from workspace_provisioner.workspaces import Miss, MissReason, State, Workspace

pytestmark = pytest.mark.asyncio


async def test_misses_say_why_and_what_is_there() -> None:
    room = Room()
    assert await room.ask(source()) == Miss(MissReason.NO_BASE, (COMMIT,))
    bare = source(changes=Changes(TREE, b""))
    assert await room.ask(bare) == Miss(MissReason.NO_BASE, (COMMIT, TREE))
    await room.upload(source())
    tips = (COMMIT, "d" * 40)
    missed = await room.ask(source(commit="e" * 40))
    assert missed == Miss(MissReason.UNKNOWN_COMMIT, ("e" * 40,), tips)
    assert await room.ask(bare) == Miss(MissReason.UNKNOWN_CHANGES, (TREE,), tips)
    await room.upload(bare)
    assert isinstance(await room.ask(bare), Workspace)


async def test_another_tenant_gets_nothing() -> None:
    room = await room_with_commit()
    assert await room.ask(source(tenant="bob")) == Miss(MissReason.NO_BASE, (COMMIT,))
    made = await room.make()
    with pytest.raises(WorkspaceNotFound):
        await room.provisioner.get("bob", made.workspace_id)
    with pytest.raises(WorkspaceNotFound):
        await room.provisioner.renew("bob", made.workspace_id, LEASE)
    assert not await room.provisioner.release("bob", workspace_id=made.workspace_id)
    assert made.workspace_id in room.trees.placed


async def test_missing_objects_take_the_promise_back() -> None:
    room = await room_with_commit()
    room.trees.lacking = True
    room.stores.damaged.add(source().key)
    assert await room.ask(source()) == Miss(MissReason.MISSING_OBJECTS, (COMMIT,))
    room.trees.lacking = False
    assert await room.ask(source()) == Miss(MissReason.NO_BASE, (COMMIT,))
    await room.upload(source())
    await room.make()


async def test_incomplete_changes_are_not_the_stores_fault() -> None:
    room = await room_with_commit()
    room.trees.lacking = True
    missed = await room.ask(source(changes=Changes(TREE, b"PACK")))
    assert isinstance(missed, Miss)
    assert missed.reason is MissReason.UNKNOWN_CHANGES
    assert missed.wanted == (TREE,)
    with pytest.raises(CheckoutFailed):
        await room.ask(source())
    assert not room.ledger.records


async def test_one_build_for_twenty_calls() -> None:
    room = await room_with_commit()
    room.trees.gate.clear()
    calls = [asyncio.create_task(room.make()) for _ in range(20)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    room.trees.gate.set()
    made = await asyncio.gather(*calls)
    assert len({each.workspace_id for each in made}) == 1
    assert len(room.trees.builds) == 1
    assert (await room.make()) == made[0]


async def test_key_for_something_else() -> None:
    room = await room_with_commit()
    await room.make()
    with pytest.raises(IdempotencyConflict):
        await room.ask(source(), branch="other")
    with pytest.raises(IdempotencyConflict):
        await room.ask(source(commit="d" * 40))


async def test_release_while_it_is_made_wins() -> None:
    room = await room_with_commit()
    room.trees.gate.clear()
    call = asyncio.create_task(room.make())
    await room.trees.begun.wait()
    workspace_id = room.provisioner.workspace_id("ada", "k")
    assert (await room.provisioner.get("ada", workspace_id)).state is State.REQUESTED
    assert not await room.provisioner.release("bob", workspace_id=workspace_id)
    assert await room.provisioner.release("ada", idempotency_key="k")
    with pytest.raises(WorkspaceReleased):
        await call
    assert not room.trees.placed
    with pytest.raises(WorkspaceReleased):
        await room.make()
    assert not await room.provisioner.release("ada", idempotency_key="k")


async def test_release_before_the_build_has_begun() -> None:
    room = await room_with_commit()
    call = asyncio.create_task(room.make())
    await asyncio.sleep(0)
    assert await room.provisioner.release("ada", idempotency_key="k")
    with pytest.raises(WorkspaceReleased):
        await call


async def test_nothing_is_made_between_the_end_of_a_build_and_its_release() -> None:
    room = await room_with_commit()
    room.trees.gate.clear()

    async def insist() -> int:
        refusals = 0
        while refusals < 5:
            try:
                await room.make()
            except WorkspaceReleased:
                refusals += 1
        return refusals

    call = asyncio.create_task(insist())
    await room.trees.begun.wait()
    assert await room.provisioner.release("ada", idempotency_key="k")
    room.trees.gate.set()
    assert await call == 5
    assert len(room.trees.builds) == 1
    assert not room.trees.placed


async def test_a_release_that_is_cancelled_leaves_no_build_behind() -> None:
    room = await room_with_commit()
    room.trees.gate.clear()
    call = asyncio.create_task(room.make())
    await room.trees.begun.wait()
    release = asyncio.create_task(room.provisioner.release("ada", idempotency_key="k"))
    await asyncio.sleep(0)
    release.cancel()
    with pytest.raises(WorkspaceReleased):
        await call
    await asyncio.wait({release})
    assert room.provisioner.held() == 0
    assert not room.trees.placed


async def test_a_key_for_something_else_while_it_is_made() -> None:
    room = await room_with_commit()
    room.trees.gate.clear()
    call = asyncio.create_task(room.make())
    await room.trees.begun.wait()
    with pytest.raises(IdempotencyConflict):
        await room.ask(source(commit="e" * 40))
    room.trees.gate.set()
    assert (await call).commit == COMMIT


async def test_of_very_many_tombstones_the_newest_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "MOST_TOMBSTONES", 2)
    room = await room_with_commit()
    for key in "cab":
        room.clock.advance(1)
        await room.provisioner.release("ada", idempotency_key=key)
    kept = await room.make("kept")
    await room.provisioner.expire()
    newest = {room.provisioner.workspace_id("ada", key) for key in "ab"}
    assert set(room.ledger.records) == {*newest, kept.workspace_id}


async def test_release_of_a_key_that_was_never_seen_stays() -> None:
    room = await room_with_commit()
    assert not await room.provisioner.release("ada", idempotency_key="k")
    with pytest.raises(WorkspaceReleased):
        await room.make()
    with pytest.raises(WorkspaceNotFound):
        await room.provisioner.get("ada", room.provisioner.workspace_id("ada", "k"))
    assert not await room.provisioner.release("ada", workspace_id="wsp_" + "a" * 26)


async def test_a_caller_that_leaves_does_not_stop_the_build() -> None:
    room = await room_with_commit()
    room.trees.gate.clear()
    call = asyncio.create_task(room.make())
    await room.trees.begun.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    room.trees.gate.set()
    await room.make()
    assert len(room.trees.builds) == 1


async def test_close_stops_builds_and_leaves_nothing() -> None:
    room = await room_with_commit()
    room.trees.gate.clear()
    call = asyncio.create_task(room.make())
    await room.trees.begun.wait()
    await room.provisioner.close()
    with pytest.raises(ProvisionerStopping):
        await call
    with pytest.raises(ProvisionerStopping):
        await room.make("other")
    assert not room.trees.placed
    assert not room.ledger.records


async def test_leases_end_and_tombstones_fade() -> None:
    room = await room_with_commit()
    kept, ended = await room.make("kept"), await room.make("ended")
    room.clock.advance(20 * 60)
    renewed = await room.provisioner.renew("ada", kept.workspace_id, LEASE)
    assert renewed.expires_at == room.clock.now() + LEASE
    room.clock.advance(15 * 60)
    await room.provisioner.expire()
    assert room.trees.placed == {kept.workspace_id}
    assert (await room.provisioner.get("ada", ended.workspace_id)).state is State.RELEASED
    with pytest.raises(WorkspaceNotFound):
        await room.provisioner.renew("ada", ended.workspace_id, LEASE)
    with pytest.raises(WorkspaceReleased):
        await room.make("ended")
    room.clock.advance(24 * 3600)
    await room.provisioner.expire()
    assert ended.workspace_id not in room.ledger.records


async def test_what_is_released_beside_an_expiry_stays_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    room = await room_with_commit()
    keys = {(await room.make(key)).workspace_id: key for key in ("a", "b")}
    first, second = sorted(keys)
    room.clock.advance(31 * 60)
    discard = room.trees.discard

    async def beside(workspace_id: str) -> None:
        if workspace_id == first:
            assert await room.provisioner.release("ada", workspace_id=second)
        await discard(workspace_id)

    monkeypatch.setattr(room.trees, "discard", beside)
    await room.provisioner.expire()
    assert not room.trees.placed
    for key in keys.values():
        with pytest.raises(WorkspaceReleased):
            await room.make(key)


async def test_host_takes_no_more_than_it_may() -> None:
    room = await room_with_commit(capacity=2)
    first = await room.make("1")
    await room.make("2")
    with pytest.raises(HostFull):
        await room.make("3")
    await room.provisioner.release("ada", workspace_id=first.workspace_id)
    room.trees.free = 999
    with pytest.raises(HostFull):
        await room.make("3")
    with pytest.raises(HostFull):
        await room.upload(source())
    assert room.provisioner.held() == 1


async def test_pages() -> None:
    room = await room_with_commit()
    made = sorted([(await room.make(str(each))).workspace_id for each in range(5)])
    await room.upload(source(tenant="bob"))
    other = await room.make("x", tenant="bob")
    seen: list[str] = []
    token = ""
    while True:
        page, token = await room.provisioner.list("ada", size=2, after=token)
        seen += [each.workspace_id for each in page]
        if not token:
            break
    assert seen == made
    everyone, token = await room.provisioner.list("", size=6, after="")
    assert [each.workspace_id for each in everyone] == sorted([*made, other.workspace_id])
    assert token == ""


async def test_reconcile_keeps_only_what_is_whole() -> None:
    room = await room_with_commit()
    kept, lost = await room.make("kept"), await room.make("lost")
    room.trees.placed.remove(lost.workspace_id)
    room.trees.placed.add("wsp_" + "c" * 26)
    await room.provisioner.reconcile()
    assert room.trees.placed == {kept.workspace_id}
    assert set(room.ledger.records) == {kept.workspace_id}
    assert (await room.make("lost")).workspace_id == lost.workspace_id


async def test_upload_without_directory_is_only_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    room = Room()
    snapshot = await room.upload(source())
    assert snapshot.received_bytes == 5
    assert room.directory.asked == 1
    assert [each.message for each in caplog.records] == ["snapshot not in the directory"]
    assert (await room.upload(source())).snapshot_id == snapshot.snapshot_id
    await room.importer.republish()
    assert room.directory.asked == 3
