"""A replica that is killed and started again, and a store that goes away and comes back empty."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from chassis.errors import FairleadError, Unavailable
from signalling.launch import CancelReason, LaunchCancelled, LaunchEvent, LaunchState
from signalling.launch_errors import LaunchElsewhere
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
    told,
)
from tests.fakes.virtual_time import run, settle
from tests.unit.signalling.test_launch_faults import POINTS

pytestmark = pytest.mark.timeout(20)


@pytest.mark.parametrize("killed", [False, True])
def test_a_running_command_is_followed_after_a_restart(killed: bool) -> None:
    async def scenario() -> None:
        world = World()
        async with world.room(killed=killed) as room:
            launch = await room.launcher.start(TENANT, request(), None)
            await settle(100)
            running = await room.launcher.get(TENANT, launch.launch_id)
            world.worker.write(running.execution_id, b"1")
            seen = []
            async for event in room.launcher.watch(TENANT, launch.launch_id, None):
                seen.append(event)
                if event.type == "output":
                    break
        async with world.room() as room:
            watching = asyncio.ensure_future(room.watch(launch.launch_id, seen[-1].cursor))
            await settle(100)
            world.worker.write(running.execution_id, b"2")
            world.worker.finish(running.execution_id)
            rest = await watching
            assert contents(rest) == [b"2"]
            assert rest[-1].type == "exited"
            await room.launcher.cancel(TENANT, launch.launch_id)
            assert world.leftovers == []

    run(scenario())


@pytest.mark.parametrize("point", POINTS)
def test_a_launch_whose_steps_were_not_done_is_undone_after_a_restart(point: str) -> None:
    async def scenario() -> None:
        world = World()
        world.faults.hold(point)
        async with world.room(killed=True) as room:
            launch = await room.launcher.start(TENANT, request(offer=OFFER), None)
            await settle(100)
        world.faults.clear(point)
        async with world.room() as room:
            events = await room.watch(launch.launch_id)
            assert failure(events).reason == "signalling_restarted"
            assert ends(events) == 1
            assert world.leftovers == []

    run(scenario())


@pytest.mark.parametrize("turns", range(0, 60, 2))
def test_a_watcher_across_a_kill_at_any_turn_gets_one_end(turns: int) -> None:
    async def scenario() -> None:
        world = World()
        world.worker.script = echo(b"1", b"2")
        seen: list[LaunchEvent] = []
        async with world.room(killed=True) as room:
            launch = await room.launcher.start(TENANT, request(offer=OFFER), None)

            async def watch() -> None:
                async for event in room.launcher.watch(TENANT, launch.launch_id, None):
                    seen.append(event)

            watching = asyncio.ensure_future(watch())
            await settle(turns)
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        async with world.room() as room:
            cursor = seen[-1].cursor if seen else None
            if not (seen and seen[-1].terminal):
                seen += (await room.watch(launch.launch_id, cursor))[1:]
            assert ends(seen) == 1
            output = sequences(seen)
            assert output == ([1, 2] if seen[-1].type == "exited" else output)
            assert len(set(output)) == len(output)
            await room.launcher.cancel(TENANT, launch.launch_id)
            assert world.leftovers == []

    run(scenario())


@pytest.mark.parametrize("command", [False, True])
def test_what_is_held_is_held_to_the_end_of_its_lease_after_a_restart(command: bool) -> None:
    async def scenario() -> None:
        world = World()
        world.worker.script = echo()
        changes: dict[str, object] = {} if command else {"command": None}
        async with world.room() as room:
            wanted = request(keep=True, lease=timedelta(seconds=60), **changes)
            launch = await room.launcher.start(TENANT, wanted, None)
            await asyncio.sleep(10)
        async with world.room() as room:
            await asyncio.sleep(40)
            assert (await room.launcher.get(TENANT, launch.launch_id)).held
            await room.launcher.renew(TENANT, launch.launch_id, timedelta(seconds=60))
            await asyncio.sleep(50)
            assert (await room.launcher.get(TENANT, launch.launch_id)).held
            await asyncio.sleep(11)
            ended = await room.launcher.get(TENANT, launch.launch_id)
            assert ended.released_at is not None
            assert world.leftovers == []
            last = (await room.watch(launch.launch_id))[-1]
            if command:
                assert last.type == "exited"
            else:
                assert told(last, LaunchCancelled).reason is CancelReason.LEASE_EXPIRED

    run(scenario())


def test_recovery_waits_for_the_store() -> None:
    async def scenario() -> None:
        world = World()
        async with world.room() as room:
            launch = await room.launcher.start(TENANT, request(command=None), None)
            await settle(100)
        world.store.away = True
        async with world.room() as room:
            await asyncio.sleep(30)
            with pytest.raises(FairleadError, match="Redis"):
                await room.launcher.get(TENANT, launch.launch_id)
            world.store.away = False
            await asyncio.sleep(5)
            assert room.mirror.live(launch.launch_id) is not None

    run(scenario())


def test_a_launch_is_refused_while_the_store_is_away_and_nothing_is_left() -> None:
    async def scenario() -> None:
        world = World()
        world.worker.script = echo()
        async with world.room() as room:
            world.store.away = True
            with pytest.raises(Unavailable, match="Redis"):
                await room.launcher.start(TENANT, request(), "key")
            assert world.faults.passed == []
            world.store.away = False
            launch = await room.launcher.start(TENANT, request(), "key")
            assert (await room.watch(launch.launch_id))[-1].type == "exited"

    run(scenario())


def test_a_record_whose_creation_was_not_confirmed_is_removed_or_run() -> None:
    async def scenario() -> None:
        world = World()
        world.worker.script = echo()
        create = world.store.create

        async def lost_answer(record: object) -> None:
            await create(record)  # type: ignore[arg-type]
            raise Unavailable("Redis is unavailable.", reason="redis_unavailable")

        async with world.room() as room:
            world.store.create = lost_answer  # type: ignore[method-assign]
            for key in ("one", "two"):
                with pytest.raises(Unavailable):
                    await room.launcher.start(TENANT, request(), key)
            world.store.create = create  # type: ignore[method-assign]
            launch = await room.launcher.start(TENANT, request(), "one")
            assert (await room.watch(launch.launch_id))[-1].type == "exited"
            await asyncio.sleep(5)
            assert [record.launch_id for record in world.store.records.values()] == [
                launch.launch_id
            ]

    run(scenario())


@pytest.mark.parametrize("lost", [False, True])
def test_a_launch_goes_on_while_the_store_is_away_and_is_written_afterwards(lost: bool) -> None:
    async def scenario() -> None:
        world = World()
        async with world.room() as room:
            launch = await room.launcher.start(TENANT, request(keep=True), None)
            await settle(100)
            world.store.away = True
            running = await room.launcher.get(TENANT, launch.launch_id)
            world.worker.write(running.execution_id, b"x")
            world.worker.finish(running.execution_id)
            events = await room.watch(launch.launch_id)
            assert events[-1].type == "exited"
            await asyncio.sleep(60)
            if lost:
                world.store.lose()
            world.store.away = False
            await asyncio.sleep(5)
            record = await world.store.get(TENANT, launch.launch_id)
            assert record is not None
            assert record.launch.state is LaunchState.EXITED
            kept = await world.store.after(launch.launch_id, 0, wait=0)
            assert [event.number for event in kept] == list(range(1, len(kept) + 1))
            assert kept[-1].terminal

    run(scenario())


def test_a_store_that_lost_everything_gets_quiet_launches_back() -> None:
    async def scenario() -> None:
        world = World()
        async with world.room() as room:
            launch = await room.launcher.start(TENANT, request(command=None), None)
            await asyncio.sleep(10)
            world.store.lose()
            await asyncio.sleep(5)
            assert await world.store.get(TENANT, launch.launch_id) is not None
            live = room.launches.live(TENANT, launch.launch_id)
            assert live is not None
            kept = await world.store.after(launch.launch_id, 0, wait=0)
            assert len(kept) == live.last_event

    run(scenario())


def test_another_replica_says_that_a_launch_is_elsewhere() -> None:
    async def scenario() -> None:
        world = World()
        async with world.room("one") as one, world.room("two") as two:
            launch = await one.launcher.start(TENANT, request(command=None), "key")
            await settle(100)
            assert (await two.launcher.get(TENANT, launch.launch_id)).held
            assert (await two.launcher.start(TENANT, request(command=None), "key")).launch_id
            with pytest.raises(LaunchElsewhere):
                await two.launcher.cancel(TENANT, launch.launch_id)
            with pytest.raises(LaunchElsewhere):
                await two.launcher.renew(TENANT, launch.launch_id, None)

    run(scenario())
