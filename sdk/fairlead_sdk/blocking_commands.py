"""Commands for the blocking client, call by call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence

from fairlead_sdk.batch import BatchOutcome, FileWork
from fairlead_sdk.commands import AsyncCommands, AsyncRunningCommand, CommandResult
from fairlead_sdk.executions import OutputFrame
from fairlead_sdk.launches import Command
from fairlead_sdk.loop_thread import LoopThread
from fairlead_sdk.records import ExecutionRecord


class RunningCommand:
    """A command in the background; see `AsyncRunningCommand`."""

    def __init__(self, *, loop: LoopThread, command: AsyncRunningCommand) -> None:
        self._loop = loop
        self._command = command

    @property
    def execution_id(self) -> str:
        """Id of the execution, by which it can be attached to."""
        return self._command.execution_id

    def record(self) -> ExecutionRecord:
        """Read it as it is now."""
        return self._loop.run(self._command.record())

    def output(self, *, after: int = 0) -> Iterator[OutputFrame]:
        """Give the execution, its output after a sequence number, then exactly one exit."""
        frames = self._command.output(after=after)
        try:
            while (frame := self._loop.run(_next(frames))) is not None:
                yield frame
        finally:
            self._loop.run(frames.aclose())

    def wait(self, timeout: float | None = None) -> CommandResult:
        """Wait for its end and give what it left.

        Raises `TimeoutError` after `timeout` seconds; the command goes on.
        """
        return self._loop.run(asyncio.wait_for(self._command.wait(), timeout))

    def signal(self, number: int) -> ExecutionRecord:
        """Send a signal to its process group; raises `FailedPrecondition` when it has ended."""
        return self._loop.run(self._command.signal(number))

    def kill(self) -> None:
        """Send SIGKILL; one that has ended is no error."""
        self._loop.run(self._command.kill())

    def write(self, content: bytes) -> None:
        """Write to its standard input."""
        self._loop.run(self._command.write(content))

    def close_stdin(self) -> None:
        """Let it read end-of-file."""
        self._loop.run(self._command.close_stdin())


class Commands:
    """Commands in one sandbox."""

    def __init__(self, *, loop: LoopThread, commands: AsyncCommands) -> None:
        self._loop = loop
        self._commands = commands

    def run(
        self,
        command: str | Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        directory: str | None = None,
        stdin: bytes | None = None,
        timeout: float | None = None,
        check: bool = False,
    ) -> CommandResult:
        """Run a command to its end; see `AsyncCommands.run`."""
        return self._loop.run(
            self._commands.run(
                command,
                environment=environment,
                directory=directory,
                stdin=stdin,
                timeout=timeout,
                check=check,
            )
        )

    def start(
        self,
        command: str | Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        directory: str | None = None,
        stdin: bool = False,
        timeout: float | None = None,
        grace: float | None = None,
        on_full: str = "drop_oldest",
    ) -> RunningCommand:
        """Start a command in the background; see `AsyncCommands.start`."""
        starting = self._commands.start(
            command,
            environment=environment,
            directory=directory,
            stdin=stdin,
            timeout=timeout,
            grace=grace,
            on_full=on_full,
        )
        return RunningCommand(loop=self._loop, command=self._loop.run(starting))

    def attach(self, execution_id: str) -> RunningCommand:
        """Take up a command that was started before, here or elsewhere."""
        return RunningCommand(loop=self._loop, command=self._commands.attach(execution_id))

    def batch(
        self,
        items: Sequence[str | Sequence[str] | Command | FileWork],
        *,
        continue_on_failure: bool = False,
        key: str = "",
    ) -> tuple[BatchOutcome, ...]:
        """Run commands and file operations in one call; see `AsyncCommands.batch`."""
        return self._loop.run(
            self._commands.batch(items, continue_on_failure=continue_on_failure, key=key)
        )


async def _next(frames: AsyncGenerator[OutputFrame, None]) -> OutputFrame | None:
    return await anext(frames, None)
