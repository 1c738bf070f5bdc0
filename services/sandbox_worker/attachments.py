"""One attachment to a terminal: what is typed goes in, what the terminal shows comes out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass

from chassis.limits import check_size
from fairlead_limits.table import POSITION, STDIN_BYTES
from sandbox_worker.execution import Execution, TerminalSize
from sandbox_worker.execution_errors import ExecutionEnded, StdinClosed, TerminalOwned
from sandbox_worker.run import Frame, Run
from sandbox_worker.terminals import Seat, Terminal


@dataclass(frozen=True, slots=True)
class TerminalOpening:
    """How to attach: after which record, as whom, whether to take it, and with which size."""

    after: int = 0
    take_over: bool = False
    owner: str = ""
    size: TerminalSize | None = None


@dataclass(frozen=True, slots=True)
class TerminalInput:
    """What was typed; `offset` counts from the start of the terminal's input."""

    offset: int
    content: bytes


@dataclass(frozen=True, slots=True)
class TerminalSnapshot:
    """What an attachment begins with: how far the input has come, and whether the same owner's
    numbering still holds.
    """

    execution: Execution
    input_offset: int
    resumed: bool


@dataclass(frozen=True, slots=True)
class TerminalAccepted:
    """How far the input was taken."""

    offset: int


@dataclass(frozen=True, slots=True)
class TerminalTakenOver:
    """Somebody else types now."""


Typed = TerminalInput | TerminalSize
AttachedFrame = TerminalSnapshot | TerminalAccepted | TerminalTakenOver | Frame


class Attachment:
    """One attachment; `frames` takes the seat and gives it back."""

    def __init__(self, *, run: Run, opening: TerminalOpening) -> None:
        self._run = run
        # Nobody types into what has ended, so that anybody may look at it.
        self._terminal = (None if run.has_ended else run.terminal) or Terminal()
        self._opening = opening
        self._accepted = 0
        self._news = asyncio.Event()

    async def frames(self, typed: AsyncIterator[Typed]) -> AsyncGenerator[AttachedFrame, None]:
        """Yield the snapshot, then what the terminal shows and how far `typed` was taken.

        The last frame is the exit or that it was taken over; there is none when `typed` ends first.
        Raises TerminalOwned, CursorGone, StdinOffsetInvalid, StdinClosed and what `typed` raises.
        Whoever reads slowly delays no takeover: the seat is the typing's alone.
        """
        seat = await self._terminal.take(
            owner=self._opening.owner, take_over=self._opening.take_over
        )
        self._accepted = self._run.stdin_offset
        typing = asyncio.create_task(self._type(seat, typed), name="typing")
        try:
            yield TerminalSnapshot(self._run.execution, self._accepted, seat.resumed)
            async with (
                aclosing(self._run.watch(self._opening.after)) as shown,
                aclosing(self._merged(shown, seat, typing)) as merged,
            ):
                async for frame in merged:
                    yield frame
        finally:
            typing.cancel()
            await asyncio.gather(typing, return_exceptions=True)
            self._terminal.leave(seat)

    async def _merged(
        self, shown: AsyncGenerator[Frame, None], seat: Seat, typing: asyncio.Task[None]
    ) -> AsyncGenerator[AttachedFrame, None]:
        following = asyncio.ensure_future(anext(shown, None))
        news = asyncio.ensure_future(self._news.wait())
        try:
            while True:
                await asyncio.wait((following, typing, news), return_when=asyncio.FIRST_COMPLETED)
                if news.done():
                    self._news.clear()
                    news = asyncio.ensure_future(self._news.wait())
                    yield TerminalAccepted(self._accepted)
                if seat.lost.is_set():
                    yield TerminalTakenOver()
                    return
                if typing.done():
                    typing.result()
                    return
                if following.done():
                    frame = following.result()
                    if frame is None:
                        return
                    if not isinstance(frame, Execution):
                        yield frame
                    following = asyncio.ensure_future(anext(shown, None))
        finally:
            for waiting in (following, news):
                waiting.cancel()
            await asyncio.gather(following, news, return_exceptions=True)

    async def _type(self, seat: Seat, typed: AsyncIterator[Typed]) -> None:
        """Type until there is nothing more or the seat is lost, and free the seat."""
        try:
            await seat.until_lost(self._type_all(typed))
        except TerminalOwned:
            return
        finally:
            self._terminal.leave(seat)

    async def _type_all(self, typed: AsyncIterator[Typed]) -> None:
        if self._opening.size is not None:
            self._resize(self._opening.size)
        async for piece in typed:
            if isinstance(piece, TerminalSize):
                piece.check("resize")
                self._resize(piece)
            else:
                await self._write(piece)
                self._news.set()

    def _resize(self, size: TerminalSize) -> None:
        try:
            self._run.resize(size)
        except ExecutionEnded:
            return  # the exit comes as a frame

    async def _write(self, piece: TerminalInput) -> None:
        check_size(POSITION, piece.offset)
        check_size(STDIN_BYTES, len(piece.content))
        if self._run.has_ended:
            return  # a worker that was started again has not counted what an earlier one took
        try:
            self._accepted = await self._run.write_stdin(
                offset=piece.offset, content=piece.content, close=False
            )
        except StdinClosed:
            if not self._run.has_ended:
                raise
