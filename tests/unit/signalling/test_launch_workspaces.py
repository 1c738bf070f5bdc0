"""What a launch asks of its workspace: claims, upstreams, uploads that carry on and histories."""

from __future__ import annotations

import asyncio
import json

import pytest

from chassis.errors import AlreadyExists, InvalidArgument, Unavailable
from signalling.launch import ControlEvent, LaunchState, SnapshotMissed, Step, StepState
from signalling.launch_errors import UploadTokenInvalid
from signalling.launch_json import control_json
from signalling.launch_parsing import parse_control
from signalling.launch_record import LaunchTimings
from signalling.snapshot import Freshness, Tip
from signalling.workspace import WorkspaceOrder
from tests.fakes.launch_room import (
    COMMIT,
    TENANT,
    Room,
    World,
    echo,
    failure,
    request,
    steps,
    told,
)
from tests.fakes.virtual_time import EPOCH, run, settle
from tests.fakes.workspace_room import chunks

TIPS = (Tip("refs/heads/main", COMMIT),)


def ready(*, known: bool = True) -> World:
    world = World()
    world.worker.script = echo(b"x")
    if not known:
        world.workspaces.known.clear()
    return world


async def missed(room: Room, **fields: object) -> tuple[str, SnapshotMissed]:
    launch = await room.launcher.start(TENANT, request(**fields), None)
    return launch.launch_id, told(await room.until(launch.launch_id, "miss"), SnapshotMissed)


def asked(world: World) -> WorkspaceOrder:
    (order,) = world.workspaces.orders.values()
    assert isinstance(order, WorkspaceOrder)
    return order


@pytest.mark.parametrize(("branch", "claimed"), [("try-1", True), ("", False)])
def test_a_branch_is_claimed_when_it_is_named(branch: str, claimed: bool) -> None:
    async def scenario() -> None:
        world = ready()
        async with world.room() as room:
            launch = await room.launcher.start(TENANT, request(branch=branch), None)
            await room.watch(launch.launch_id)
            assert asked(world).claim_branch is claimed
            assert asked(world).branch == (branch or "main")

    run(scenario())


def test_a_launch_has_its_workspace_until_it_gives_it_back() -> None:
    """Also when another replica runs it; another tenant learns nothing."""

    async def scenario() -> None:
        world = ready()
        async with world.room() as room, world.room("two") as other:
            launch = await room.launcher.start(TENANT, request(keep=True), None)
            await room.watch(launch.launch_id)
            held = await room.launcher.get(TENANT, launch.launch_id)
            for each in (room, other):
                assert await each.launches.user_of(TENANT, held.workspace_id) == launch.launch_id
                assert await each.launches.user_of("other", held.workspace_id) == ""
                assert await each.launches.user_of(TENANT, "wsp_else") == ""
            await room.launcher.cancel(TENANT, launch.launch_id)
            await room.mirror.settle()
            for each in (room, other):
                assert await each.launches.user_of(TENANT, held.workspace_id) == ""

    run(scenario())


def test_a_launch_whose_replica_is_gone_has_its_workspace_until_its_lease_ends() -> None:
    async def scenario() -> None:
        world = ready()
        async with world.room(killed=True) as room:
            launch = await room.launcher.start(TENANT, request(keep=True), None)
            await room.watch(launch.launch_id)
            await room.mirror.settle()
            held = await room.launcher.get(TENANT, launch.launch_id)
        async with world.room("two") as other:
            ends = held.expires_at
            assert ends is not None
            assert await other.launches.user_of(TENANT, held.workspace_id) == launch.launch_id
            await asyncio.sleep((ends - world.clock.now()).total_seconds())
            assert (await other.launches.get(TENANT, launch.launch_id)).released_at is None
            assert await other.launches.user_of(TENANT, held.workspace_id) == ""

    run(scenario())


