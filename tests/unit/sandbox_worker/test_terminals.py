"""Who types into a terminal: the place, and attachments to it, with what arrives in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import pytest

from chassis.errors import FairleadError
from sandbox_worker.attachments import (
    AttachedFrame,
    Attachment,
    TerminalAccepted,
    TerminalInput,
    TerminalOpening,
    TerminalSnapshot,
    TerminalTakenOver,
    Typed,
)
from sandbox_worker.execution import Execution, Exit, ExitReason, ProgramEnd, TerminalSize
from sandbox_worker.execution_errors import TerminalOwned
from sandbox_worker.ports import ProgramOrder
from sandbox_worker.run import Run
from sandbox_worker.terminals import Terminal
from tests.fakes.clock import START, FakeClock
from tests.fakes.isolation import ScriptedProgram
from tests.fakes.sandbox_stores import MemoryJournal

pytestmark = pytest.mark.asyncio


async def test_it_is_taken_by_one_and_refused_to_the_next() -> None:
    terminal = Terminal()
    seat = await terminal.take(owner="a")
    for owner in ("b", ""):
        with pytest.raises(TerminalOwned):
            await terminal.take(owner=owner)
    terminal.leave(seat)
    terminal.leave(seat)
    assert not (await terminal.take(owner="b")).resumed


async def test_a_place_without_an_owner_is_nobodys_own() -> None:
    terminal = Terminal()
    seat = await terminal.take()
    with pytest.raises(TerminalOwned):
        await terminal.take()
    terminal.leave(seat)
    assert not (await terminal.take()).resumed


async def test_whoever_takes_it_waits_until_the_other_one_has_stopped() -> None:
    terminal = Terminal()
    first = await terminal.take(owner="a")
    taking = asyncio.create_task(terminal.take(owner="b", take_over=True))
    await first.lost.wait()
    assert not taking.done()
    with pytest.raises(TerminalOwned):
        await terminal.take(owner="c")
    terminal.leave(first)
    second = await taking
    terminal.leave(first)
    assert terminal.is_owned
    terminal.leave(second)
    assert not terminal.is_owned


async def test_the_last_of_several_who_take_it_has_it() -> None:
    terminal = Terminal()
    first = await terminal.take(owner="a")
    second = asyncio.create_task(terminal.take(owner="b", take_over=True))
    third = asyncio.create_task(terminal.take(owner="c", take_over=True))
    await first.lost.wait()
    terminal.leave(first)
    held = await second
    await held.lost.wait()
    terminal.leave(held)
    assert not (await third).lost.is_set()


async def test_one_who_gives_up_to_take_it_leaves_nothing() -> None:
    terminal = Terminal()
    first = await terminal.take(owner="a")
    taking = asyncio.create_task(terminal.take(owner="b", take_over=True))
    await first.lost.wait()
    taking.cancel()
    await asyncio.wait([taking])
    terminal.leave(first)
    assert not terminal.is_owned
    assert (await terminal.take(owner="a")).resumed


async def test_work_ends_when_the_place_is_lost() -> None:
    terminal = Terminal()
    seat = await terminal.take(owner="a")
    working = asyncio.create_task(seat.until_lost(asyncio.Event().wait()))
    seat.lost.set()
    with pytest.raises(TerminalOwned):
        await working


async def test_single_pieces_follow_each_other_and_yield_to_nobody_else() -> None:
    terminal = Terminal()
    stuck = asyncio.create_task(terminal.typed(asyncio.Event().wait()))
    await asyncio.sleep(0)
    assert await terminal.typed(asyncio.sleep(0, result=5)) == 5
    with pytest.raises(TerminalOwned):
        await stuck
    await terminal.take(owner="a")
    with pytest.raises(TerminalOwned):
        await terminal.typed(asyncio.sleep(0, result=5))


class Subject:
    """An execution on a terminal, and what attachments to it are told."""

    def __init__(self, *words: str) -> None:
        size = TerminalSize(24, 80)
        self.program = ScriptedProgram(
            ProgramOrder(
                execution_id="exe_1",
                arguments=words,
                environment={},
                directory="",
                stdin=True,
                terminal=size,
            )
        )
        self.terminal = Terminal()
        self.journal = MemoryJournal()
        self.run = Run(
            execution=Execution("exe_1", "sbx_1", "t", words, START),
            journal=self.journal,
            clock=FakeClock(),
            program=self.program,
            stdin=True,
            terminal=self.terminal,
        )
        self.following = asyncio.create_task(self.run.follow())

    def attach(
        self,
        typed: AsyncIterator[Typed],
        *,
        owner: str = "",
        take_over: bool = False,
        size: TerminalSize | None = None,
    ) -> AsyncGenerator[AttachedFrame, None]:
        opening = TerminalOpening(owner=owner, take_over=take_over, size=size)
        attachment = Attachment(run=self.run, opening=opening)
        return attachment.frames(typed)


class Keys:
    """What a test types."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Typed | None] = asyncio.Queue()

    def press(self, offset: int, content: bytes) -> None:
        self._queue.put_nowait(TerminalInput(offset, content))

    def put(self, piece: Typed | None) -> None:
        self._queue.put_nowait(piece)

    async def __aiter__(self) -> AsyncIterator[Typed]:
        while (piece := await self._queue.get()) is not None:
            yield piece


