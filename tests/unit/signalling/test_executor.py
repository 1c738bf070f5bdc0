"""Executions in the sandboxes of launches, from the caller's side."""

from __future__ import annotations

import asyncio

import pytest

from chassis.errors import FairleadError, Unavailable
from signalling.execution import Command, Execution, Exit, OutputRecord
from signalling.launch_errors import Draining, ExecutionNotFound, HostLost, SandboxNotFound
from tests.fakes.launch_room import TENANT, Room, World, request
from tests.fakes.virtual_time import run, settle

COMMAND = Command(("cat",))


async def held(room: Room) -> str:
    launch = await room.launcher.start(TENANT, request(command=None), None)
    await room.until(launch.launch_id, "provisioned")
    return (await room.launcher.get(TENANT, launch.launch_id)).sandbox_id


async def collect(room: Room, execution_id: str, after: int = 0) -> list[object]:
    return [frame async for frame in room.executor.watch(TENANT, execution_id, after)]


def test_the_same_key_gives_the_same_execution() -> None:
    async def scenario() -> None:
        world = World()
        async with world.room() as room:
            sandbox_id = await held(room)
            one = await room.executor.start(TENANT, sandbox_id, COMMAND, "k")
            assert await room.executor.start(TENANT, sandbox_id, COMMAND, "k") == one
            other = await room.executor.start(TENANT, sandbox_id, COMMAND, None)
            assert other.execution_id != one.execution_id
            await room.executor.start(TENANT, sandbox_id, COMMAND, "k" * 255)
            assert max(len(key) for _, key in world.worker.by_key) == 256  # the worker's limit

    run(scenario())


def test_output_survives_broken_streams_and_begins_once() -> None:
    async def scenario() -> None:
        world = World()
        async with world.room() as room:
            execution = await room.executor.start(TENANT, await held(room), COMMAND, None)
            watching = asyncio.ensure_future(collect(room, execution.execution_id))
            for number in range(6):
                await settle()
                world.worker.write(execution.execution_id, b"%d" % number)
                world.worker.cut_streams()
                await asyncio.sleep(1)
            world.worker.finish(execution.execution_id, code=7)
            frames = await watching
            assert isinstance(frames[0], Execution)
            assert [f.content for f in frames if isinstance(f, OutputRecord)] == [
                b"%d" % number for number in range(6)
            ]
            assert isinstance(frames[-1], Exit)
            assert frames[-1].code == 7
            assert len(frames) == 8
            rest = await collect(room, execution.execution_id, 4)
            assert [f.sequence for f in rest if isinstance(f, OutputRecord)] == [5, 6]
            assert world.worker.watching == 0

    run(scenario())


def test_a_host_that_stays_away_ends_the_stream() -> None:
    async def scenario() -> None:
        world = World()
        async with world.room() as room:
            execution = await room.executor.start(TENANT, await held(room), COMMAND, None)
            watching = asyncio.ensure_future(collect(room, execution.execution_id))
            await settle()
            world.faults.refuse("executions.watch:before", Unavailable("Away.", reason="away"))
            world.worker.cut_streams()
            with pytest.raises(HostLost):
                await watching
            with pytest.raises(Unavailable, match="Away"):
                await collect(room, execution.execution_id)

    run(scenario())


def test_a_drain_ends_streams() -> None:
    async def scenario() -> None:
        world = World()
        async with world.room() as room:
            execution = await room.executor.start(TENANT, await held(room), COMMAND, None)
            watching = asyncio.ensure_future(collect(room, execution.execution_id))
            await settle()
            room.executor.drain()
            with pytest.raises(Draining):
                await watching

    run(scenario())


def test_foreign_and_unknown_ones_are_not_found() -> None:
    async def scenario() -> None:
        world = World()
        async with world.room() as room:
            sandbox_id = await held(room)
            execution = await room.executor.start(TENANT, sandbox_id, COMMAND, None)
            for tenant, wanted in (
                ("other", sandbox_id),
                (TENANT, "sbx_" + "a" * 26),
                (TENANT, "*"),
            ):
                with pytest.raises(SandboxNotFound):
                    await room.executor.start(tenant, wanted, COMMAND, None)
            for tenant, wanted in (
                ("other", execution.execution_id),
                (TENANT, "exe_" + "a" * 26),
                (TENANT, "../x"),
            ):
                with pytest.raises(ExecutionNotFound):
                    await room.executor.get(tenant, wanted)
                with pytest.raises(ExecutionNotFound):
                    await room.executor.signal(tenant, wanted, 9)
                with pytest.raises(ExecutionNotFound):
                    await room.executor.write_stdin(tenant, wanted, 0, b"x", False)

    run(scenario())


def test_numbers_out_of_range_are_refused() -> None:
    async def scenario() -> None:
        world = World()
        async with world.room() as room:
            execution_id = (
                await room.executor.start(TENANT, await held(room), COMMAND, None)
            ).execution_id
            for call in (
                room.executor.signal(TENANT, execution_id, 0),
                room.executor.signal(TENANT, execution_id, 65),
                room.executor.write_stdin(TENANT, execution_id, -1, b"", False),
                room.executor.write_stdin(TENANT, execution_id, 0, b"x" * (256 * 1024 + 1), False),
                collect(room, execution_id, -1),
            ):
                with pytest.raises(FairleadError) as raised:
                    await call
                assert raised.value.kind.value == "invalid_argument"

    run(scenario())


def test_another_replica_finds_executions_and_a_store_that_is_away_stops_none() -> None:
    async def scenario() -> None:
        world = World()
        async with world.room("one") as one, world.room("two") as two:
            sandbox_id = await held(one)
            await one.mirror.settle()
            execution = await two.executor.start(TENANT, sandbox_id, COMMAND, None)
            assert await one.executor.get(TENANT, execution.execution_id) == execution
            world.store.away = True
            unnoticed = await one.executor.start(TENANT, sandbox_id, COMMAND, None)
            assert await one.executor.get(TENANT, unnoticed.execution_id) == unnoticed
            with pytest.raises(FairleadError, match="Redis"):
                await two.executor.get(TENANT, unnoticed.execution_id)
            world.store.away = False

    run(scenario())
