"""Every step fails in turn, before and after it took effect, and a launch is cancelled in every
window.
"""

from __future__ import annotations

import asyncio

import pytest

from chassis.errors import Unavailable
from signalling.execution import ExitReason
from signalling.launch import (
    CancelReason,
    Failure,
    LaunchCancelled,
    LaunchExited,
    LaunchState,
    Step,
    StepState,
)
from signalling.sandbox import NetworkDecision
from tests.fakes.launch_room import (
    OFFER,
    TENANT,
    World,
    contents,
    echo,
    ends,
    failure,
    request,
    sequences,
    steps,
    told,
)
from tests.fakes.virtual_time import run, settle

STEPS = {
    "workspaces.materialize": Step.WORKSPACE,
    "sandboxes.create": Step.SANDBOX,
    "channels.answer": Step.CHANNEL,
    "sandboxes.bind": Step.EXECUTION,
    "executions.start": Step.EXECUTION,
}
POINTS = [f"{call}:{when}" for call in STEPS for when in ("before", "after")]
WINDOWS = [*POINTS, "executions.run:after", "workspaces.count:before", "sandboxes.renew:before"]


def away() -> Unavailable:
    return Unavailable("It is away.", reason="away", remedy="Wait.")


@pytest.mark.parametrize("point", POINTS)
def test_a_step_that_fails_undoes_the_others_and_names_itself(point: str) -> None:
    async def scenario() -> None:
        world = World()
        world.faults.refuse(point, away())
        async with world.room() as room:
            launch = await room.launcher.start(TENANT, request(offer=OFFER), None)
            events = await room.watch(launch.launch_id)
            step = STEPS[point.partition(":")[0]]
            assert failure(events) == Failure(step, "away", "It is away.", "Wait.")
            assert ends(events) == 1
            assert world.leftovers == []
            begun = {changed.step for changed in steps(events)}
            undone = {
                changed.step for changed in steps(events) if changed.state is StepState.UNDONE
            }
            assert undone == begun - {step}
            ended = await room.launcher.get(TENANT, launch.launch_id)
            assert ended.finished

    run(scenario())


@pytest.mark.parametrize("point", POINTS)
def test_a_step_that_hangs_fails_in_time(point: str) -> None:
    async def scenario() -> None:
        world = World()
        world.faults.hold(point)
        async with world.room() as room:
            launch = await room.launcher.start(TENANT, request(offer=OFFER), None)
            assert failure(await room.watch(launch.launch_id)).reason == "step_timeout"
            assert world.clock.monotonic() <= world.timings.step_timeout
            assert world.leftovers == []

    run(scenario())