def test_the_loser_of_a_branch_fails_with_the_hosts_words() -> None:
    async def scenario() -> None:
        world = ready()
        async with world.room() as room:
            first = await room.launcher.start(TENANT, request(branch="x", keep=True), None)
            await room.watch(first.launch_id)
            second = await room.launcher.start(TENANT, request(branch="x"), None)
            why = failure(await room.watch(second.launch_id))
            assert (why.step, why.reason) == (Step.WORKSPACE, "branch_in_use")
            assert why.remedy == "Take another branch."
            winner = await room.launcher.get(TENANT, first.launch_id)
            assert winner.released_at is None
            assert (TENANT, first.launch_id) in world.workspaces.held

    run(scenario())


def test_the_rung_and_the_freshness_are_told_with_the_step() -> None:
    fresh = Freshness("main", EPOCH, fallback=True, reason="origin_timeout")

    async def scenario() -> None:
        world = ready()
        world.workspaces.rung, world.workspaces.upstream = "overlay", ("d" * 40, fresh)
        world.workspaces.lfs_pointers, world.workspaces.tags_left_out = 3, True
        async with world.room() as room:
            launch = await room.launcher.start(TENANT, request(keep=True), None)
            events = await room.watch(launch.launch_id)
            done = [
                step
                for step in steps(events)
                if (step.step, step.state) == (Step.WORKSPACE, StepState.DONE)
            ]
            facts = [
                (step.detail, step.freshness, step.lfs_pointers, step.tags_left_out)
                for step in done
            ]
            assert facts == [("overlay", fresh, 3, True)]
            assert (await room.launcher.get(TENANT, launch.launch_id)).commit == "d" * 40
            kept = ControlEvent(7, EPOCH, done[0])
            assert parse_control(json.dumps(control_json(kept))) == kept

    run(scenario())


def test_an_upload_makes_the_workspace_in_its_own_call() -> None:
    async def scenario() -> None:
        world = ready(known=False)
        async with world.room() as room:
            launch_id, miss = await missed(room)
            asked_before = world.faults.passed.count("workspaces.materialize:before")
            await room.uploads.accept(TENANT, miss.upload_token, TIPS, chunks(b"PACK"))
            assert world.workspaces.imports == [(False, True)]
            events = await room.watch(launch_id)
            assert events[-1].type == "exited"
            asked_again = world.faults.passed.count("workspaces.materialize:before") - asked_before
            assert asked_again == 1  # the import's own

    run(scenario())


def test_a_launch_goes_on_with_a_host_that_only_imports() -> None:
    async def scenario() -> None:
        world = ready(known=False)
        world.workspaces.carries_on = False
        async with world.room() as room:
            launch_id, miss = await missed(room)
            await room.uploads.accept(TENANT, miss.upload_token, TIPS, chunks(b"PACK"))
            assert (await room.watch(launch_id))[-1].type == "exited"

    run(scenario())


def test_what_the_workspace_is_refused_for_after_the_import_ends_the_launch() -> None:
    async def scenario() -> None:
        world = ready(known=False)
        async with world.room() as room:
            launch_id, miss = await missed(room, branch="x")
            taken = AlreadyExists("It is taken.", reason="branch_in_use", remedy="Another.")
            world.faults.refuse("workspaces.materialize:before", taken)
            with pytest.raises(AlreadyExists):
                await room.uploads.accept(TENANT, miss.upload_token, TIPS, chunks(b"PACK"))
            why = failure(await room.watch(launch_id))
            assert (why.reason, why.remedy) == ("branch_in_use", "Another.")
            assert world.leftovers == []

    run(scenario())


