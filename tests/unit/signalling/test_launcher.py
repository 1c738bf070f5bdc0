"""A launch from request to release, over fakes in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import pytest

from chassis.errors import FairleadError, InvalidArgument
from signalling.execution import Command
from signalling.launch import (
    CancelReason,
    LaunchCancelled,
    LaunchEvent,
    LaunchExited,
    LaunchProvisioned,
    LaunchState,
    OfferAnswered,
)
from signalling.launch_errors import (
    Draining,
    IdempotencyConflict,
    IsolationUnavailable,
    LaunchNotFound,
    LaunchNotHeld,
    NoHost,
    TraceStoreAbsent,
)
from signalling.launch_request import LaunchRequest
from tests.fakes.launch_room import OFFER, TENANT, World, echo, kinds, request, steps, told
from tests.fakes.virtual_time import run, settle


def changes(events: Sequence[LaunchEvent]) -> list[tuple[str, str]]:
    return [(changed.step.value, changed.state.value) for changed in steps(events)]


def test_a_launch_with_a_command_ends_released() -> None:
    async def scenario() -> None:
        world = World()
        world.worker.script = echo(b"one", b"two", code=3)
        async with world.room() as room:
            launch = await room.launcher.start(TENANT, request(), None)
            assert launch.state is LaunchState.REQUESTED
            assert launch.trace_id == "f" * 32
            events = await room.watch(launch.launch_id)
            assert kinds(events)[0] == "snapshot"
            assert kinds(events)[-3:] == ["output", "output", "exited"]
            assert sorted(changes(events)) == [
                ("execution", "done"),
                ("execution", "started"),
                ("sandbox", "done"),
                ("sandbox", "started"),
                ("workspace", "done"),
                ("workspace", "started"),
            ]
            exited = told(events[-1], LaunchExited)
            assert (exited.exit.code, exited.changed_files, exited.discarded) == (3, 0, False)
            ended = await room.launcher.cancel(TENANT, launch.launch_id)
            assert ended.state is LaunchState.EXITED
            assert ended.released_at is not None
            assert world.leftovers == []
        stored = await world.store.get(TENANT, launch.launch_id)
        assert stored is not None
        assert stored.launch == ended

    run(scenario())


def test_changes_that_nothing_keeps_are_said_to_be_discarded() -> None:
    async def scenario() -> None:
        world = World()
        world.worker.script = echo()
        world.workspaces.changed_files = 2
        async with world.room() as room:
            launch = await room.launcher.start(TENANT, request(), None)
            exited = told((await room.watch(launch.launch_id))[-1], LaunchExited)
            assert (exited.changed_files, exited.discarded) == (2, True)
            kept = await room.launcher.start(TENANT, request(keep=True), None)
            exited = told((await room.watch(kept.launch_id))[-1], LaunchExited)
            assert (exited.changed_files, exited.discarded) == (2, False)
            assert (await room.launcher.get(TENANT, kept.launch_id)).held

    run(scenario())


def test_changes_that_cannot_be_counted_are_absent() -> None:
    async def scenario() -> None:
        world = World()
        world.worker.script = echo()
        world.faults.hold("workspaces.count:before")
        async with world.room() as room:
            launch = await room.launcher.start(TENANT, request(), None)
            exited = told((await room.watch(launch.launch_id))[-1], LaunchExited)
            assert (exited.changed_files, exited.discarded) == (None, True)
            assert world.clock.monotonic() == pytest.approx(world.timings.count_patience)

    run(scenario())


def test_a_launch_with_an_offer_answers_it() -> None:
    async def scenario() -> None:
        world = World()
        async with world.room() as room:
            launch = await room.launcher.start(TENANT, request(offer=OFFER, command=None), None)
            answered = await room.until(launch.launch_id, "answer")
            provisioned = await room.until(launch.launch_id, "provisioned")
            session_id = told(provisioned, LaunchProvisioned).launch.session_id
            assert told(answered, OfferAnswered).session_id == session_id
            await room.launcher.cancel(TENANT, launch.launch_id)
            assert world.leftovers == []

    run(scenario())


def test_without_a_command_the_lease_ends_it() -> None:
    async def scenario() -> None:
        world = World()
        async with world.room() as room:
            wanted = request(command=None, lease=timedelta(seconds=60))
            launch = await room.launcher.start(TENANT, wanted, None)
            events = await room.watch(launch.launch_id)
            assert kinds(events)[-4:] == ["provisioned", "step", "step", "cancelled"]
            assert changes(events)[-2:] == [("sandbox", "undone"), ("workspace", "undone")]
            assert told(events[-1], LaunchCancelled).reason is CancelReason.LEASE_EXPIRED
            assert world.clock.monotonic() == pytest.approx(60)
            assert world.leftovers == []

    run(scenario())


def test_what_is_kept_is_released_at_the_end_of_the_lease() -> None:
    async def scenario() -> None:
        world = World()
        world.worker.script = echo()
        async with world.room() as room:
            wanted = request(keep=True, lease=timedelta(seconds=60))
            launch = await room.launcher.start(TENANT, wanted, None)
            assert (await room.watch(launch.launch_id))[-1].type == "exited"
            assert len(world.leftovers) == 2
            [lease] = world.worker.leases.values()
            assert lease == timedelta(seconds=60 + world.timings.lease_grace)
            await asyncio.sleep(61)
            ended = await room.launcher.get(TENANT, launch.launch_id)
            assert ended.state is LaunchState.EXITED
            assert ended.released_at is not None
            assert world.leftovers == []

    run(scenario())


def test_a_short_lease_does_not_end_a_running_command() -> None:
    async def scenario() -> None:
        world = World()
        async with world.room() as room:
            wanted = request(lease=timedelta(seconds=1))
            launch = await room.launcher.start(TENANT, wanted, None)
            await asyncio.sleep(2900)
            running = await room.launcher.get(TENANT, launch.launch_id)
            assert running.state is LaunchState.RUNNING
            assert running.expires_at is not None
            assert running.expires_at > world.clock.now()
            assert world.faults.passed.count("sandboxes.renew:before") == 14
            world.worker.finish(running.execution_id)
            assert (await room.watch(launch.launch_id))[-1].type == "exited"

    run(scenario())


def test_renewing_moves_the_end_of_the_lease() -> None:
    async def scenario() -> None:
        world = World()
        async with world.room() as room:
            wanted = request(command=None, lease=timedelta(seconds=60))
            launch = await room.launcher.start(TENANT, wanted, None)
            await asyncio.sleep(50)
            renewed = await room.launcher.renew(TENANT, launch.launch_id, timedelta(seconds=100))
            assert renewed.expires_at == world.clock.now() + timedelta(seconds=100)
            await asyncio.sleep(90)
            assert (await room.launcher.get(TENANT, launch.launch_id)).held
            await asyncio.sleep(11)
            assert not (await room.launcher.get(TENANT, launch.launch_id)).held
            with pytest.raises(LaunchNotHeld):
                await room.launcher.renew(TENANT, launch.launch_id, None)
            with pytest.raises(InvalidArgument):
                await room.launcher.renew(TENANT, launch.launch_id, timedelta(days=2))

    run(scenario())


def test_the_same_key_gives_the_same_launch() -> None:
    async def scenario() -> None:
        world = World()
        world.worker.script = echo(b"x")
        async with world.room() as room:
            started = await asyncio.gather(
                *(room.launcher.start(TENANT, request(), "key") for _ in range(5))
            )
            assert len({launch.launch_id for launch in started}) == 1
            with pytest.raises(IdempotencyConflict):
                await room.launcher.start(TENANT, request(keep=True), "key")
            other = await room.launcher.start("other", request(), "key")
            assert other.launch_id != started[0].launch_id
            await room.watch(started[0].launch_id)
            await room.mirror.settle()
            again = await room.launcher.start(TENANT, request(), "key")
            assert again.state is LaunchState.EXITED
            with pytest.raises(IdempotencyConflict):
                await room.launcher.start(TENANT, request(keep=True), "key")
            assert len(world.worker.programs) == 2

    run(scenario())


def test_one_of_two_different_requests_with_one_key_at_once_is_refused() -> None:
    async def scenario() -> None:
        world = World()
        async with world.room() as room:
            results = await asyncio.gather(
                room.launcher.start(TENANT, request(), "key"),
                room.launcher.start(TENANT, request(keep=True), "key"),
                return_exceptions=True,
            )
            assert isinstance(results[1], IdempotencyConflict)
            assert len(world.store.records) == 1

    run(scenario())


def test_a_known_key_attaches_even_when_no_host_is_left() -> None:
    async def scenario() -> None:
        world = World()
        world.worker.script = echo()
        async with world.room() as room:
            launch = await room.launcher.start(TENANT, request(), "key")
            await room.watch(launch.launch_id)
            await room.mirror.settle()
            world.hosts.hosts.clear()
            again = await room.launcher.start(TENANT, request(), "key")
            assert again.launch_id == launch.launch_id
            with pytest.raises(NoHost):
                await room.launcher.start(TENANT, request(), "another")

    run(scenario())


def test_a_caller_that_goes_away_stops_nothing() -> None:
    async def scenario() -> None:
        world = World()
        world.worker.script = echo()
        async with world.room() as room:
            starting = asyncio.ensure_future(room.launcher.start(TENANT, request(), "key"))
            await asyncio.sleep(0)
            starting.cancel()
            await settle()
            launch = await room.launcher.start(TENANT, request(), "key")
            assert (await room.watch(launch.launch_id))[-1].type == "exited"

    run(scenario())


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        (request(command=Command(arguments=())), InvalidArgument),
        (request(branch="a..b"), InvalidArgument),
        (request(isolation="vm"), IsolationUnavailable),
    ],
)
def test_what_is_refused_leaves_nothing(wanted: LaunchRequest, error: type[FairleadError]) -> None:
    async def scenario() -> None:
        world = World()
        async with world.room() as room:
            with pytest.raises(error):
                await room.launcher.start(TENANT, wanted, "key")
            assert world.store.records == {}
            assert world.faults.passed == []
            assert (await room.launcher.start(TENANT, request(), "key")).launch_id

    run(scenario())


def test_unknown_and_foreign_launches_are_not_found() -> None:
    async def scenario() -> None:
        world = World()
        async with world.room() as room:
            launch = await room.launcher.start(TENANT, request(command=None), None)
            for tenant, launch_id in (
                ("other", launch.launch_id),
                (TENANT, "lch_" + "a" * 26),
                (TENANT, "../x"),
            ):
                with pytest.raises(LaunchNotFound):
                    await room.launcher.get(tenant, launch_id)
                with pytest.raises(LaunchNotFound):
                    await room.launcher.cancel(tenant, launch_id)
                with pytest.raises(LaunchNotFound):
                    await anext(room.launcher.watch(tenant, launch_id, None))
            with pytest.raises(TraceStoreAbsent):
                await room.launcher.trace(TENANT, launch.launch_id)
            assert (await room.launcher.list("other", 0, ""))[0] == []
            with pytest.raises(FairleadError, match="page size"):
                await room.launcher.list(TENANT, 101, "")

    run(scenario())


def test_a_draining_replica_takes_no_launches_and_lets_watchers_go() -> None:
    async def scenario() -> None:
        world = World()
        async with world.room() as room:
            launch = await room.launcher.start(TENANT, request(), None)
            watching = asyncio.ensure_future(room.watch(launch.launch_id))
            await settle()
            await room.launcher.drain()
            with pytest.raises(Draining):
                await watching
            with pytest.raises(Draining):
                await room.launcher.start(TENANT, request(), None)
            assert world.worker.watching == 1

    run(scenario())
