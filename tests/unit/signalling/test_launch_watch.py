"""Watchers: every event and every record exactly once, whatever breaks in between."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chassis.errors import Unavailable
from signalling.cursor import Cursor
from signalling.execution import OutputGap
from signalling.launch import LaunchEvent
from signalling.launch_errors import CursorGone, CursorInvalid
from signalling.launch_output import OutputUnavailable
from tests.fakes.launch_room import TENANT, Room, World, contents, echo, ends, request
from tests.fakes.virtual_time import run, settle

LAUNCH = "lch_" + "a" * 26


async def ended_launch(room: Room, **changes: object) -> str:
    launch = await room.launcher.start(TENANT, request(**changes), None)
    await room.watch(launch.launch_id)
    return launch.launch_id


@given(control=st.integers(0, 10**17), output=st.integers(0, 10**17))
def test_a_cursor_is_read_as_it_was_written(control: int, output: int) -> None:
    cursor = Cursor(control, output)
    assert Cursor.parse(cursor.text(LAUNCH), LAUNCH) == cursor
    with pytest.raises(CursorInvalid):
        Cursor.parse(cursor.text(LAUNCH), "lch_" + "b" * 26)


@given(st.text(max_size=60) | st.from_regex(r"[A-Za-z0-9_-]{0,60}", fullmatch=True))
def test_any_other_text_is_no_cursor(text: str) -> None:
    with pytest.raises(CursorInvalid):
        Cursor.parse(text, LAUNCH)


@pytest.mark.parametrize("stored", [False, True])
def test_a_watcher_resumes_after_every_event(stored: bool) -> None:
    async def scenario() -> None:
        world = World()
        world.worker.script = echo(b"1", b"2", b"3")
        async with world.room() as room:
            launch_id = await ended_launch(room, keep=not stored)
            await room.mirror.settle()
            assert (room.mirror.live(launch_id) is None) == stored
            whole = await room.watch(launch_id)
            for number, event in enumerate(whole):
                rest = await room.watch(launch_id, event.cursor)
                assert rest[0].type == "snapshot"
                assert rest[0].cursor == event.cursor
                assert rest[1:] == whole[number + 1 :]

    run(scenario())


def test_many_watchers_of_all_speeds_get_the_same() -> None:
    async def scenario() -> None:
        world = World()
        async with world.room() as room:
            launch = await room.launcher.start(TENANT, request(), None)

            async def slow(pause: float) -> list[LaunchEvent]:
                seen = []
                async with aclosing(room.launcher.watch(TENANT, launch.launch_id, None)) as events:
                    async for event in events:
                        seen.append(event)
                        await asyncio.sleep(pause)
                return seen

            watching = [asyncio.ensure_future(slow(pause)) for pause in (0, 0.01, 1, 10)]
            await settle()
            execution_id = (await room.launcher.get(TENANT, launch.launch_id)).execution_id
            written = [b"%d" % number for number in range(50)]
            for content in written:
                world.worker.write(execution_id, content)
                await asyncio.sleep(0.1)
            world.worker.finish(execution_id)
            for seen in await asyncio.gather(*watching):
                assert contents(seen) == written
                assert seen[-1].type == "exited"
                assert ends(seen) == 1
        assert world.worker.watching == 0

    run(scenario())


@pytest.mark.parametrize("turns", range(12))
def test_a_record_that_comes_while_steps_are_told_is_not_lost(turns: int) -> None:
    async def scenario() -> None:
        world = World()
        world.worker.script = echo(b"only")
        async with world.room() as room:
            launch_id = await ended_launch(room)
            await room.mirror.settle()
            seen = []
            async with aclosing(room.launcher.watch(TENANT, launch_id, None)) as events:
                async for event in events:
                    seen.append(event)
                    for _ in range(turns):
                        await asyncio.sleep(0)
            assert contents(seen) == [b"only"]
            assert seen[-1].type == "exited"

    run(scenario())


def test_a_broken_stream_loses_and_doubles_nothing() -> None:
    async def scenario() -> None:
        world = World()
        async with world.room() as room:
            launch = await room.launcher.start(TENANT, request(), None)
            watching = asyncio.ensure_future(room.watch(launch.launch_id))
            await settle()
            execution_id = (await room.launcher.get(TENANT, launch.launch_id)).execution_id
            for number in range(10):
                world.worker.write(execution_id, b"%d" % number)
                world.worker.cut_streams()
                await settle()
                if number % 3 == 0:
                    await asyncio.sleep(5)
            world.worker.finish(execution_id)
            assert contents(await watching) == [b"%d" % number for number in range(10)]

    run(scenario())


def test_a_watcher_that_is_left_early_leaves_nothing_open() -> None:
    async def scenario() -> None:
        world = World()
        async with world.room() as room:
            launch = await room.launcher.start(TENANT, request(), None)
            await settle()
            execution_id = (await room.launcher.get(TENANT, launch.launch_id)).execution_id
            async with aclosing(room.launcher.watch(TENANT, launch.launch_id, None)) as events:
                world.worker.write(execution_id, b"x")
                async for event in events:
                    if event.type == "output":
                        break
            await settle()
            assert world.worker.watching == 1
            assert len([task for task in asyncio.all_tasks() if not task.done()]) < 12

    run(scenario())


def test_the_terminal_event_waits_for_the_output_of_a_worker_that_is_away() -> None:
    async def scenario() -> None:
        world = World()
        world.worker.script = echo(b"1", b"2")
        async with world.room() as room:
            launch_id = await ended_launch(room)
            world.faults.refuse(
                "executions.watch:before",
                Unavailable("It is away.", reason="sandbox_worker_unavailable"),
            )
            watching = asyncio.ensure_future(room.watch(launch_id))
            await asyncio.sleep(10)
            assert not watching.done()
            world.faults.clear("executions.watch:before")
            assert contents(await watching) == [b"1", b"2"]
            world.faults.refuse(
                "executions.watch:before",
                Unavailable("It is away.", reason="sandbox_worker_unavailable"),
            )
            with pytest.raises(OutputUnavailable):
                await room.watch(launch_id)

    run(scenario())


def test_output_that_is_gone_is_said_to_be_gone() -> None:
    async def scenario() -> None:
        world = World()
        world.worker.script = echo(b"1", b"2", b"3")
        async with world.room() as room:
            launch_id = await ended_launch(room)
            whole = await room.watch(launch_id)
            first = next(event for event in whole if event.type == "output")
            [program] = world.worker.programs.values()
            program.dropped, program.records = 2, program.records[2:]
            with pytest.raises(CursorGone):
                await room.watch(launch_id, first.cursor)
            rest = await room.watch(launch_id)
            assert contents(rest) == [b"3"]
            (gap,) = (event for event in rest if event.type == "gap")
            assert gap.event == OutputGap(1, 2, 20)
            assert [event.type for event in await room.watch(launch_id, gap.cursor)][-2:] == [
                "output",
                "exited",
            ]
            world.worker.programs.clear()
            with pytest.raises(CursorGone):
                await room.watch(launch_id)
            assert await room.watch(launch_id, whole[-1].cursor)

    run(scenario())


@pytest.mark.parametrize("position", [Cursor(99, 0), Cursor(7, 9), Cursor(99, 9)])
def test_a_cursor_ahead_of_the_launch_is_refused(position: Cursor) -> None:
    async def scenario() -> None:
        world = World()
        world.worker.script = echo(b"1")
        async with world.room() as room:
            launch_id = await ended_launch(room, keep=True)
            with pytest.raises(CursorInvalid):
                await room.watch(launch_id, position.text(launch_id))
            await room.launcher.cancel(TENANT, launch_id)
            await room.mirror.settle()
            with pytest.raises(CursorInvalid):
                await room.watch(launch_id, position.text(launch_id))

    run(scenario())


def test_events_that_the_store_dropped_are_gone() -> None:
    async def scenario() -> None:
        world = World()
        world.worker.script = echo()
        async with world.room() as room:
            launch_id = await ended_launch(room)
            await room.mirror.settle()
            world.store.events.clear()
            with pytest.raises(CursorGone):
                await room.watch(launch_id)

    run(scenario())


def test_another_replica_follows_a_launch_through_the_store() -> None:
    async def scenario() -> None:
        world = World()
        async with world.room("one") as one, world.room("two") as two:
            launch = await one.launcher.start(TENANT, request(lease=timedelta(hours=1)), None)
            watching = asyncio.ensure_future(two.watch(launch.launch_id))
            await settle()
            execution_id = (await one.launcher.get(TENANT, launch.launch_id)).execution_id
            world.worker.write(execution_id, b"x")
            await asyncio.sleep(60)
            world.worker.finish(execution_id)
            events = await watching
            assert contents(events) == [b"x"]
            assert [event.type for event in events] == [
                event.type for event in await one.watch(launch.launch_id)
            ]

    run(scenario())