@pytest.mark.parametrize(
    "lost",
    [
        InvalidArgument("No.", reason="pack_invalid"),
        Unavailable("Away.", reason="workspace_provisioner_unavailable"),
    ],
    ids=["refused", "away"],
)
def test_after_a_failed_upload_the_launch_waits_for_another(lost: Exception) -> None:
    async def scenario() -> None:
        world = ready(known=False)
        async with world.room() as room:
            launch_id, miss = await missed(room)
            world.faults.refuse("workspaces.import:after", lost, once=True)
            if isinstance(lost, Unavailable):
                world.faults.refuse("workspaces.materialize:before", lost, once=True)
            with pytest.raises(type(lost)):
                await room.uploads.accept(TENANT, miss.upload_token, TIPS, chunks(b"PACK"))
            await settle()
            launch = await room.launcher.get(TENANT, launch_id)
            assert launch.state is LaunchState.REQUESTED
            await room.uploads.accept(TENANT, miss.upload_token, TIPS, chunks(b"PACK"))
            assert (await room.watch(launch_id))[-1].type == "exited"

    run(scenario())


def test_the_history_may_follow_the_files() -> None:
    async def scenario() -> None:
        world = ready(known=False)
        async with world.room() as room:
            launch_id, miss = await missed(room, keep=True)
            await room.uploads.accept(
                TENANT, miss.upload_token, TIPS, chunks(b"TIPS"), tips_only=True
            )
            assert (await room.watch(launch_id))[-1].type == "exited"
            await room.uploads.accept(TENANT, miss.upload_token, TIPS, chunks(b"HISTORY"))
            assert world.workspaces.received == b"HISTORY"
            assert world.workspaces.imports == [(True, True), (False, False)]
            with pytest.raises(UploadTokenInvalid):
                await room.uploads.accept(TENANT, miss.upload_token, TIPS, chunks(b"AGAIN"))

    run(scenario())


def test_the_history_may_come_for_an_hour_whatever_became_of_the_launch() -> None:
    async def scenario() -> None:
        world = ready(known=False)
        async with world.room() as room:
            launch_id, miss = await missed(room, keep=True)
            await room.uploads.accept(
                TENANT, miss.upload_token, TIPS, chunks(b"TIPS"), tips_only=True
            )
            await room.watch(launch_id)
            gate = world.faults.hold("workspaces.import:after")
            sending = asyncio.ensure_future(
                room.uploads.accept(TENANT, miss.upload_token, TIPS, chunks(b"HISTORY"))
            )
            await settle()
            await room.launcher.cancel(TENANT, launch_id)
            gate.set()
            assert (await sending).snapshot.received_bytes == 7
            for waited in (3500, 3601):
                other_id, other = await missed_again(room, world)
                await room.launcher.cancel(TENANT, other_id)
                await asyncio.sleep(waited)
                late = room.uploads.accept(TENANT, other.upload_token, TIPS, chunks(b"LATE"))
                if waited < 3600:
                    await late
                else:
                    with pytest.raises(UploadTokenInvalid):
                        await late

    run(scenario())


async def missed_again(room: Room, world: World) -> tuple[str, SnapshotMissed]:
    """Bring another launch to where only its history is lacking."""
    world.workspaces.known.clear()
    launch_id, miss = await missed(room, keep=True)
    await room.uploads.accept(TENANT, miss.upload_token, TIPS, chunks(b"TIPS"), tips_only=True)
    await room.watch(launch_id)
    return launch_id, miss


def test_uploads_that_fail_again_and_again_still_end_with_the_time() -> None:
    async def scenario() -> None:
        world = World(timings=LaunchTimings(upload_timeout=10.0))
        world.workspaces.known.clear()
        world.faults.refuse(
            "workspaces.import:after", InvalidArgument("No.", reason="pack_invalid")
        )
        async with world.room() as room:
            launch_id, miss = await missed(room)
            for _ in range(3):
                await asyncio.sleep(3)
                with pytest.raises(InvalidArgument):
                    await room.uploads.accept(TENANT, miss.upload_token, TIPS, chunks(b"JUNK"))
            assert failure(await room.watch(launch_id)).reason == "upload_timeout"
            assert world.clock.monotonic() == pytest.approx(10.0)

    run(scenario())
