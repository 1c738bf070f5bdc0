"""Executions on fakes: one per key, one exit each, watchers that miss nothing."""

from __future__ import annotations

import asyncio
import signal
from datetime import UTC, datetime

import pytest

from chassis.errors import FairleadError
from chassis.ids import random_id
from fairlead_limits.table import DEFAULT_LEASE_SECONDS
from sandbox_worker.execution import (
    Command,
    Execution,
    Exit,
    ExitReason,
    Gap,
    OnFull,
    ProgramEnd,
    Stream,
    Usage,
)
from sandbox_worker.execution_errors import KeyConflict
from sandbox_worker.janitor import Janitor
from sandbox_worker.ports import KeptExecution
from sandbox_worker.run import Frame
from sandbox_worker.sandbox import Limits
from tests.fakes.execution_bench import Bench
from tests.fakes.sandbox_stores import MemoryJournal

pytestmark = pytest.mark.asyncio


async def test_output_then_one_exit() -> None:
    bench = Bench()
    execution = await bench.start(await bench.sandbox(), "print", "a", "b", "c")
    first, *batches, exit_ = await bench.frames(execution)
    assert isinstance(first, Execution)
    assert isinstance(exit_, Exit)
    seen = [record for batch in batches if isinstance(batch, list) for record in batch]
    assert [(record.sequence, record.content) for record in seen] == [
        (1, b"a"),
        (2, b"b"),
        (3, b"c"),
    ]
    assert (exit_.reason, exit_.code, exit_.last_sequence) == (ExitReason.EXITED, 0, 3)
    assert bench.journals.journals[execution.execution_id].exit == exit_
    assert bench.spans.spans[execution.execution_id].ends == [exit_]


async def test_the_span_reaches_the_program() -> None:
    bench = Bench()
    sandbox = await bench.sandbox()
    with pytest.raises(FairleadError):
        await bench.start(sandbox, "missing")
    ((execution_id, span),) = bench.spans.spans.items()
    assert len(span.ends) == 1
    assert isinstance(span.ends[0], FairleadError)
    assert bench.journals.journals[execution_id].removed


async def test_a_watcher_that_comes_before_the_output() -> None:
    bench = Bench()
    execution = await bench.start(await bench.sandbox(), "wait")
    watching = asyncio.create_task(bench.frames(execution))
    for number in range(5):
        bench.program(execution).emit(b"%d" % number, Stream.STDERR)
        await asyncio.sleep(0)
    bench.program(execution).emit(b"last")
    bench.program(execution).on_end(ProgramEnd(code=3))
    frames = await watching
    contents = [record.content for batch in frames[1:-1] for record in batch]  # type: ignore[union-attr]
    assert b"".join(contents) == b"01234last"
    assert isinstance(frames[-1], Exit)
    assert frames[-1].code == 3


async def test_the_same_key_for_another_command_is_refused() -> None:
    bench = Bench()
    sandbox = await bench.sandbox()
    first = await bench.start(sandbox, "wait", key="k")
    with pytest.raises(KeyConflict):
        await bench.start(sandbox, "other", key="k")
    again = await bench.start(sandbox, "wait", key="k")
    assert again.execution_id == first.execution_id


async def test_the_same_key_while_it_starts() -> None:
    bench = Bench()
    sandbox = await bench.sandbox()
    started = await asyncio.gather(*(bench.start(sandbox, "wait", key="k") for _ in range(4)))
    assert len({execution.execution_id for execution in started}) == 1
    assert len(bench.isolation.enclosures[sandbox.sandbox_id].programs) == 1
    await bench.sandboxes.close()
    await bench.executions.close()


async def test_a_run_that_is_left_while_it_starts_goes_on() -> None:
    bench = Bench()
    sandbox = await bench.sandbox()
    command = Command(arguments=("print", "a"))

    async def run() -> tuple[Execution, list[Frame]]:
        execution, frames = await bench.executions.run(
            tenant="t", key="k", sandbox_id=sandbox.sandbox_id, command=command, after=0
        )
        return execution, [frame async for frame in frames]

    left = asyncio.create_task(run())
    await asyncio.sleep(0)
    left.cancel()
    await asyncio.wait([left])
    assert left.cancelled()
    execution, frames = await run()
    assert list(bench.isolation.enclosures[sandbox.sandbox_id].programs) == [execution.execution_id]
    assert isinstance(frames[0], Execution)
    assert [isinstance(frame, Exit) for frame in frames] == [False, False, True]
    assert (await run())[0].execution_id == execution.execution_id


