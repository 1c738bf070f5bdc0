"""Launches into a workspace that was there before: it stays, and is held while it is needed."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

import pytest

from chassis.errors import FailedPrecondition, FairleadError
from signalling.execution import Command
from signalling.launch import ControlEvent, LaunchExited, LaunchState, Step, StepChanged, StepState
from signalling.launch_json import control_json, record_json
from signalling.launch_parsing import parse_control, parse_record
from signalling.launch_request import LaunchRequest
from signalling.sandbox import Limits, NetworkMode, NetworkPolicy
from signalling.workspace import Workspace, WorkspaceOrder, WorkspaceState
from tests.fakes.launch_room import COMMIT, TENANT, Room, World, echo, request, told
from tests.fakes.mesh import HOST, OTHER_HOST
from tests.fakes.virtual_time import run
from tests.fakes.workspace_room import SOURCE


async def lent(world: World, *, lease: timedelta = timedelta(hours=1)) -> Workspace:
    made = await world.workspaces.materialize(
        HOST,
        tenant=TENANT,
        order=WorkspaceOrder(key="mine", source=SOURCE, branch="try", lease=lease),
    )
    assert isinstance(made, Workspace)
    world.workspaces.leases.clear()
    return made


def into(workspace: Workspace, **fields: object) -> LaunchRequest:
    return LaunchRequest(
        workspace_id=workspace.workspace_id,
        command=Command(arguments=("true",)),
        **fields,  # type: ignore[arg-type]
    )


async def finished(room: Room, asked: LaunchRequest) -> str:
    launch = await room.launcher.start(TENANT, asked, None)
    await room.watch(launch.launch_id)
    return launch.launch_id


def test_it_works_in_the_workspace_and_leaves_it() -> None:
    async def scenario() -> None:
        world = World()
        world.worker.script = echo(b"x")
        world.workspaces.changed_files = 2
        workspace = await lent(world)
        async with world.room() as room:
            launch_id = await finished(room, into(workspace))
            launch = await room.launcher.get(TENANT, launch_id)
            events = await room.watch(launch_id)
        assert (launch.state, launch.workspace_id) == (LaunchState.EXITED, workspace.workspace_id)
        assert (launch.commit, launch.branch, launch.project) == (COMMIT, "try", "p")
        assert launch.released_at is not None
        assert told(events[-1], LaunchExited).discarded is False
        (order,) = world.worker.orders.values()
        assert order.launch_id == launch_id
        assert not world.worker.held
        kept = await world.workspaces.get(HOST, tenant=TENANT, workspace_id=workspace.workspace_id)
        assert kept.state is WorkspaceState.PROVISIONED
        assert world.workspaces.released == set()

    run(scenario())


def test_a_launch_that_fails_undoes_what_it_made_only() -> None:
    async def scenario() -> None:
        world = World()
        world.faults.refuse("executions.start:before", FailedPrecondition("No.", reason="no"))
        workspace = await lent(world)
        async with world.room() as room:
            launch_id = await finished(room, into(workspace))
            events = await room.watch(launch_id)
        undone = {
            each.event.step
            for each in events
            if isinstance(each.event, StepChanged) and each.event.state is StepState.UNDONE
        }
        assert Step.WORKSPACE not in undone
        assert Step.SANDBOX in undone
        assert not world.worker.held
        assert world.workspaces.released == set()

    run(scenario())


@pytest.mark.parametrize(("minutes", "renewed"), [(5, True), (60, False)])
def test_a_lease_is_lengthened_and_never_shortened(minutes: int, renewed: bool) -> None:
    async def scenario() -> None:
        world = World()
        world.worker.script = echo(b"x")
        workspace = await lent(world, lease=timedelta(minutes=minutes))
        async with world.room() as room:
            held = world.workspaces.held[TENANT, "mine"]
            world.workspaces.held[TENANT, "mine"] = replace(
                held, expires_at=world.clock.now() + timedelta(minutes=minutes)
            )
            await finished(room, into(workspace))
        assert (workspace.workspace_id in world.workspaces.leases) is renewed

    run(scenario())


def test_its_host_is_where_the_workspace_is() -> None:
    async def scenario() -> None:
        world = World()
        world.worker.script = echo(b"x")
        world.hosts.hosts[OTHER_HOST.host_id] = OTHER_HOST
        workspace = await lent(world)
        world.hosts.hosts[HOST.host_id] = replace(HOST, sandboxes=9, capacity=10)
        async with world.room() as room:
            launch_id = await finished(room, into(workspace))
            assert (await room.launcher.get(TENANT, launch_id)).host_id == HOST.host_id

    run(scenario())


def test_what_cannot_be_lent_is_refused() -> None:
    async def scenario() -> None:
        world = World()
        workspace = await lent(world)
        async with world.room() as room:
            for asked, tenant, reason in (
                (LaunchRequest(), TENANT, "source_required"),
                (LaunchRequest(workspace_id="wsp_x"), TENANT, "workspace_not_found"),
                (into(workspace), "other", "workspace_not_found"),
                (into(workspace, source=SOURCE), TENANT, "workspace_conflict"),
                (into(workspace, branch="b"), TENANT, "workspace_conflict"),
            ):
                with pytest.raises(FairleadError) as refused:
                    await room.launcher.start(tenant, asked, None)
                assert refused.value.reason == reason
            await world.workspaces.release(HOST, tenant=TENANT, key="mine")
            with pytest.raises(FairleadError) as gone:
                await room.launcher.start(TENANT, into(workspace), None)
            assert gone.value.reason == "workspace_not_found"

    run(scenario())


def test_a_restarted_replica_still_leaves_it() -> None:
    async def scenario() -> None:
        world = World()
        workspace = await lent(world)
        async with world.room(killed=True) as room:
            launch = await room.launcher.start(TENANT, into(workspace, keep=True), None)
            await room.until(launch.launch_id, "step")
            await room.mirror.settle()
            record = await room.launches.record(TENANT, launch.launch_id)
        assert record.workspace_lent
        assert parse_record(json.dumps(record_json(record))) == record
        async with world.room() as room:
            await room.launcher.cancel(TENANT, launch.launch_id)
        assert world.workspaces.released == set()
        assert (TENANT, "mine") in world.workspaces.held

    run(scenario())


def test_what_the_sandbox_is_to_have_reaches_it_and_is_told() -> None:
    async def scenario() -> None:
        world = World()
        world.worker.script = echo(b"x")
        network = NetworkPolicy(NetworkMode.EGRESS, ("pypi.org",))
        async with world.room() as room:
            asked = request(limits=Limits(processes=9), network=network)
            launch_id = await finished(room, asked)
            events = await room.watch(launch_id)
        (order,) = world.worker.orders.values()
        assert (order.limits, order.network) == (Limits(processes=9), network)
        (done,) = [
            each.event
            for each in events
            if isinstance(each.event, StepChanged) and each.event.sandbox is not None
        ]
        assert (done.step, done.state) == (Step.SANDBOX, StepState.DONE)
        assert done.sandbox is not None
        assert done.sandbox.walls
        assert done.sandbox.network == network
        kept = ControlEvent(1, world.clock.now(), done)
        assert parse_control(json.dumps(control_json(kept))) == kept

    run(scenario())