@pytest.mark.parametrize("point", POINTS)
def test_a_fault_of_ours_ends_the_launch_without_its_details(
    point: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        world = World()
        world.faults.refuse(point, KeyError("/secret/path"))
        async with world.room() as room:
            launch = await room.launcher.start(TENANT, request(offer=OFFER), None)
            failed = failure(await room.watch(launch.launch_id))
            assert failed.reason == "internal"
            assert "secret" not in failed.message
            assert world.leftovers == []

    run(scenario())
    assert "launch failed unexpectedly" in caplog.text


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("point", WINDOWS)
def test_a_launch_is_cancelled_in_every_window(point: str, keep: bool) -> None:
    async def scenario() -> None:
        world = World()
        world.worker.script = echo(b"x")
        world.faults.hold(point)
        async with world.room() as room:
            launch = await room.launcher.start(TENANT, request(offer=OFFER, keep=keep), None)
            watching = asyncio.ensure_future(room.watch(launch.launch_id))
            await settle(200)
            if point in ("executions.run:after", "workspaces.count:before"):
                world.faults.clear(point)
            cancels = [room.launcher.cancel(TENANT, launch.launch_id) for _ in range(3)]
            ended = (await asyncio.gather(*cancels))[0]
            assert ended.finished
            assert world.leftovers == []
            assert (await room.launcher.cancel(TENANT, launch.launch_id)) == ended
            world.faults.clear(point)
            events = await watching
            assert ends(events) == 1
            if ended.state is LaunchState.CANCELLED:
                assert told(events[-1], LaunchCancelled).reason is CancelReason.REQUESTED
            else:
                assert events[-1].type == "exited"

    run(scenario())


@pytest.mark.parametrize("turns", range(60))
def test_a_cancel_at_any_turn_of_the_loop_leaves_nothing(turns: int) -> None:
    async def scenario() -> None:
        world = World()
        world.worker.script = echo(b"x", b"y")
        async with world.room() as room:
            launch = await room.launcher.start(TENANT, request(offer=OFFER), None)
            watching = asyncio.ensure_future(room.watch(launch.launch_id))
            await settle(turns)
            ended = await room.launcher.cancel(TENANT, launch.launch_id)
            events = await watching
            assert ended.finished
            assert world.leftovers == []
            assert ends(events) == 1
            if events[-1].type == "exited":
                assert sequences(events) == [1, 2]

    run(scenario())


def test_output_before_a_cancel_is_not_lost() -> None:
    async def scenario() -> None:
        world = World()
        async with world.room() as room:
            launch = await room.launcher.start(TENANT, request(), None)
            await settle()
            running = await room.launcher.get(TENANT, launch.launch_id)
            world.worker.write(running.execution_id, b"one", b"two")
            ended = await room.launcher.cancel(TENANT, launch.launch_id)
            events = await room.watch(launch.launch_id)
            assert contents(events) == [b"one", b"two"]
            assert events[-1].type == "cancelled"
            assert ended.exit is not None
            assert ended.exit.last_sequence == 2

    run(scenario())


def test_a_cancel_after_the_exit_of_a_kept_launch_only_releases() -> None:
    async def scenario() -> None:
        world = World()
        world.worker.script = echo()
        async with world.room() as room:
            launch = await room.launcher.start(TENANT, request(keep=True), None)
            before = await room.watch(launch.launch_id)
            ended = await room.launcher.cancel(TENANT, launch.launch_id)
            assert ended.state is LaunchState.EXITED
            assert ended.released_at is not None
            assert world.leftovers == []
            after = await room.watch(launch.launch_id)
            assert after[1:] == before[1:]

    run(scenario())


@pytest.mark.parametrize("call", ["workspaces.release", "sandboxes.release", "channels.close"])
@pytest.mark.parametrize("kind", ["refuse", "hold"])
def test_a_release_that_cannot_be_confirmed_says_so(call: str, kind: str) -> None:
    async def scenario() -> None:
        world = World()
        world.faults.refuse("executions.start:before", away())
        if kind == "refuse":
            world.faults.refuse(f"{call}:before", away())
        else:
            world.faults.hold(f"{call}:before")
        async with world.room() as room:
            launch = await room.launcher.start(TENANT, request(offer=OFFER), None)
            events = await room.watch(launch.launch_id)
            details = {
                changed.step: changed.detail
                for changed in steps(events)
                if changed.state is StepState.UNDONE
            }
            step = {
                "workspaces.release": Step.WORKSPACE,
                "sandboxes.release": Step.SANDBOX,
                "channels.close": Step.CHANNEL,
            }[call]
            assert [at for at, detail in details.items() if "not confirmed" in detail] == [step]
            assert events[-1].type == "failed"
            assert world.faults.passed.count(f"{call}:before") == 3

    run(scenario())


def test_a_release_is_tried_again() -> None:
    async def scenario() -> None:
        world = World()
        world.worker.script = echo()
        world.faults.refuse("sandboxes.release:before", away(), once=True)
        world.faults.refuse("workspaces.release:after", away(), once=True)
        async with world.room() as room:
            launch = await room.launcher.start(TENANT, request(), None)
            await room.watch(launch.launch_id)
            await room.launcher.cancel(TENANT, launch.launch_id)
            assert world.leftovers == []

    run(scenario())


def test_the_sandbox_is_released_before_the_workspace() -> None:
    async def scenario() -> None:
        world = World()
        gate = world.faults.hold("sandboxes.release:before")
        async with world.room() as room:
            launch = await room.launcher.start(TENANT, request(), None)
            await settle()
            cancelling = asyncio.ensure_future(room.launcher.cancel(TENANT, launch.launch_id))
            await settle()
            assert "workspaces.release:before" not in world.faults.passed
            gate.set()
            await cancelling
            assert world.leftovers == []

    run(scenario())


def test_a_host_that_stays_away_is_lost() -> None:
    async def scenario() -> None:
        world = World()
        async with world.room() as room:
            launch = await room.launcher.start(TENANT, request(), None)
            await settle()
            await asyncio.sleep(5000)
            for call in ("executions.watch", "sandboxes.release", "workspaces.release"):
                world.faults.refuse(f"{call}:before", away())
            watching = asyncio.ensure_future(room.watch(launch.launch_id))
            began = world.clock.monotonic()
            world.worker.cut_streams()
            events = await watching
            assert failure(events).reason == "host_lost"
            assert failure(events).step is Step.EXECUTION
            assert world.timings.host_lost_after <= world.clock.monotonic() - began < 60

    run(scenario())


def test_a_host_that_comes_back_in_time_is_followed_again() -> None:
    async def scenario() -> None:
        world = World()
        async with world.room() as room:
            launch = await room.launcher.start(TENANT, request(), None)
            await settle()
            world.faults.refuse("executions.watch:before", away())
            world.worker.cut_streams()
            await asyncio.sleep(20)
            world.faults.clear("executions.watch:before")
            running = await room.launcher.get(TENANT, launch.launch_id)
            world.worker.write(running.execution_id, b"x")
            world.worker.finish(running.execution_id)
            events = await room.watch(launch.launch_id)
            assert [e.type for e in events[-2:]] == ["output", "exited"]

    run(scenario())


def test_a_launch_learns_of_its_exit_on_the_call_that_started_it() -> None:
    async def scenario() -> None:
        world = World()
        world.worker.script = echo(b"x")
        async with world.room() as room:
            launch = await room.launcher.start(TENANT, request(keep=True), None)
            await room.until(launch.launch_id, "step")
            ended = await room.launcher.get(TENANT, launch.launch_id)
            while not ended.state.terminal:
                await settle(1)
                ended = await room.launcher.get(TENANT, launch.launch_id)
            assert ended.state is LaunchState.EXITED
            assert "executions.watch:before" not in world.faults.passed
            assert world.worker.watching == 0
            await room.watch(launch.launch_id)
            assert world.faults.passed.count("executions.watch:before") == 1

    run(scenario())


def test_a_start_whose_stream_breaks_is_followed_by_another() -> None:
    async def scenario() -> None:
        world = World()
        world.faults.refuse("executions.run:after", away())
        async with world.room() as room:
            launch = await room.launcher.start(TENANT, request(keep=True), None)
            await settle()
            running = await room.launcher.get(TENANT, launch.launch_id)
            assert running.state is LaunchState.RUNNING
            world.worker.write(running.execution_id, b"x")
            world.worker.finish(running.execution_id, code=5)
            events = await room.watch(launch.launch_id)
            assert contents(events) == [b"x"]
            assert events[-1].type == "exited"
            assert world.faults.passed.count("executions.start:before") == 1

    run(scenario())


def test_a_worker_that_reports_the_host_lost_fails_the_launch() -> None:
    async def scenario() -> None:
        world = World()
        async with world.room() as room:
            launch = await room.launcher.start(TENANT, request(), None)
            await settle()
            running = await room.launcher.get(TENANT, launch.launch_id)
            world.worker.finish(running.execution_id, reason=ExitReason.HOST_LOST, code=None)
            events = await room.watch(launch.launch_id)
            assert failure(events).reason == "host_lost"
            assert world.leftovers == []

    run(scenario())


def test_what_the_network_has_refused_is_told_at_the_end() -> None:
    async def scenario() -> None:
        world = World()
        async with world.room() as room:
            launch = await room.launcher.start(TENANT, request(), None)
            await settle()
            running = await room.launcher.get(TENANT, launch.launch_id)
            world.worker.decisions[running.sandbox_id] = [
                NetworkDecision(world.clock.now(), host, port, "", reason)
                for host, port, reason in (
                    ("pypi.org", 443, "not_listed"),
                    ("pypi.org", 443, "not_listed"),
                    ("allowed.example", 443, "allowed"),
                    ("git.example", 22, "port_not_listed"),
                    ("2606:4700::1", 443, "not_listed"),
                    ("intra.example", 443, "address_private"),
                    ("\x1b[2J", 443, "not_listed"),
                )
            ]
            world.worker.finish(running.execution_id, code=1)
            ended = told((await room.watch(launch.launch_id))[-1], LaunchExited)
            assert ended.refused == ("pypi.org", "git.example:22", "[2606:4700::1]")

    run(scenario())


def test_what_was_to_be_kept_outlives_the_worker_and_is_named() -> None:
    async def scenario() -> None:
        world = World()
        async with world.room() as room:
            launch = await room.launcher.start(TENANT, request(keep=True), None)
            await settle()
            running = await room.launcher.get(TENANT, launch.launch_id)
            world.worker.finish(running.execution_id, reason=ExitReason.HOST_LOST, code=None)
            failed = failure(await room.watch(launch.launch_id))
            assert failed.reason == "host_lost"
            assert f"fairlead launch --workspace {running.workspace_id} " in failed.remedy
            assert len(world.leftovers) == len(world.workspaces.held) == 1

    run(scenario())


def test_a_worker_that_forgot_the_execution_fails_the_launch() -> None:
    async def scenario() -> None:
        world = World()
        async with world.room() as room:
            launch = await room.launcher.start(TENANT, request(), None)
            watching = asyncio.ensure_future(room.watch(launch.launch_id))
            await settle()
            world.worker.programs.clear()
            world.worker.cut_streams()
            events = await watching
            assert failure(events).reason == "host_lost"
            assert world.leftovers == []

    run(scenario())
