"""The use cases of names, forks, renames, shares and checked releases, over fakes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.fakes.provisioner_cases import COMMIT, LEASE, Room, room_with_commit, source
from workspace_provisioner.errors import (
    HostFull,
    IdempotencyConflict,
    WorkspaceNotFound,
    WorkspaceReleased,
)
from workspace_provisioner.sources import Upstream
from workspace_provisioner.workspace_errors import (
    BranchInUse,
    ForkFailed,
    QuotaExceeded,
    WorkspaceDirty,
    WorkspaceExists,
)
from workspace_provisioner.workspaces import Freshness, Rung, State, Workspace

pytestmark = pytest.mark.asyncio


async def make(room: Room, key: str = "k", name: str = "", branch: str = "") -> Workspace:
    made = await room.ask(source(), key, branch, name, claims_branch=bool(branch))
    assert isinstance(made, Workspace)
    return made


async def fork(
    room: Room, made: Workspace, key: str = "f", name: str = "", branch: str = ""
) -> Workspace:
    return await room.provisioner.fork(
        made.tenant,
        made.workspace_id,
        idempotency_key=key,
        name=name,
        branch=branch,
        lease=LEASE,
        overlay=False,
    )


async def test_a_key_for_another_name_is_a_conflict() -> None:
    room = await room_with_commit()
    await make(room, "k", "one", "b")
    for name, branch in (("two", "b"), ("one", "c"), ("one", "")):
        with pytest.raises(IdempotencyConflict):
            await make(room, "k", name, branch)
    assert (await make(room, "k", "one", "b")).name == "one"


async def test_a_build_that_fails_gives_its_claims_up() -> None:
    room = await room_with_commit()
    room.trees.free = 999
    with pytest.raises(HostFull):
        await make(room, "k", "one", "b")
    assert not room.claims.taken
    room.trees.free = 2**40
    room.trees.gate.clear()
    call = asyncio.create_task(make(room, "k", "one", "b"))
    await room.trees.begun.wait()
    assert len(room.claims.taken) == 2
    with pytest.raises(WorkspaceExists):
        await make(room, "other", "one")
    await room.provisioner.release("ada", idempotency_key="k")
    with pytest.raises(WorkspaceReleased):
        await call
    assert not room.claims.taken


async def test_an_ended_lease_gives_the_claims_up() -> None:
    room = await room_with_commit()
    await make(room, "k", "one", "b")
    room.clock.advance(LEASE.total_seconds())
    await room.provisioner.expire()
    assert not room.claims.taken
    assert not room.trees.placed


async def test_a_fork_is_built_like_a_workspace() -> None:
    room = await room_with_commit()
    made = await make(room, "k", "one", "b")
    room.trees.gate.clear()
    room.trees.begun.clear()
    calls = [asyncio.create_task(fork(room, made, name="two", branch="c")) for _ in range(5)]
    await room.trees.begun.wait()
    copy_id = room.provisioner.workspace_id("ada", "f")
    assert (await room.provisioner.get("ada", copy_id)).state is State.REQUESTED
    room.trees.gate.set()
    copies = await asyncio.gather(*calls)
    assert len(set(copies)) == 1
    assert room.copies.made == [(made.workspace_id, copy_id, False)]
    assert copies[0].rung is Rung.FORK
    assert (copies[0].commit, copies[0].name, copies[0].branch) == (COMMIT, "two", "c")
    with pytest.raises(IdempotencyConflict):
        await fork(room, made, name="three", branch="c")
    with pytest.raises(IdempotencyConflict):
        await make(room, "f")
    with pytest.raises(IdempotencyConflict):
        await fork(room, made, key="k")


async def test_a_fork_that_fails_leaves_nothing() -> None:
    room = await room_with_commit()
    made = await make(room, "k", "one", "b")
    room.copies.failure = ForkFailed("of a test")
    with pytest.raises(ForkFailed):
        await fork(room, made, name="two", branch="c")
    assert room.trees.placed == {made.workspace_id}
    assert len(room.claims.taken) == 2
    room.copies.failure = None
    with pytest.raises(BranchInUse):
        await fork(room, made, name="two", branch="b")
    assert len(room.claims.taken) == 2
    assert (await fork(room, made, name="two", branch="c")).name == "two"


async def test_a_source_that_is_released_meanwhile_has_no_copy() -> None:
    room = await room_with_commit()
    made = await make(room)
    room.trees.gate.clear()
    room.trees.begun.clear()
    call = asyncio.create_task(fork(room, made, name="two"))
    await room.trees.begun.wait()
    await room.provisioner.release("ada", workspace_id=made.workspace_id)
    room.trees.gate.set()
    with pytest.raises(WorkspaceNotFound):
        await call
    assert not room.trees.placed
    assert not room.claims.taken
    with pytest.raises(WorkspaceNotFound):
        await fork(room, made)


async def test_a_tenant_holds_its_share_and_no_more() -> None:
    room = await room_with_commit()
    room = Room(capacity=4, tenant_capacity=2)
    await room.upload(source())
    await room.upload(source(tenant="bob"))
    made = await make(room, "1")
    await make(room, "2")
    with pytest.raises(QuotaExceeded):
        await make(room, "3")
    with pytest.raises(QuotaExceeded):
        await fork(room, made)
    assert (await make(room, "1")) == made
    await room.make("1", tenant="bob")
    await room.provisioner.release("ada", workspace_id=made.workspace_id)
    await make(room, "3")


async def test_a_checked_release_that_is_refused_changes_nothing() -> None:
    room = await room_with_commit()
    made = await make(room, "k", "one", "b")
    room.unsaved.found = WorkspaceDirty(made.workspace_id)
    with pytest.raises(WorkspaceDirty):
        await room.provisioner.release("ada", workspace_id=made.workspace_id, checked=True)
    assert (await room.provisioner.get("ada", made.workspace_id)) == made
    assert room.trees.placed
    assert len(room.claims.taken) == 2
    assert await room.provisioner.release("ada", workspace_id=made.workspace_id)
    assert not room.trees.placed | set(room.claims.taken.values())
    assert not await room.provisioner.release("ada", workspace_id=made.workspace_id, checked=True)


async def test_a_rename_of_what_is_not_there() -> None:
    room = await room_with_commit()
    made = await make(room, "k", "one")
    with pytest.raises(WorkspaceNotFound):
        await room.provisioner.rename("bob", made.workspace_id, "two")
    for unknown in ("wsp_" + "a" * 26, "", "../x"):
        with pytest.raises(WorkspaceNotFound):
            await room.provisioner.rename("ada", unknown, "two")
    await room.provisioner.release("ada", workspace_id=made.workspace_id)
    with pytest.raises(WorkspaceNotFound):
        await room.provisioner.rename("ada", made.workspace_id, "two")


async def test_how_the_upstreams_tip_was_found_is_in_the_record() -> None:
    room = await room_with_commit()
    wanted = replace(
        source(), upstream=Upstream("https://example.com/x", "main", timedelta(seconds=30))
    )
    made = await room.ask(wanted)
    assert isinstance(made, Workspace)
    assert made.freshness == Freshness("main", None, fallback=True, reason="origin_denied")
    # The same request again is the same workspace, and one without the upstream is not.
    assert await room.ask(wanted) == made
    with pytest.raises(IdempotencyConflict):
        await room.ask(source())