async def test_a_run_with_a_wrong_number_starts_nothing() -> None:
    bench = Bench()
    sandbox = await bench.sandbox()
    with pytest.raises(FairleadError) as caught:
        await bench.executions.run(
            tenant="t",
            key="k",
            sandbox_id=sandbox.sandbox_id,
            command=Command(arguments=("wait",)),
            after=-1,
        )
    assert caught.value.reason == "offset_invalid"
    assert bench.isolation.enclosures[sandbox.sandbox_id].programs == {}


@pytest.mark.parametrize(
    ("end", "reason"),
    [(ProgramEnd(), ExitReason.HOST_LOST), (ProgramEnd(signal=9), ExitReason.SIGNALLED)],
)
async def test_ends_that_nobody_asked_for(end: ProgramEnd, reason: ExitReason) -> None:
    bench = Bench()
    execution = await bench.start(await bench.sandbox(), "wait")
    bench.program(execution).on_end(end)
    exit_ = await bench.exit_of(execution)
    assert exit_.reason is reason
    assert exit_.signal == (9 if reason is ExitReason.SIGNALLED else None)


async def test_a_release_ends_what_runs_and_not_what_has_ended() -> None:
    bench = Bench()
    sandbox = await bench.sandbox()
    running, ended = await bench.start(sandbox, "wait"), await bench.start(sandbox, "fail", "4")
    assert (await bench.exit_of(ended)).code == 4
    await bench.sandboxes.release(tenant="t", sandbox_id=sandbox.sandbox_id)
    assert (await bench.exit_of(running)).reason is ExitReason.RELEASED
    assert (await bench.exit_of(ended)).reason is ExitReason.EXITED


async def test_what_ends_with_its_lease_is_released_whoever_hears_of_it_first() -> None:
    bench = Bench()
    sandbox = await bench.sandbox()
    first, second = await bench.start(sandbox, "wait"), await bench.start(sandbox, "wait")
    bench.program(first).on_end(ProgramEnd())
    assert (await bench.exit_of(first)).reason is ExitReason.HOST_LOST
    bench.clock.advance(DEFAULT_LEASE_SECONDS)
    bench.program(second).on_end(ProgramEnd())
    assert (await bench.exit_of(second)).reason is ExitReason.RELEASED


async def test_the_end_of_the_worker_loses_what_runs() -> None:
    bench = Bench()
    execution = await bench.start(await bench.sandbox(), "wait")
    await bench.sandboxes.close()
    await bench.executions.close()
    assert (await bench.exit_of(execution)).reason is ExitReason.HOST_LOST


async def test_a_time_limit() -> None:
    bench = Bench()
    execution = await bench.start(await bench.sandbox(), "wait", time_limit=0.01)
    exit_ = await bench.exit_of(execution)
    assert (exit_.reason, exit_.signal) == (ExitReason.TIMED_OUT, None)


async def test_a_full_disk_still_gives_one_true_exit() -> None:
    bench = Bench()
    execution = await bench.start(await bench.sandbox(), "wait")
    journal = bench.journals.journals[execution.execution_id]
    journal.full = True
    bench.program(execution).emit(b"lost")
    bench.program(execution).on_end(ProgramEnd(code=5))
    exit_ = await bench.exit_of(execution)
    assert (exit_.reason, exit_.code, exit_.last_sequence) == (ExitReason.EXITED, 5, 0)
    assert journal.exit is None
    janitor = Janitor(sandboxes=bench.sandboxes, executions=bench.executions)
    await janitor.sweep()
    journal.full = False
    await janitor.sweep()
    await janitor.sweep()
    assert journal.exit == exit_
    assert await bench.exit_of(execution) == exit_


async def test_each_round_removes_what_an_isolation_had_to_leave() -> None:
    bench = Bench()
    janitor = Janitor(sandboxes=bench.sandboxes, executions=bench.executions)
    for rounds in (1, 2):
        await janitor.sweep()
        assert bench.isolation.tidied == rounds


