"""A miss, its token and the windows around an upload."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from chassis.errors import InvalidArgument
from signalling.launch import LaunchState, SnapshotMissed
from signalling.launch_errors import UploadTokenInvalid, UploadUnderWay
from signalling.snapshot import Tip
from signalling.uploads import UploadStalled
from tests.fakes.launch_room import COMMIT, TENANT, Room, World, echo, failure, request, told
from tests.fakes.virtual_time import run, settle


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def stalled() -> AsyncIterator[bytes]:
    yield b"PACK"
    await asyncio.Event().wait()


async def missed(room: Room, **changes: object) -> tuple[str, SnapshotMissed]:
    launch = await room.launcher.start(TENANT, request(**changes), None)
    return launch.launch_id, told(await room.until(launch.launch_id, "miss"), SnapshotMissed)


def empty_world() -> World:
    world = World()
    world.workspaces.known.clear()
    world.worker.script = echo(b"x")
    return world


def test_the_launch_goes_on_after_the_upload() -> None:
    async def scenario() -> None:
        world = empty_world()
        async with world.room() as room:
            launch_id, miss = await missed(room)
            assert miss.wanted == (COMMIT,)
            assert miss.expires_at == world.clock.now() + timedelta(seconds=120)
            imported = await room.uploads.accept(
                TENANT, miss.upload_token, (Tip("refs/heads/main", COMMIT),), chunks(b"PA", b"CK")
            )
            assert imported.snapshot.received_bytes == 4
            events = await room.watch(launch_id)
            assert [e.type for e in events if e.type != "step"] == [
                "snapshot",
                "miss",
                "output",
                "exited",
            ]
            with pytest.raises(UploadTokenInvalid):
                await room.uploads.accept(TENANT, miss.upload_token, (), chunks())

    run(scenario())


def test_the_sandbox_is_made_while_the_upload_is_awaited() -> None:
    async def scenario() -> None:
        world = empty_world()
        async with world.room() as room:
            launch_id, _ = await missed(room)
            await settle()
            assert (await room.launcher.get(TENANT, launch_id)).sandbox_id

    run(scenario())


def test_nobody_uploads_in_time() -> None:
    async def scenario() -> None:
        world = empty_world()
        async with world.room() as room:
            launch_id, miss = await missed(room)
            events = await room.watch(launch_id)
            assert failure(events).reason == "upload_timeout"
            assert world.clock.monotonic() == pytest.approx(world.timings.upload_timeout)
            assert world.leftovers == []
            with pytest.raises(UploadTokenInvalid):
                await room.uploads.accept(TENANT, miss.upload_token, (), chunks())

    run(scenario())


def test_the_time_of_an_upload_does_not_count() -> None:
    async def scenario() -> None:
        world = empty_world()
        gate = world.faults.hold("workspaces.import:after")
        async with world.room() as room:
            launch_id, miss = await missed(room)
            await asyncio.sleep(100)
            uploading = asyncio.ensure_future(
                room.uploads.accept(TENANT, miss.upload_token, (), chunks(b"PACK"))
            )
            await asyncio.sleep(1000)
            gate.set()
            await uploading
            assert (await room.watch(launch_id))[-1].type == "exited"

    run(scenario())


def test_a_failed_upload_leaves_the_token_good_for_the_rest_of_the_time() -> None:
    async def scenario() -> None:
        world = empty_world()
        world.faults.refuse(
            "workspaces.import:after", InvalidArgument("No.", reason="pack_invalid"), once=True
        )
        async with world.room() as room:
            launch_id, miss = await missed(room)
            await asyncio.sleep(100)
            with pytest.raises(InvalidArgument, match=r"No\."):
                await room.uploads.accept(TENANT, miss.upload_token, (), chunks(b"JUNK"))
            await asyncio.sleep(19)
            await room.uploads.accept(TENANT, miss.upload_token, (), chunks(b"PACK"))
            assert (await room.watch(launch_id))[-1].type == "exited"

    run(scenario())


def test_after_a_failed_upload_only_the_rest_of_the_time_is_left() -> None:
    async def scenario() -> None:
        world = empty_world()
        world.faults.refuse(
            "workspaces.import:after", InvalidArgument("No.", reason="pack_invalid")
        )
        async with world.room() as room:
            launch_id, miss = await missed(room)
            await asyncio.sleep(100)
            with pytest.raises(InvalidArgument):
                await room.uploads.accept(TENANT, miss.upload_token, (), chunks(b"JUNK"))
            await room.watch(launch_id)
            assert world.clock.monotonic() == pytest.approx(world.timings.upload_timeout)

    run(scenario())


def test_a_client_that_stops_sending_does_not_hold_the_launch() -> None:
    async def scenario() -> None:
        world = empty_world()
        async with world.room() as room:
            launch_id, miss = await missed(room)
            with pytest.raises(UploadStalled):
                await room.uploads.accept(TENANT, miss.upload_token, (), stalled())
            await room.uploads.accept(TENANT, miss.upload_token, (), chunks(b"PACK"))
            assert (await room.watch(launch_id))[-1].type == "exited"

    run(scenario())


def test_a_client_that_goes_away_in_the_middle_can_come_back() -> None:
    async def scenario() -> None:
        world = empty_world()
        async with world.room() as room:
            launch_id, miss = await missed(room)
            uploading = asyncio.ensure_future(
                room.uploads.accept(TENANT, miss.upload_token, (), stalled())
            )
            await settle()
            with pytest.raises(UploadUnderWay):
                await room.uploads.accept(TENANT, miss.upload_token, (), chunks(b"PACK"))
            uploading.cancel()
            await asyncio.gather(uploading, return_exceptions=True)
            await room.uploads.accept(TENANT, miss.upload_token, (), chunks(b"PACK"))
            assert (await room.watch(launch_id))[-1].type == "exited"

    run(scenario())


def test_a_cancel_ends_an_upload_that_is_under_way() -> None:
    async def scenario() -> None:
        world = empty_world()
        async with world.room() as room:
            launch_id, miss = await missed(room)
            uploading = asyncio.ensure_future(
                room.uploads.accept(TENANT, miss.upload_token, (), stalled())
            )
            await settle()
            ended = await room.launcher.cancel(TENANT, launch_id)
            assert ended.state is LaunchState.CANCELLED
            with pytest.raises(UploadTokenInvalid):
                await uploading
            assert world.leftovers == []

    run(scenario())


def test_a_second_miss_after_an_upload_fails_the_launch() -> None:
    async def scenario() -> None:
        world = empty_world()
        async with world.room() as room:
            launch_id, miss = await missed(room)

            async def forget() -> None:
                world.workspaces.known.clear()

            world.faults.put("workspaces.materialize:before", forget)
            await room.uploads.accept(TENANT, miss.upload_token, (), chunks(b"PACK"))
            events = await room.watch(launch_id)
            assert failure(events).reason == "snapshot_incomplete"
            assert sum(event.type == "miss" for event in events) == 1
            assert world.leftovers == []

    run(scenario())


@pytest.mark.parametrize("token", ["", "nope", "token-1 ", "\ud800"])
def test_a_wrong_token_is_refused(token: str) -> None:
    async def scenario() -> None:
        world = empty_world()
        async with world.room() as room:
            _, miss = await missed(room)
            with pytest.raises(UploadTokenInvalid):
                await room.uploads.accept(TENANT, token, (), chunks(b"PACK"))
            with pytest.raises(UploadTokenInvalid):
                await room.uploads.accept("other", miss.upload_token, (), chunks(b"PACK"))
            with pytest.raises(InvalidArgument):
                await room.uploads.accept(
                    TENANT, miss.upload_token, (Tip("main", COMMIT),), chunks(b"PACK")
                )
            assert "workspaces.import:before" not in world.faults.passed

    run(scenario())
