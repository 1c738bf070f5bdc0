"""`fairlead exec`: one more command in a launch that is held, or in a sandbox."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairlead_sdk.cli.running import HUNG_UP, OUR_FAULT, Interrupts, run
from fairlead_sdk.cli.standard_input import has_standard_input, read_standard_input
from fairlead_sdk.cli.terminal import STDERR, STDOUT, Terminal
from fairlead_sdk.errors import FairleadError

if TYPE_CHECKING:
    from fairlead_sdk.executions import OutputFrame
    from fairlead_sdk.fairlead import AsyncFairlead
    from fairlead_sdk.records import ExecutionRecord, Exit


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecChoices:
    """What was chosen on the command line."""

    target: str
    command: Sequence[str]
    directory: str
    timeout: float | None
    detach: bool
    no_stdin: bool = False
    host: str = ""


def execute(choices: ExecChoices, *, is_json: bool) -> int:
    """Run the command, pass its streams through and give its exit status; or leave it to itself."""

    async def work(terminal: Terminal, interrupts: Interrupts) -> int:
        if choices.host:
            return await _execute_on_host(choices, terminal, interrupts)
        from fairlead_sdk.cli.connection import connect, find_sandbox_of
        from fairlead_sdk.launches import Command

        async with connect(terminal) as client:
            sandbox_id = await find_sandbox_of(client, choices.target)
            has_stdin = not (choices.detach or choices.no_stdin) and has_standard_input()
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


async def _execute_on_host(choices: ExecChoices, terminal: Terminal, interrupts: Interrupts) -> int:
    """Run the command in a workspace that an SSH host keeps."""
    from fairlead_sdk.cli.endings import ending_of
    from fairlead_sdk.cli.ssh_launch import run_on_host
    from fairlead_sdk.cli.workspace import find_workspace
    from fairlead_sdk.cli.workspace_places import opened_host
    from fairlead_sdk.launches import Command

    async with opened_host(choices.host) as place:
        found = await find_workspace(place, choices.target)
        command = Command(
            arguments=choices.command,
            directory=choices.directory,
            stdin=not choices.no_stdin and has_standard_input(),
            timeout=choices.timeout,
        )
        exit_ = await run_on_host(
            place.host,
            found.workspace_id,
            command,
            terminal=terminal,
            interrupts=interrupts,
            stays=True,
        )
    ending = {"reason": exit_.reason, "code": exit_.code, "signal": exit_.signal}
    if terminal.is_json:
        await terminal.document({"type": "exited", "exited": {"exit": ending}})
    if sentence := ending_of(exit_):
        terminal.say(sentence)
    return exit_.exit_code


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

    is_interrupted = False

    def interrupt() -> bool:
        nonlocal is_interrupted
        if is_interrupted:
            return False
        is_interrupted = True
        sending = client.executions.signal(execution_id, signal.SIGINT)
        tasks.add(asyncio.ensure_future(sending))
        return True

    def left() -> None:
        terminal.say(f"left; the command goes on: fairlead logs -f {execution_id}")

    interrupts.instead, interrupts.at_once = interrupt, left
    if has_stdin:
        feeding = client.executions.feed_stdin(execution_id, read_standard_input())
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
