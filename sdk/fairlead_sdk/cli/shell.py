"""`fairlead shell`: a terminal in a sandbox, shown on the one here."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fairlead_sdk.cli.escapes import HELP, Escape, Escapes
from fairlead_sdk.cli.holding import hold
from fairlead_sdk.cli.local_terminal import LocalTerminal
from fairlead_sdk.cli.running import HUNG_UP, Interrupts, run
from fairlead_sdk.cli.terminal import STDERR, STDOUT, Terminal

if TYPE_CHECKING:
    from fairlead_sdk.fairlead import AsyncFairlead
    from fairlead_sdk.terminals import AsyncTerminal

_QUIT = 128 + signal.SIGQUIT
_PASSED_ON = ("TERM", "COLORTERM")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellChoices:
    """What was chosen on the command line; an empty `target` is the newest launch from here."""

    target: str
    command: Sequence[str]
    directory: str
    take_over: bool


def shell(choices: ShellChoices, *, is_json: bool) -> int:
    """Show the terminal until its program ends or it is left; gives the program's exit status."""

    async def work(terminal: Terminal, interrupts: Interrupts) -> int:
        from fairlead_sdk.cli.connection import connect

        async with connect(terminal) as client:
            local = LocalTerminal()
            attached = await _attached(client, choices, local)
            holding = asyncio.ensure_future(
                hold(client, attached.execution_id, sleep=asyncio.sleep)
            )
            try:
                return await _Shown(terminal, local, attached).until_the_end(interrupts)
            finally:
                if interrupts.status and interrupts.status != HUNG_UP:
                    terminal.say(_left(attached))
                holding.cancel()
                await asyncio.gather(holding, return_exceptions=True)
                await attached.detach()

    return run(work, is_json=is_json)


class _Shown:
    """A terminal of a sandbox on the terminal here."""

    def __init__(self, terminal: Terminal, local: LocalTerminal, attached: AsyncTerminal) -> None:
        self._terminal = terminal
        self._local = local
        self._attached = attached
        self._resized = asyncio.Event()

    async def until_the_end(self, interrupts: Interrupts) -> int:
        from fairlead_sdk.cli.endings import ending_of
        from fairlead_sdk.records import Exit

        loop = asyncio.get_running_loop()
        interrupts.at_once = self._local.restore
        loop.add_signal_handler(signal.SIGWINCH, self._resized.set)
        loop.add_signal_handler(signal.SIGCONT, self._continued)
        # From outside: what is typed as Ctrl-\ goes to the other terminal.
        loop.add_signal_handler(signal.SIGQUIT, interrupts.take, _QUIT)
        tasks = [
            asyncio.ensure_future(work)
            for work in (self._show(), self._type(), self._follow_size())
        ]
        try:
            with self._local:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                ending = next(task for task in tasks if task.done())
                over = ending.result()
                await self._terminal.raw.drain()
        finally:
            loop.remove_signal_handler(signal.SIGWINCH)
            loop.remove_signal_handler(signal.SIGCONT)
            loop.remove_signal_handler(signal.SIGQUIT)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if not isinstance(over, Exit):
            self._terminal.say(_left(self._attached))
            return 0
        sentence = ending_of(over)
        if sentence:
            self._terminal.say(sentence)
        return over.exit_code

    async def _show(self) -> object:
        """Show what comes; returns the exit."""
        from fairlead_sdk.terminals import (
            TerminalGap,
            TerminalLost,
            TerminalOutput,
            TerminalResumed,
        )

        async for event in self._attached.events():
            match event:
                case TerminalOutput(content):
                    await self._terminal.output(STDOUT, content)
                case TerminalGap(missing):
                    await self._say(f"{missing} bytes of output are no longer kept.")
                case TerminalLost():
                    await self._say("the connection is lost; trying again. ~. leaves.")
                case TerminalResumed(0):
                    await self._say("connected again.")
                case TerminalResumed(dropped):
                    await self._say(
                        f"connected again; somebody else has typed meanwhile, and {dropped} bytes "
                        "of yours are dropped."
                    )
                case over:
                    return over
        raise AssertionError("the events of a terminal end with its exit, or raise")

    async def _type(self) -> object:
        """Send what is typed; returns when it is left."""
        escapes = Escapes()
        while typed := await self._local.read():
            for piece in escapes.take(typed):
                match piece:
                    case Escape.LEAVE:
                        return None
                    case Escape.STOP:
                        self._local.stop()
                        self._resized.set()
                    case Escape.HELP:
                        await self._say("\r\n".join(HELP))
                    case content:
                        await self._attached.send(content)
        return None

    async def _follow_size(self) -> object:
        while True:
            await self._resized.wait()
            self._resized.clear()
            await self._attached.resize(*self._local.size)

    def _continued(self) -> None:
        """Go on after a stop: whoever had the terminal meanwhile has made it what it needs."""
        self._local.make_raw()
        self._resized.set()

    async def _say(self, sentence: str) -> None:
        """Say something between two lines of a terminal that is raw."""
        text = f"\r\nfairlead: {sentence}\r\n"
        await self._terminal.output(STDERR, text.encode("utf-8", "replace"))


async def _attached(
    client: AsyncFairlead, choices: ShellChoices, local: LocalTerminal
) -> AsyncTerminal:
    from fairlead_sdk.launches import Command
    from fairlead_sdk.terminals import SHELL, attached

    if choices.target.startswith("exe_"):
        execution_id = choices.target
    else:
        sandbox_id = await _sandbox(client, choices.target)
        execution = await client.executions.start(
            sandbox_id,
            Command(
                arguments=choices.command or SHELL,
                directory=choices.directory,
                environment={name: os.environ[name] for name in _PASSED_ON if name in os.environ},
                terminal=local.size,
            ),
        )
        execution_id = execution.execution_id
    return await attached(client.door, execution_id, size=local.size, take_over=choices.take_over)


async def _sandbox(client: AsyncFairlead, target: str) -> str:
    """Find the sandbox that is meant: by its id, a launch's, or that of the newest from here."""
    from fairlead_sdk.cli.connection import find_newest, find_sandbox_of

    if target:
        return await find_sandbox_of(client, target)
    return (await find_newest(client)).sandbox_id


def _left(attached: AsyncTerminal) -> str:
    return f"left; what runs there goes on: fairlead shell {attached.execution_id}"
