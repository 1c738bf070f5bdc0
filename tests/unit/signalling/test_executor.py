"""Executions in the sandboxes of launches, from the caller's side."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from chassis.errors import FairleadError, NotFound, Unavailable
from signalling.batch import Batch, BatchState
from signalling.execution import Command, Execution, Exit, OutputGap, OutputRecord, TerminalSize
from signalling.file import ReadFile
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
            assert (
                max(len(key) for _, key in world.worker.by_key) <= 255
            )  # a worker takes no longer one

    run(scenario())


def test_a_launch_whose_worker_was_restarted_names_its_workspace() -> None:
    async def scenario() -> None:
        world = World()
        async with world.room() as room:
            launch = await room.launcher.start(TENANT, request(command=None), None)
            await room.until(launch.launch_id, "provisioned")
            launch = await room.launcher.get(TENANT, launch.launch_id)
            for point in ("executions.start:before", "executions.run:before"):
                gone = NotFound("There is no such sandbox.", reason="sandbox_not_found")
                world.faults.refuse(point, gone)
            running = room.executor.run(TENANT, launch.sandbox_id, COMMAND, None, 0)
            for starting in (
                room.executor.start(TENANT, launch.sandbox_id, COMMAND, None),
                anext(running),
            ):
                with pytest.raises(NotFound) as refused:
                    await starting
                assert refused.value.reason == "sandbox_not_found"
                way = f"fairlead launch --workspace {launch.workspace_id} "
                assert way in refused.value.remedy

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


def test_a_gap_is_told_once_across_broken_streams() -> None:
    async def scenario() -> None:
        world = World()
        async with world.room() as room:
            execution = await room.executor.start(TENANT, await held(room), COMMAND, None)
            world.worker.write(execution.execution_id, b"1", b"2", b"3")
            program = world.worker.programs[execution.execution_id]
            program.dropped, program.records = 2, program.records[2:]
            watching = asyncio.ensure_future(collect(room, execution.execution_id))
            await settle()
            world.worker.cut_streams()
            await asyncio.sleep(1)
            world.worker.finish(execution.execution_id)
            _, gap, record, exit_ = await watching
            assert gap == OutputGap(1, 2, 20)
            assert isinstance(record, OutputRecord)
            assert record.sequence == 3
            assert isinstance(exit_, Exit)

    run(scenario())


def test_a_batch_runs_on_the_host_of_its_sandbox_once_per_key() -> None:
    async def scenario() -> None:
        world = World()
        world.worker.script = lambda worker, execution_id: worker.finish(execution_id, code=4)
        async with world.room() as room:
            sandbox_id = await held(room)
            batch = Batch((COMMAND, ReadFile(b"a")))
            ran, read = await room.executor.run_batch(TENANT, sandbox_id, batch, "k")
            assert ran.state is BatchState.FAILED
            assert read.file is not None
            assert ran.execution is not None
            again = await room.executor.run_batch(TENANT, sandbox_id, batch, "k")
            assert again[0].execution == ran.execution
            frames = await collect(room, ran.execution.execution_id)
            assert isinstance(frames[-1], Exit)
            with pytest.raises(SandboxNotFound):
                await room.executor.run_batch("other", sandbox_id, batch, None)

    run(scenario())


@pytest.mark.parametrize(
    ("items", "reason"),
    [
        ((), "batch_invalid"),
        ((COMMAND,) * 65, "batch_invalid"),
        ((Command(()),), "command_invalid"),
        ((Command(("cat",), stdin=True),), "command_invalid"),
        ((Command(("cat",), terminal=TerminalSize(1, 1)),), "command_invalid"),
        ((Command(("cat",), grace=timedelta(hours=1)),), "grace_invalid"),
    ],
)
def test_batches_that_no_sandbox_could_run(items: tuple[Command, ...], reason: str) -> None:
    with pytest.raises(FairleadError) as caught:
        Batch(items).check()
    assert caught.value.reason == reason


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


async def run_all(
    room: Room, sandbox_id: str, key: str | None = None, after: int = 0, tenant: str = TENANT
) -> list[object]:
    stream = room.executor.run(tenant, sandbox_id, COMMAND, key, after)
    return [frame async for frame in stream]


def test_a_run_starts_once_and_survives_broken_streams() -> None:
    async def scenario() -> None:
        world = World()
        async with world.room() as room:
            sandbox_id = await held(room)
            running = asyncio.ensure_future(run_all(room, sandbox_id, "k"))
            await settle()
            (execution_id,) = world.worker.programs
            for number in range(4):
                world.worker.write(execution_id, b"%d" % number)
                await settle()
                world.worker.cut_streams()
                await asyncio.sleep(1)
            world.worker.finish(execution_id, code=7)
            first, *records, exit_ = await running
            assert isinstance(first, Execution)
            assert [r.content for r in records if isinstance(r, OutputRecord)] == [
                b"%d" % number for number in range(4)
            ]
            assert len(records) == 4
            assert isinstance(exit_, Exit)
            assert exit_.code == 7
            again = await run_all(room, sandbox_id, "k", 2)
            assert isinstance(again[0], Execution)
            assert again[0].execution_id == execution_id
            assert [type(frame) for frame in again[1:]] == [OutputRecord, OutputRecord, Exit]
            assert world.worker.watching == 0
            started = await room.executor.start(TENANT, sandbox_id, COMMAND, "k")
            assert started.execution_id == execution_id
            assert await collect(room, execution_id) == [again[0], *records, exit_]

    run(scenario())


def test_a_run_that_cannot_start_says_why_before_any_frame() -> None:
    async def scenario() -> None:
        world = World()
        async with world.room() as room:
            sandbox_id = await held(room)
            for call, reason in (
                (run_all(room, sandbox_id, tenant="other"), "sandbox_not_found"),
                (run_all(room, "*"), "sandbox_not_found"),
                (run_all(room, sandbox_id, "k" * 256), "idempotency_key_invalid"),
                (run_all(room, sandbox_id, None, -1), "offset_invalid"),
            ):
                with pytest.raises(FairleadError) as raised:
                    await call
                assert raised.value.reason == reason
            assert world.worker.programs == {}
            world.faults.refuse("executions.start:after", Unavailable("Away.", reason="away"))
            with pytest.raises(Unavailable, match="Away"):
                await run_all(room, sandbox_id, "k")
            world.faults.clear("executions.start:after")
            world.worker.finish(*world.worker.programs)
            assert len(await run_all(room, sandbox_id, "k")) == 2

    run(scenario())


def test_a_run_ends_with_a_drain_and_with_who_leaves_it() -> None:
    async def scenario() -> None:
        world = World()
        async with world.room() as room:
            sandbox_id = await held(room)
            left = asyncio.ensure_future(run_all(room, sandbox_id))
            await settle()
            assert world.worker.watching == 1
            left.cancel()
            await asyncio.wait([left])
            assert world.worker.watching == 0
            drained = asyncio.ensure_future(run_all(room, sandbox_id))
            await settle()
            room.executor.drain()
            with pytest.raises(Draining):
                await drained
            assert [program.execution.exit for program in world.worker.programs.values()] == [
                None,
                None,
            ]

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


def test_executions_of_a_sandbox_are_listed_in_pages_and_for_their_tenant_alone() -> None:
    async def scenario() -> None:
        world = World()
        async with world.room() as room:
            sandbox_id = await held(room)
            ids = sorted(
                [
                    (await room.executor.start(TENANT, sandbox_id, COMMAND, None)).execution_id
                    for _ in range(3)
                ]
            )
            first, token = await room.executor.list(TENANT, sandbox_id, 2, "")
            rest, end = await room.executor.list(TENANT, sandbox_id, 2, token)
            assert [each.execution_id for each in (*first, *rest)] == ids
            assert end == ""
            for tenant, wanted, size, after, reason in (
                ("other", sandbox_id, 0, "", "sandbox_not_found"),
                (TENANT, "sbx_" + "z" * 26, 0, "", "sandbox_not_found"),
                (TENANT, sandbox_id, 101, "", "page_size_invalid"),
                (TENANT, sandbox_id, 0, "x", "page_token_invalid"),
            ):
                with pytest.raises(FairleadError) as caught:
                    await room.executor.list(tenant, wanted, size, after)
                assert caught.value.reason == reason

    run(scenario())