async def test_a_disk_without_room_for_a_journal() -> None:
    bench = Bench()
    sandbox = await bench.sandbox()
    bench.journals.full = True
    with pytest.raises(FairleadError) as caught:
        await bench.start(sandbox, "wait")
    assert caught.value.reason == "storage_unavailable"
    assert bench.isolation.enclosures[sandbox.sandbox_id].programs == {}


async def test_earlier_lives() -> None:
    lost, ended = MemoryJournal(), MemoryJournal()
    at = datetime(2026, 1, 1, tzinfo=UTC)
    exit_ = Exit(reason=ExitReason.EXITED, last_sequence=0, ended_at=at, code=1)
    first = Execution(random_id("exe"), "sbx", "t", ("a",), at)
    second = Execution(random_id("exe"), "sbx", "t", ("b",), at, exit_)
    bench = Bench(KeptExecution(first, lost), KeptExecution(second, ended))
    await bench.executions.recover()
    assert (await bench.exit_of(first)).reason is ExitReason.HOST_LOST
    assert lost.exit is not None
    assert await bench.exit_of(second) == exit_
    for use in (
        bench.executions.signal(tenant="t", execution_id=first.execution_id, number=15),
        bench.executions.write_stdin(
            tenant="t", execution_id=first.execution_id, offset=0, content=b"x", close=False
        ),
    ):
        with pytest.raises(FairleadError) as caught:
            await use
        assert caught.value.reason in ("execution_ended", "stdin_closed")


async def test_ended_executions_are_kept_for_a_while() -> None:
    bench = Bench(most_kept=2)
    sandbox = await bench.sandbox()
    running = await bench.start(sandbox, "wait")
    made = []
    for number in range(4):
        made.append(await bench.start(sandbox, "fail", str(number)))
        await bench.exit_of(made[-1])
        await asyncio.sleep(0.005)
    removed = [bench.journals.journals[each.execution_id].removed for each in made]
    assert removed == [True, True, False, False]
    bench.clock.advance(61)
    await bench.executions.tidy()
    assert all(bench.journals.journals[each.execution_id].removed for each in made)
    assert not bench.journals.journals[running.execution_id].removed
    with pytest.raises(FairleadError):
        bench.executions.get(tenant="t", execution_id=made[-1].execution_id)
    bench.executions.get(tenant="t", execution_id=running.execution_id)


async def test_no_more_than_allowed_and_none_while_draining() -> None:
    bench = Bench()
    sandbox = await bench.sandbox()
    for _ in range(4):
        await bench.start(sandbox, "wait")
    with pytest.raises(FairleadError) as caught:
        await bench.start(sandbox, "wait")
    assert caught.value.reason == "sandbox_full"
    draining = asyncio.create_task(bench.executions.drain())
    await asyncio.sleep(0)
    with pytest.raises(FairleadError) as caught:
        await bench.start(sandbox, "wait")
    assert caught.value.reason == "worker_draining"
    assert not draining.done()
    await bench.sandboxes.close()
    await draining


async def test_stdin_is_written_once() -> None:
    bench = Bench()
    execution = await bench.start(await bench.sandbox(), "cat", stdin=True)

    async def write(offset: int, content: bytes, *, close: bool = False) -> int:
        return await bench.executions.write_stdin(
            tenant="t",
            execution_id=execution.execution_id,
            offset=offset,
            content=content,
            close=close,
        )

    assert await write(0, b"abcdefgh") == 8
    assert list(await asyncio.gather(write(0, b"abcdefgh"), write(4, b"efghij"))) == [8, 10]
    with pytest.raises(FairleadError) as caught:
        await write(11, b"")
    assert caught.value.fields == {"expected_offset": "10"}
    assert await write(10, b"", close=True) == 10
    frames = await bench.frames(execution)
    contents = [record.content for batch in frames[1:-1] for record in batch]  # type: ignore[union-attr]
    assert b"".join(contents) == b"abcdefghij"
    assert await write(2, b"cd", close=True) == 10
    with pytest.raises(FairleadError) as caught:
        await write(10, b"more")
    assert caught.value.reason == "stdin_closed"


