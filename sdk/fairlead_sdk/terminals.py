"""Terminals in a sandbox: a lost connection is taken up where it was, and nothing is shown or typed
twice.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType

from fairlead_sdk.client import FrontDoor
from fairlead_sdk.errors import (
    CursorGone,
    DeadlineExceeded,
    FairleadError,
    SandboxNotFound,
    StreamLost,
    TerminalOwned,
    Unavailable,
)
from fairlead_sdk.executions import AsyncExecutions
from fairlead_sdk.launches import Command
from fairlead_sdk.records import Exit
from fairlead_sdk.streams import FIRST_PAUSES, PAUSES
from fairlead_sdk.terminal_link import (
    Accepted,
    Attached,
    Missing,
    Opening,
    Shown,
    Size,
    TakenOver,
    TerminalLink,
    terminal_link,
)
from fairlead_sdk.terminal_ways import TerminalWays
from fairlead_sdk.typed_input import TypedInput

SHELL = (
    "sh",
    "-c",
    "if command -v bash >/dev/null 2>&1; then exec bash; else exec sh; fi",
)
"""What runs where no command is given: the better one of the shells that are there."""

_KILL = 9
_FRAMES_AHEAD = 64
_DETACH_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class TerminalOutput:
    """What the terminal shows next."""

    content: bytes


@dataclass(frozen=True, slots=True)
class TerminalGap:
    """Output that is no longer kept, in bytes."""

    bytes: int


@dataclass(frozen=True, slots=True)
class TerminalLost:
    """The connection broke; it is tried again."""


@dataclass(frozen=True, slots=True)
class TerminalResumed:
    """The connection is there again; so many bytes of input were dropped, since somebody else has
    typed meanwhile.
    """

    dropped: int


TerminalEvent = TerminalOutput | TerminalGap | TerminalLost | TerminalResumed | Exit


class AsyncTerminal:
    """An attachment to one terminal; use as an async context manager, whose end detaches.

    What runs on the terminal goes on when nobody is attached; `kill` ends it.
    """

    def __init__(
        self,
        *,
        door: FrontDoor,
        execution_id: str,
        size: tuple[int, int] | None = None,
        take_over: bool = False,
    ) -> None:
        self.execution_id = execution_id
        self._door = door
        self._executions = AsyncExecutions(door=door)
        self._size = None if size is None else Size(*size)
        self._take_over = take_over
        self._owner = secrets.token_hex(16)
        self._after = 0
        self._is_behind = False
        self._input = TypedInput()
        self._resized = False
        self._wakeup = asyncio.Event()
        self._ready = asyncio.Event()
        self._events: asyncio.Queue[TerminalEvent | FairleadError] = asyncio.Queue(_FRAMES_AHEAD)
        self._over: Exit | FairleadError | None = None
        self._attached = False
        self._conversing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> AsyncTerminal:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.detach()

    async def attach(self) -> None:
        """Connect, once; raises `TerminalOwned` while another client has it, `NotATerminal`."""
        self._conversing = asyncio.create_task(self._converse(), name="terminal")
        await self._ready.wait()
        if isinstance(self._over, FairleadError):
            raise self._over

    async def detach(self) -> None:
        """Let go of the terminal, after what was typed; again is harmless."""
        if self._conversing is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_DETACH_SECONDS):
                    while not self._conversing.done() and not self._input.is_taken:
                        await self._input.changed()
            self._conversing.cancel()
            await asyncio.gather(self._conversing, return_exceptions=True)

    async def send(self, content: bytes) -> None:
        """Type; waits while much of what was typed before is not taken.

        Raises how the terminal ended for this client, such as `TerminalOwned`; what is typed after
        its exit goes nowhere.
        """
        if isinstance(self._over, FairleadError):
            raise self._over
        if self._over is None:
            await self._input.add(content)
            self._wakeup.set()

    async def resize(self, rows: int, columns: int) -> None:
        """Tell it how large it is shown now."""
        self._size = Size(rows, columns)
        self._resized = True
        self._wakeup.set()

    async def events(self) -> AsyncGenerator[TerminalEvent, None]:
        """Give what the terminal shows and what becomes of the connection; the last is its exit.

        Raises `TerminalOwned` when another client takes it, `StreamLost` when the mesh stays away.
        """
        while True:
            if self._events.empty() and self._over is not None:
                if isinstance(self._over, FairleadError):
                    raise self._over
                yield self._over
                return
            event = await self._events.get()
            if isinstance(event, FairleadError):
                raise event
            yield event
            if isinstance(event, Exit):
                return

    async def output(self) -> AsyncGenerator[bytes, None]:
        """Give what the terminal shows, until its program has ended."""
        async for event in self.events():
            if isinstance(event, TerminalOutput):
                yield event.content

    async def wait(self) -> Exit:
        """Wait for the exit; what is shown until then, and was not read, is dropped."""
        async for event in self.events():
            if isinstance(event, Exit):
                return event
        raise AssertionError("the events of a terminal end with its exit, or raise")

    async def kill(self) -> None:
        """Kill what runs on it."""
        await self._executions.signal(self.execution_id, _KILL)

    async def _converse(self) -> None:
        async with TerminalWays(door=self._door) as ways:
            await self._over_ways(ways)

    async def _over_ways(self, ways: TerminalWays) -> None:
        """Keep a connection until the exit, a takeover, a refusal or too many failures."""
        failures = 0
        while self._over is None:
            broken: FairleadError | None = None
            try:
                async with terminal_link(ways, self.execution_id, self._opening()) as link:
                    await self._over_link(link)
                    failures = 0
            except (Unavailable, DeadlineExceeded) as error:
                broken = error
            except CursorGone as gone:
                # So much was shown meanwhile: go on with what is kept, all of which is news.
                if self._is_behind:
                    await self._end(gone)
                self._is_behind = True
            except TerminalOwned as owned:
                await self._end(_taken() if self._ready.is_set() else owned)
            except SandboxNotFound as gone:
                await self._end_as_recorded(gone)
            except FairleadError as error:
                await self._end(error)
            if self._over is None:
                failures = await self._pause(failures, broken)

    async def _pause(self, failures: int, broken: FairleadError | None) -> int:
        if self._attached:
            self._attached = False
            failures = 0
            await self._events.put(TerminalLost())
        pauses = PAUSES if self._ready.is_set() else FIRST_PAUSES
        if failures < len(pauses):
            await self._door.sleep(pauses[failures])
            return failures + 1
        if broken is not None and not self._ready.is_set():
            await self._end(broken)
        else:
            await self._end(
                StreamLost(
                    "The connection to the terminal broke and could not be taken up again.",
                    reason="stream_lost",
                    remedy=f"It goes on: attach to {self.execution_id} again.",
                )
            )
        return failures

    def _opening(self) -> Opening:
        self._resized = False
        return Opening(
            after=0 if self._is_behind else self._after,
            owner=self._owner,
            take_over=self._take_over and not self._ready.is_set(),
            size=self._size,
        )

    async def _over_link(self, link: TerminalLink) -> None:
        typing: asyncio.Task[None] | None = None
        try:
            while self._over is None and (frame := await link.next()) is not None:
                match frame:
                    case Attached(offset, resumed):
                        await self._take_up(offset, resumed=resumed)
                        typing = asyncio.create_task(self._type(link), name="typing")
                    case Shown(sequence, content) if sequence > self._after:
                        self._after, self._is_behind = sequence, False
                        await self._events.put(TerminalOutput(content))
                    case Missing(last_sequence, missing):
                        self._after = max(self._after, last_sequence)
                        await self._events.put(TerminalGap(missing))
                    case Accepted(offset):
                        self._input.accept(offset)
                    case TakenOver():
                        await self._end(_taken())
                    case Exit():
                        await self._end(frame)
        finally:
            if typing is not None:
                typing.cancel()
                await asyncio.gather(typing, return_exceptions=True)

    async def _take_up(self, offset: int, *, resumed: bool) -> None:
        dropped = self._input.take_up(offset, resumed=resumed)
        self._attached = True
        if self._ready.is_set():
            await self._events.put(TerminalResumed(dropped))
        self._ready.set()

    async def _type(self, link: TerminalLink) -> None:
        """Send what is typed; a connection that breaks is noticed by who reads."""
        with suppress(Unavailable):
            while True:
                self._wakeup.clear()
                if self._resized and self._size is not None:
                    self._resized = False
                    await link.resize(self._size)
                while piece := self._input.next():
                    await link.type(*piece)
                await self._wakeup.wait()

    async def _end_as_recorded(self, gone: SandboxNotFound) -> None:
        """End as the execution did: who releases a sandbox may cut a connection before the exit has
        come over it. One that has no exit yet is asked for again.
        """
        if not self._ready.is_set():
            await self._end(gone)
            return
        try:
            ended = (await self._executions.get(self.execution_id)).exit
        except FairleadError:
            await self._end(gone)
            return
        if ended is not None:
            await self._end(ended)

    async def _end(self, over: Exit | FairleadError) -> None:
        self._over = over
        self._input.close()
        self._ready.set()
        await self._events.put(over)


class AsyncPty:
    """The terminals of one sandbox."""

    def __init__(self, *, door: FrontDoor, sandbox_id: str, directory: str = "") -> None:
        self._door = door
        self._executions = AsyncExecutions(door=door)
        self._sandbox_id = sandbox_id
        self._directory = directory

    async def create(
        self,
        command: str | Sequence[str] = "",
        *,
        rows: int = 24,
        columns: int = 80,
        environment: Mapping[str, str] | None = None,
        directory: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the mesh keeps the time
    ) -> AsyncTerminal:
        """Run a command on a terminal, a shell when it is empty, and attach to it.

        A string goes through `sh -c`. `directory` is relative to the workspace, by default where
        the launch was made; `timeout` is in seconds.
        """
        arguments = ["sh", "-c", command] if isinstance(command, str) else list(command)
        execution = await self._executions.start(
            self._sandbox_id,
            Command(
                arguments=arguments if command else SHELL,
                environment=dict(environment or {}),
                directory=self._directory if directory is None else directory,
                timeout=timeout,
                terminal=(rows, columns),
            ),
        )
        return await attached(self._door, execution.execution_id)

    async def attach(self, execution_id: str, *, take_over: bool = False) -> AsyncTerminal:
        """Attach to a terminal that is there, and see what is kept of its output.

        Raises `TerminalOwned` while another client has it, unless `take_over`.
        """
        return await attached(self._door, execution_id, take_over=take_over)


async def attached(
    door: FrontDoor,
    execution_id: str,
    *,
    size: tuple[int, int] | None = None,
    take_over: bool = False,
) -> AsyncTerminal:
    """Attach to a terminal, which gets `size` (rows and columns) at once."""
    terminal = AsyncTerminal(door=door, execution_id=execution_id, size=size, take_over=take_over)
    try:
        await terminal.attach()
    except BaseException:
        await terminal.detach()
        raise
    return terminal


def _taken() -> TerminalOwned:
    return TerminalOwned(
        "Another client has taken the terminal.",
        reason="terminal_owned",
        remedy="Take it back: take_over, `fairlead shell --take-over`.",
    )