async def until(frames: AsyncIterator[AttachedFrame], kind: type) -> AttachedFrame:
    async for frame in frames:
        if isinstance(frame, kind):
            return frame
    raise AssertionError(f"it ended without a {kind}")


async def test_it_types_resizes_and_hears_of_the_end() -> None:
    subject, keys = Subject("cat"), Keys()
    frames = subject.attach(aiter(keys), owner="a", size=TerminalSize(1, 2))
    assert await anext(frames) == TerminalSnapshot(subject.run.execution, 0, False)
    keys.press(0, b"hello")
    assert await until(frames, TerminalAccepted) == TerminalAccepted(5)
    keys.put(TerminalSize(3, 4))
    keys.press(2, b"llo!")
    assert await until(frames, TerminalAccepted) == TerminalAccepted(6)
    subject.program.on_end(ProgramEnd(code=3))
    exit_ = await until(frames, Exit)
    assert isinstance(exit_, Exit)
    assert exit_.code == 3
    with pytest.raises(StopAsyncIteration):
        await anext(frames)
    assert not subject.terminal.is_owned
    shown = b"".join(record.content for record in subject.journal.records)
    assert shown == b"1 2\r\nhello3 4\r\n!"


async def test_leaving_frees_it_at_once_and_stops_nothing() -> None:
    subject = Subject("cat")
    for _ in range(2):
        keys = Keys()
        frames = subject.attach(aiter(keys), owner="a")
        await anext(frames)
        keys.put(None)
        with pytest.raises(StopAsyncIteration):
            await anext(frames)
    frames = subject.attach(aiter(Keys()), owner="b")
    await anext(frames)
    await frames.aclose()
    assert not subject.terminal.is_owned
    assert not subject.run.has_ended
    subject.program.on_end(ProgramEnd(code=0))
    await subject.following


async def test_a_reader_that_stands_still_does_not_hold_a_takeover_up() -> None:
    subject = Subject("cat")
    stuck = subject.attach(aiter(Keys()), owner="a")
    await anext(stuck)  # and nobody reads on
    keys = Keys()
    frames = subject.attach(aiter(keys), owner="b", take_over=True)
    snapshot = await anext(frames)
    assert isinstance(snapshot, TerminalSnapshot)
    assert not snapshot.resumed
    keys.press(0, b"x")
    assert await until(frames, TerminalAccepted) == TerminalAccepted(1)
    assert await until(stuck, TerminalTakenOver) == TerminalTakenOver()
    subject.program.on_end(ProgramEnd(code=0))
    await until(frames, Exit)


async def test_attaching_while_it_ends_gives_the_exit() -> None:
    subject = Subject("cat")
    frames = subject.attach(aiter(Keys()))
    await anext(frames)
    subject.program.on_end(ProgramEnd(code=1))
    await until(frames, Exit)
    late = Keys()
    late.press(0, b"too late")
    frames = subject.attach(aiter(late), size=TerminalSize(9, 9))
    snapshot = await anext(frames)
    assert isinstance(snapshot, TerminalSnapshot)
    assert snapshot.execution.exit is not None
    assert isinstance(await until(frames, Exit), Exit)


async def test_who_comes_back_after_the_worker_hears_that_it_was_lost() -> None:
    execution = Execution("exe_1", "sbx_1", "t", ("cat",), START)
    run = Run(execution=execution, journal=MemoryJournal(), clock=FakeClock())
    await run.end(ExitReason.HOST_LOST)
    keys = Keys()
    keys.press(7, b"typed to the worker before")
    opening = TerminalOpening(owner="a", size=TerminalSize(24, 80))
    exit_ = await until(Attachment(run=run, opening=opening).frames(aiter(keys)), Exit)
    assert isinstance(exit_, Exit)
    assert exit_.reason is ExitReason.HOST_LOST


async def test_bytes_that_are_missing_end_the_attachment() -> None:
    subject, keys = Subject("cat"), Keys()
    frames = subject.attach(aiter(keys))
    keys.press(3, b"x")
    with pytest.raises(FairleadError) as caught:
        await until(frames, Exit)
    assert caught.value.reason == "stdin_offset_invalid"
    assert not subject.terminal.is_owned
    subject.program.on_end(ProgramEnd(code=0))
    await subject.following
