"""`fairlead exec`: one more command in a launch that is held."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from fairlead_sdk.cli.running import OUR_FAULT, Interrupts, run
from fairlead_sdk.cli.terminal import STDERR, STDOUT, Terminal

if TYPE_CHECKING:
    from fairlead_sdk.fairlead import AsyncFairlead

_STDIN = 0
_PIECE_BYTES = 128 * 1024


def execute(launch: str, command: Sequence[str], *, directory: str, is_json: bool) -> int:
    """Run the command, pass its streams through and give its exit status."""

    async def work(terminal: Terminal, interrupts: Interrupts) -> int:
        from fairlead_sdk.cli.connection import find_launch
        from fairlead_sdk.errors import LaunchNotHeld
        from fairlead_sdk.fairlead import AsyncFairlead
        from fairlead_sdk.launches import Command

        async with AsyncFairlead() as client:
            record = await find_launch(client, launch)
            if not record.is_held:
                raise LaunchNotHeld(
                    f"{record.launch_id} holds no sandbox (any more): it is {record.state}.",
                    reason="launch_not_held",
                    remedy="Launch with --keep, or without a command, and exec into that.",
                )
            has_stdin = _has_stdin()
            execution = await client.executions.start(
                record.sandbox_id,
                Command(arguments=command, directory=directory, stdin=has_stdin),
            )
            tasks: set[asyncio.Future[object]] = set()

            def interrupt() -> None:
                sending = client.executions.signal(execution.execution_id, signal.SIGINT)
                tasks.add(asyncio.ensure_future(sending))

            interrupts.instead = interrupt
            if has_stdin:
                feeding = client.executions.feed_stdin(execution.execution_id, _stdin())
                tasks.add(asyncio.ensure_future(feeding))
            try:
                return await _follow(client, execution.execution_id, terminal)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    return run(work, is_json=is_json)


async def _follow(client: AsyncFairlead, execution_id: str, terminal: Terminal) -> int:
    from fairlead_sdk.cli.endings import ending_of
    from fairlead_sdk.records import Exit, OutputRecord

    async with aclosing(client.executions.output(execution_id)) as frames:
        async for frame in frames:
            if terminal.is_json:
                await terminal.document(frame.document)
            match frame.content:
                case OutputRecord(stream=stream, content=content) if not terminal.is_json:
                    await terminal.output(STDERR if stream == "stderr" else STDOUT, content)
                case Exit() as exit_:
                    await terminal.raw.drain()
                    sentence = ending_of(exit_)
                    if sentence:
                        terminal.say(sentence)
                    return exit_.exit_code
    return OUR_FAULT


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
