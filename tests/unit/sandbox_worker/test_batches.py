"""Batches on fakes: one outcome for each piece, once per key, whoever leaves or releases."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from chassis.errors import FairleadError
from fairlead_limits.table import BATCH_ITEMS
from sandbox_worker.batch import (
    MOST_FILE_BYTES,
    TAIL_BYTES,
    Batch,
    BatchOutcome,
    BatchState,
)
from sandbox_worker.execution import Command, ExitReason, ProgramEnd, Stream, TerminalSize
from sandbox_worker.execution_errors import CommandInvalid
from sandbox_worker.file import FileOperation, FileOutcome, MakeDirectory, ReadFile, WriteFile
from sandbox_worker.sandbox import Sandbox
from tests.fakes.execution_bench import Bench

pytestmark = pytest.mark.asyncio

OK, FAILED, SKIPPED = BatchState.SUCCEEDED, BatchState.FAILED, BatchState.SKIPPED


def command(*arguments: str) -> Command:
    return Command(arguments=arguments)


async def run(
    bench: Bench,
    sandbox: Sandbox,
    *items: Command | FileOperation,
    key: str = "",
    go_on: bool = False,
) -> Sequence[BatchOutcome]:
    batch = Batch(items=items, continue_on_failure=go_on)
    return await bench.batches.run(tenant="t", key=key, sandbox_id=sandbox.sandbox_id, batch=batch)


def states(outcomes: Sequence[BatchOutcome]) -> list[BatchState]:
    return [outcome.state for outcome in outcomes]


async def until_running(bench: Bench, sandbox: Sandbox, count: int) -> None:
    """Wait until so many programs were started in a sandbox."""
    programs = bench.isolation.enclosures[sandbox.sandbox_id].programs
    while len(programs) < count:  # noqa: ASYNC110 - on fakes every step is one turn of the loop
        await asyncio.sleep(0)


async def test_one_outcome_for_each_in_order() -> None:
    bench = Bench()
    write = WriteFile(path=b"a", content=b"x")
    read = ReadFile(path=b"a")
    bench.files.answers[read] = FileOutcome(content=b"x")
    outcomes = await run(bench, await bench.sandbox(), command("print", "a", "b"), write, read)
    assert states(outcomes) == [OK, OK, OK]
    assert outcomes[0].stdout == b"ab"
    assert outcomes[0].execution is not None
    assert outcomes[0].execution.exit is not None
    assert outcomes[0].execution.exit.code == 0
    assert not outcomes[0].truncated
    assert outcomes[2].file == FileOutcome(content=b"x")
    assert bench.files.asked == [write, read]


@pytest.mark.parametrize(("go_on", "last"), [(False, SKIPPED), (True, OK)])
async def test_what_follows_a_failure(go_on: bool, last: BatchState) -> None:
    bench = Bench()
    sandbox = await bench.sandbox()
    outcomes = await run(bench, sandbox, command("fail", "3"), command("print"), go_on=go_on)
    assert states(outcomes) == [FAILED, last]
    assert outcomes[0].execution is not None
    assert outcomes[0].failure is None


async def test_what_cannot_be_done_is_its_own_outcome() -> None:
    bench = Bench()
    sandbox = await bench.sandbox()
    make = MakeDirectory(path=b"..")
    bench.files.answers[make] = CommandInvalid("not there")
    outcomes = await run(bench, sandbox, command("missing"), make, command("print"), go_on=True)
    assert states(outcomes) == [FAILED, FAILED, OK]
    assert [outcome.failure and outcome.failure.reason for outcome in outcomes] == [
        "command_not_found",
        "command_invalid",
        None,
    ]


async def test_the_end_of_a_long_output() -> None:
    bench = Bench()
    sandbox = await bench.sandbox()
    running = asyncio.create_task(run(bench, sandbox, command("wait")))
    await until_running(bench, sandbox, 1)
    (program,) = bench.isolation.enclosures[sandbox.sandbox_id].programs.values()
    program.emit(b"a" * TAIL_BYTES)
    program.emit(b"b" * 100)
    program.emit(b"e", Stream.STDERR)
    program.on_end(ProgramEnd(code=0))
    (outcome,) = await running
    assert outcome.stdout == b"a" * (TAIL_BYTES - 100) + b"b" * 100
    assert outcome.stderr == b"e"
    assert outcome.truncated


async def test_files_that_are_too_large_together() -> None:
    bench = Bench()
    large = FileOutcome(content=b"x" * (MOST_FILE_BYTES // 2 + 1))
    reads = [ReadFile(path=b"a"), ReadFile(path=b"b")]
    bench.files.answers.update(dict.fromkeys(reads, large))
    outcomes = await run(bench, await bench.sandbox(), *reads)
    assert states(outcomes) == [OK, FAILED]
    assert outcomes[1].failure is not None
    assert outcomes[1].failure.reason == "batch_full"


async def test_the_same_key_is_the_same_batch_while_it_runs_and_after() -> None:
    bench = Bench()
    sandbox = await bench.sandbox()
    items = (command("wait"), WriteFile(path=b"a", content=b""))
    first = asyncio.create_task(run(bench, sandbox, *items, key="k"))
    await until_running(bench, sandbox, 1)
    first.cancel()
    await asyncio.wait([first])
    second = asyncio.create_task(run(bench, sandbox, *items, key="k"))
    await asyncio.sleep(0)
    with pytest.raises(FairleadError) as caught:
        await run(bench, sandbox, *items, key="k", go_on=True)
    assert caught.value.reason == "idempotency_conflict"
    (program,) = bench.isolation.enclosures[sandbox.sandbox_id].programs.values()
    program.on_end(ProgramEnd(code=0))
    outcomes = await second
    assert states(outcomes) == [OK, OK]
    assert await run(bench, sandbox, *items, key="k") == outcomes
    assert len(bench.files.asked) == 1
    await bench.sandboxes.release(tenant="t", sandbox_id=sandbox.sandbox_id)
    assert await run(bench, sandbox, *items, key="k") == outcomes


@pytest.mark.parametrize("go_on", [False, True])
async def test_a_release_in_the_middle(go_on: bool) -> None:
    bench = Bench()
    sandbox = await bench.sandbox()
    items = (command("print"), command("wait"), command("print"))
    running = asyncio.create_task(run(bench, sandbox, *items, go_on=go_on))
    await until_running(bench, sandbox, 2)
    await bench.sandboxes.release(tenant="t", sandbox_id=sandbox.sandbox_id)
    outcomes = await running
    assert states(outcomes) == [OK, FAILED, FAILED if go_on else SKIPPED]
    assert outcomes[1].execution is not None
    assert outcomes[1].execution.exit is not None
    assert outcomes[1].execution.exit.reason is ExitReason.RELEASED
    if go_on:
        assert outcomes[2].failure is not None
        assert outcomes[2].failure.reason == "sandbox_not_found"


async def test_a_drain_in_the_middle_starts_nothing_more() -> None:
    bench = Bench()
    sandbox = await bench.sandbox()
    running = asyncio.create_task(run(bench, sandbox, command("wait"), command("print")))
    await until_running(bench, sandbox, 1)
    draining = asyncio.create_task(bench.executions.drain())
    await asyncio.sleep(0)
    (program,) = bench.isolation.enclosures[sandbox.sandbox_id].programs.values()
    program.on_end(ProgramEnd(code=0))
    outcomes = await running
    assert states(outcomes) == [OK, FAILED]
    assert outcomes[1].failure is not None
    assert outcomes[1].failure.reason == "worker_draining"
    await draining
    await bench.batches.close()


async def test_batches_that_no_host_could_run() -> None:
    bench = Bench()
    sandbox = await bench.sandbox()
    rows: list[tuple[tuple[Command | FileOperation, ...], str]] = [
        ((), "batch_invalid"),
        ((command("print"),) * (BATCH_ITEMS.count + 1), "batch_invalid"),
        ((command("print"), command("")), "command_invalid"),
        ((Command(arguments=("cat",), stdin=True),), "command_invalid"),
        ((Command(arguments=("cat",), terminal=TerminalSize(1, 1)),), "command_invalid"),
    ]
    for items, reason in rows:
        with pytest.raises(FairleadError) as caught:
            await run(bench, sandbox, *items)
        assert caught.value.reason == reason
    assert bench.isolation.enclosures[sandbox.sandbox_id].programs == {}
    with pytest.raises(FairleadError) as caught:
        await run(bench, sandbox, command("print"), key="k" * 257)
    assert caught.value.reason == "idempotency_key_invalid"


async def test_a_sandbox_that_is_not_there_or_not_the_callers() -> None:
    bench = Bench()
    sandbox = await bench.sandbox()
    for tenant, sandbox_id in (("other", sandbox.sandbox_id), ("t", "sbx_none")):
        with pytest.raises(FairleadError) as caught:
            await bench.batches.run(
                tenant=tenant,
                key="",
                sandbox_id=sandbox_id,
                batch=Batch(items=(command("print"),)),
            )
        assert caught.value.reason == "sandbox_not_found"
