"""Uploads that answer a workspace's miss, and those that bring a history after the tips."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chassis.errors import AlreadyExists, InvalidArgument
from signalling.launch_errors import UploadTokenInvalid
from signalling.snapshot import Changes, Commits, Miss, Tip
from signalling.workspace import Imported, OpenMiss, Workspace
from tests.fakes.clock import FakeClock
from tests.fakes.workspace_room import COMMIT, SOURCE, TENANT, WorkspaceRoom, chunks, order

pytestmark = pytest.mark.asyncio
TIPS = (Tip("refs/heads/main", COMMIT),)


@pytest.fixture
def room() -> WorkspaceRoom:
    return WorkspaceRoom()


async def missed(room: WorkspaceRoom, key: str = "one", **fields: object) -> OpenMiss:
    outcome = await room.keeper.materialize(TENANT, order(key, **fields))
    assert isinstance(outcome, OpenMiss), outcome
    return outcome


async def upload(room: WorkspaceRoom, token: str, *, tips_only: bool = False) -> Imported:
    return await room.uploads.accept(TENANT, token, TIPS, chunks(b"PACK"), tips_only=tips_only)


async def test_the_upload_answers_with_the_workspace(room: WorkspaceRoom) -> None:
    miss = await missed(room, name="fix")
    imported = await upload(room, miss.upload_token)
    assert imported.snapshot.received_bytes == 4
    assert isinstance(imported.made, Workspace)
    assert imported.made.name == "fix"
    assert await room.make(name="fix") == imported.made
    assert await room.keeper.get(TENANT, imported.made.workspace_id) == imported.made


async def test_a_host_that_only_imports_is_asked_again_with_the_same_key(
    room: WorkspaceRoom,
) -> None:
    room.workspaces.carries_on = False
    imported = await upload(room, (await missed(room)).upload_token)
    assert imported.made is None
    assert (await room.make()).commit == COMMIT


async def test_a_token_takes_one_upload(room: WorkspaceRoom) -> None:
    miss = await missed(room)
    await upload(room, miss.upload_token)
    with pytest.raises(UploadTokenInvalid):
        await upload(room, miss.upload_token)


async def test_a_token_is_its_tenants_alone(room: WorkspaceRoom) -> None:
    miss = await missed(room)
    with pytest.raises(UploadTokenInvalid):
        await room.uploads.accept("other", miss.upload_token, (), chunks(b"PACK"))
    await upload(room, miss.upload_token)


async def test_a_failed_upload_leaves_the_token_good(room: WorkspaceRoom) -> None:
    miss = await missed(room)
    room.faults.refuse(
        "workspaces.import:after", InvalidArgument("No.", reason="pack_invalid"), once=True
    )
    with pytest.raises(InvalidArgument, match="No"):
        await upload(room, miss.upload_token)
    assert isinstance((await upload(room, miss.upload_token)).made, Workspace)


async def test_a_token_ends_with_its_time(room: WorkspaceRoom) -> None:
    clock = room.clock
    assert isinstance(clock, FakeClock)
    miss = await missed(room)
    clock.advance(121)
    with pytest.raises(UploadTokenInvalid):
        await upload(room, miss.upload_token)


async def test_what_the_host_refuses_the_workspace_for_is_the_uploads_answer(
    room: WorkspaceRoom,
) -> None:
    room.workspaces.known.add("d" * 40)
    await room.make("first", source=replace(SOURCE, commit="d" * 40), name="fix")
    miss = await missed(room, name="fix")
    with pytest.raises(AlreadyExists) as refused:
        await upload(room, miss.upload_token)
    assert refused.value.reason == "workspace_exists"
    assert COMMIT in room.workspaces.known


async def test_after_the_tips_the_token_takes_their_history(room: WorkspaceRoom) -> None:
    miss = await missed(room)
    first = await upload(room, miss.upload_token, tips_only=True)
    assert isinstance(first.made, Workspace)
    room.faults.refuse(
        "workspaces.import:after", InvalidArgument("No.", reason="pack_invalid"), once=True
    )
    with pytest.raises(InvalidArgument):
        await upload(room, miss.upload_token)
    assert (await upload(room, miss.upload_token)).made is None
    assert room.workspaces.imports == [(True, True), (False, False)]
    with pytest.raises(UploadTokenInvalid):
        await upload(room, miss.upload_token)


async def test_only_the_newest_misses_of_a_tenant_are_kept(room: WorkspaceRoom) -> None:
    oldest = await missed(room, "oldest")
    others = [await missed(room, str(number)) for number in range(64)]
    with pytest.raises(UploadTokenInvalid):
        await upload(room, oldest.upload_token)
    await upload(room, others[0].upload_token)


async def test_what_rode_along_and_missed_does_not_ride_again(room: WorkspaceRoom) -> None:
    changes = Changes("e" * 40, b"CHANGES")
    source = replace(SOURCE, commits=Commits(("d" * 40,), b"COMMITS"), changes=changes)
    miss = await missed(room, source=source)
    imported = await upload(room, miss.upload_token)
    assert isinstance(imported.made, Workspace)
    made = room.workspaces.orders[imported.made.workspace_id]
    assert getattr(made, "source", None) == replace(source, commits=None)


async def test_a_pack_without_a_miss_is_imported_and_carries_on(room: WorkspaceRoom) -> None:
    imported = await room.keeper.import_snapshot(
        TENANT, SOURCE, TIPS, chunks(b"PACK"), tips_only=False, order=order(name="fix")
    )
    assert isinstance(imported.made, Workspace)
    assert await room.make(name="fix") == imported.made
    again = await room.keeper.import_snapshot(
        TENANT, SOURCE, TIPS, chunks(b"PACK"), tips_only=False, order=None
    )
    assert not isinstance(again.made, Workspace | Miss)
