"""`fairlead exec`: one more command in a launch that is held, or in a sandbox."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairlead_sdk.cli.running import HUNG_UP, OUR_FAULT, Interrupts, run
from fairlead_sdk.cli.terminal import STDERR, STDOUT, Terminal
from fairlead_sdk.errors import FairleadError

if TYPE_CHECKING:
    from fairlead_sdk.executions import OutputFrame
    from fairlead_sdk.fairlead import AsyncFairlead
    from fairlead_sdk.records import ExecutionRecord, Exit

_STDIN = 0
_PIECE_BYTES = 128 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecChoices:
    """What was chosen on the command line."""

    target: str
    command: Sequence[str]
    directory: str
    timeout: float | None
    detach: bool


def execute(choices: ExecChoices, *, is_json: bool) -> int:
    """Run the command, pass its streams through and give its exit status; or leave it to itself."""

    async def work(terminal: Terminal, interrupts: Interrupts) -> int:
        from fairlead_sdk.cli.connection import connect, find_sandbox_of
        from fairlead_sdk.launches import Command

        async with connect(terminal) as client:
            sandbox_id = await find_sandbox_of(client, choices.target)
            has_stdin = not choices.detach and _has_stdin()
            started = await client.executions.start(
                sandbox_id,
                Command(
                    arguments=choices.command,
                    directory=choices.directory,
                    stdin=has_stdin,
                    timeout=choices.timeout,
                    on_full="drop_oldest" if choices.detach else "block",
                ),
            )
            if choices.detach:
                await _tell_started(terminal, started)
                return 0
            return await _attended(client, started.execution_id, terminal, interrupts, has_stdin)

    return run(work, is_json=is_json)


async def _tell_started(terminal: Terminal, started: ExecutionRecord) -> None:
    if terminal.is_json:
        await terminal.document(started.document)
        return
    await terminal.text(started.execution_id)
    terminal.say("it goes on; next:")
    for verb in ("logs -f", "kill"):
        terminal.line(f"  fairlead {verb} {started.execution_id}")


async def _attended(
    client: AsyncFairlead,
    execution_id: str,
    terminal: Terminal,
    interrupts: Interrupts,
    has_stdin: bool,
) -> int:
    """Pass its streams through; whoever leaves hears where it goes on."""
    tasks: set[asyncio.Future[object]] = set()

    def interrupt() -> None:
        sending = client.executions.signal(execution_id, signal.SIGINT)
        tasks.add(asyncio.ensure_future(sending))

    def left() -> None:
        terminal.say(f"left; the command goes on: fairlead logs -f {execution_id}")

    interrupts.instead, interrupts.at_once = interrupt, left
    if has_stdin:
        feeding = client.executions.feed_stdin(execution_id, _stdin())
        tasks.add(asyncio.ensure_future(feeding))
    try:
        return await _follow(client, execution_id, terminal)
    except BrokenPipeError:
        # As a pipe would tell it; a command that does not heed it goes on.
        with suppress(FairleadError):
            await client.executions.signal(execution_id, signal.SIGPIPE)
        raise
    except asyncio.CancelledError:
        if interrupts.status != HUNG_UP:
            left()
        raise
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _follow(client: AsyncFairlead, execution_id: str, terminal: Terminal) -> int:
    async with aclosing(client.executions.output(execution_id)) as frames:
        async for frame in frames:
            ended = await show_frame(terminal, frame)
            if ended is not None:
                return ended.exit_code
    return OUR_FAULT


async def show_frame(terminal: Terminal, frame: OutputFrame) -> Exit | None:
    """Show one frame of an execution's output; gives the exit when it is that."""
    from fairlead_sdk.cli.endings import ending_of, gap_of
    from fairlead_sdk.records import Exit, OutputGap, OutputRecord

    if terminal.is_json:
        await terminal.document(frame.document)
    match frame.content:
        case OutputRecord(stream=stream, content=content) if not terminal.is_json:
            await terminal.output(STDERR if stream == "stderr" else STDOUT, content)
        case OutputGap() as gap:
            await terminal.raw.drain()
            terminal.say(gap_of(gap))
        case Exit() as exit_:
            await terminal.raw.drain()
            sentence = ending_of(exit_)
            if sentence:
                terminal.say(sentence)
            return exit_
    return None


def _has_stdin() -> bool:
    """Say whether somebody pipes something in; a terminal stays here."""
    try:
        facts = os.fstat(_STDIN)
    except OSError:
        return False
    return not os.isatty(_STDIN) and (
        stat.S_ISFIFO(facts.st_mode) or stat.S_ISREG(facts.st_mode) or stat.S_ISSOCK(facts.st_mode)
    )


async def _stdin() -> AsyncIterator[bytes]:
    """Give standard input piece by piece; a daemon thread reads, so that nothing waits for it."""
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[bytes] = asyncio.Queue(1)
    wanted = threading.Semaphore(1)

    def read() -> None:
        while wanted.acquire():
            try:
                piece = os.read(_STDIN, _PIECE_BYTES)
            except OSError:
                piece = b""
            if loop.is_closed():
                return
            loop.call_soon_threadsafe(pieces.put_nowait, piece)
            if not piece:
                return

    threading.Thread(target=read, name="stdin", daemon=True).start()
    while piece := await pieces.get():
        wanted.release()
        yield piece