async def test_what_it_used_and_the_limit_that_ended_it() -> None:
    bench = Bench()
    sandbox = await bench.sandbox()
    usage = Usage(cpu_seconds=0.5, peak_memory_bytes=1024)
    killed = await bench.start(sandbox, "wait")
    bench.program(killed).on_end(ProgramEnd(signal=9, usage=usage, breach=ExitReason.OUT_OF_MEMORY))
    exit_ = await bench.exit_of(killed)
    assert (exit_.reason, exit_.code, exit_.signal) == (ExitReason.OUT_OF_MEMORY, None, 9)
    assert exit_.usage == usage
    failed = await bench.start(sandbox, "wait")
    bench.program(failed).on_end(ProgramEnd(code=2, breach=ExitReason.LIMIT_PIDS))
    exit_ = await bench.exit_of(failed)
    assert (exit_.reason, exit_.code, exit_.usage) == (ExitReason.LIMIT_PIDS, 2, None)


async def test_the_sandbox_bounds_the_time_of_each_execution() -> None:
    bench = Bench()
    sandbox = await bench.sandbox(limits=Limits(wall_seconds=0.02))
    for time_limit in (None, 60.0):
        execution = await bench.start(sandbox, "wait", time_limit=time_limit)
        assert (await bench.exit_of(execution)).reason is ExitReason.TIMED_OUT


async def test_the_grace_before_it_is_killed() -> None:
    bench = Bench()
    sandbox = await bench.sandbox()
    execution = await bench.executions.start(
        tenant="t",
        key="",
        sandbox_id=sandbox.sandbox_id,
        command=Command(arguments=("stubborn",), timeout=0.001, grace=0.001),
    )
    program = bench.program(execution)
    assert (await bench.exit_of(execution)).reason is ExitReason.TIMED_OUT
    assert program.signals == [signal.SIGTERM, signal.SIGKILL]
    with pytest.raises(FairleadError) as caught:
        await bench.executions.start(
            tenant="t",
            key="",
            sandbox_id=sandbox.sandbox_id,
            command=Command(arguments=("wait",), grace=601),
        )
    assert caught.value.reason == "grace_invalid"


async def test_the_journal_is_asked_for_what_the_command_and_the_sandbox_say() -> None:
    bench = Bench()
    sandbox = await bench.sandbox(limits=Limits(output_bytes=2**20))
    execution = await bench.executions.start(
        tenant="t",
        key="",
        sandbox_id=sandbox.sandbox_id,
        command=Command(arguments=("print", "a"), on_full=OnFull.BLOCK),
    )
    journal = bench.journals.journals[execution.execution_id]
    assert (journal.on_full, journal.most_bytes) == (OnFull.BLOCK, 2**20)


async def test_a_gap_is_passed_on_in_its_place() -> None:
    bench = Bench()
    execution = await bench.start(await bench.sandbox(), "wait")
    journal = bench.journals.journals[execution.execution_id]
    journal.gap = Gap(first=1, last=4, size=100)
    frames = bench.executions.watch(tenant="t", execution_id=execution.execution_id, after=0)
    assert isinstance(await anext(frames), Execution)
    assert await anext(frames) == journal.gap
    bench.program(execution).on_end(ProgramEnd(code=0))
    assert isinstance(await anext(frames), Exit)
    assert journal.readers == 1
    await frames.aclose()
    assert journal.readers == 0


async def test_executions_of_a_sandbox_in_pages() -> None:
    bench = Bench()
    sandbox = await bench.sandbox()
    made = sorted([(await bench.start(sandbox, "wait")).execution_id for _ in range(3)])
    page = bench.executions.page
    first, token = page(tenant="t", sandbox_id=sandbox.sandbox_id, size=2, after="")
    rest, end = page(tenant="t", sandbox_id=sandbox.sandbox_id, size=0, after=token)
    assert [each.execution_id for each in first + rest] == made
    assert end == ""
    for tenant, sandbox_id in (("other", sandbox.sandbox_id), ("t", "sbx_none")):
        with pytest.raises(FairleadError) as caught:
            page(tenant=tenant, sandbox_id=sandbox_id, size=0, after="")
        assert caught.value.reason == "sandbox_not_found"
