"""What goes round every second, and programs that write without a pause: neither may cost others
their turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import pytest

from chassis.ids import random_id
from sandbox_worker.execution import (
    Execution,
    Exit,
    ExitReason,
    Piece,
    ProgramEnd,
    Stream,
)
from sandbox_worker.ports import KeptExecution, ProgramOrder, SandboxRecord
from sandbox_worker.run import Run
from tests.fakes.clock import START, FakeClock
from tests.fakes.execution_bench import Bench
from tests.fakes.isolation import ScriptedProgram
from tests.fakes.sandbox_stores import MemoryJournal

pytestmark = pytest.mark.asyncio


def ended(seconds: float) -> KeptExecution:
    """Make an execution of an earlier life that ended then, of the fake clock's START."""
    at = START + timedelta(seconds=seconds)
    return KeptExecution(
        Execution(
            execution_id=random_id("exe"),
            sandbox_id="sbx",
            tenant="t",
            arguments=("true",),
            started_at=at,
            exit=Exit(reason=ExitReason.EXITED, last_sequence=0, ended_at=at, code=0),
        ),
        MemoryJournal(),
    )


async def test_what_ended_first_is_forgotten_first_in_whatever_order_it_was_found() -> None:
    late, early, later = ended(990), ended(930), ended(995)
    bench = Bench(late, early, later)
    await bench.executions.recover()
    bench.clock.advance(1)
    await bench.executions.tidy()
    journals = [each.journal for each in (late, early, later)]
    assert [journal.removed for journal in journals if isinstance(journal, MemoryJournal)] == [
        False,
        True,
        False,
    ]


async def test_an_exit_that_the_disk_refused_is_tried_again_until_it_is_there() -> None:
    bench = Bench()
    execution = await bench.start(await bench.sandbox(), "wait")
    journal = bench.journals.journals[execution.execution_id]
    journal.full = True
    bench.program(execution).on_end(ProgramEnd(code=0))
    exit_ = await bench.exit_of(execution)
    await bench.executions.tidy()
    assert journal.exit is None
    journal.full = False
    await bench.executions.tidy()
    assert journal.exit == exit_


async def test_tombstones_of_an_earlier_life_go_in_the_order_of_their_ages() -> None:
    bench = Bench()
    young, old = (
        SandboxRecord(
            sandbox_id=random_id("sbx"), tenant="t", released_at=START + timedelta(seconds=at)
        )
        for at in (900, 500)
    )
    for record in (young, old):
        await bench.records.put(record)
    await bench.sandboxes.recover()
    bench.clock.advance(3600 - 300)
    await bench.sandboxes.release_expired()
    assert list(bench.records.records) == [young.sandbox_id]


class EndlessProgram(ScriptedProgram):
    """Has output whenever it is asked, until it has ended; fails a test that never lets it end."""

    def __init__(self) -> None:
        super().__init__(
            ProgramOrder(
                execution_id="", arguments=("yes",), environment={}, directory="", stdin=False
            )
        )
        self._left = 1000

    async def read(self) -> Sequence[Piece]:
        self._left -= 1
        assert self._left, "nobody else has had a turn"
        return [] if self.end else [Piece(stream=Stream.STDOUT, content=b"y\n", written_at=1)]


async def test_a_program_that_writes_for_ever_leaves_others_their_turn() -> None:
    program = EndlessProgram()
    run = Run(
        execution=Execution(
            execution_id="exe", sandbox_id="sbx", tenant="t", arguments=("yes",), started_at=START
        ),
        journal=MemoryJournal(),
        clock=FakeClock(),
        program=program,
    )
    asyncio.get_running_loop().call_soon(program.on_end, ProgramEnd(code=0))
    assert (await run.follow(blocks=False)).code == 0
