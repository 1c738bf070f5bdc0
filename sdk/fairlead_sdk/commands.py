"""Commands in one sandbox: to their end, in the background, or several in one call."""

from __future__ import annotations

import asyncio
import signal as signals
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass

from fairlead_sdk.batch import BatchOutcome, FileWork
from fairlead_sdk.errors import CommandFailed, FailedPrecondition, FairleadError
from fairlead_sdk.executions import STDIN_PIECE_BYTES, AsyncExecutions, OutputFrame
from fairlead_sdk.launches import Command
from fairlead_sdk.records import ExecutionRecord, Exit, OutputGap, OutputRecord

_KILL_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a command left: its output as bytes (and as text), and how it ended.

    `exit_code` counts as a shell does: 128 + n for signal n, 124 when the timeout passed.
    `missing_bytes` of its output were dropped before they could be read.
    """

    stdout: bytes
    stderr: bytes
    exit: Exit
    missing_bytes: int = 0

    @property
    def exit_code(self) -> int:
        """The exit code."""
        return self.exit.exit_code

    @property
    def stdout_text(self) -> str:
        """Standard output as UTF-8, with what is not UTF-8 replaced."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def stderr_text(self) -> str:
        """Standard error as UTF-8, with what is not UTF-8 replaced."""
        return self.stderr.decode("utf-8", "replace")


class AsyncRunningCommand:
    """A command in the background. It goes on when this is let go, and when the client leaves:
    `commands.attach` with its `execution_id` gives another one.
    """

    def __init__(self, *, executions: AsyncExecutions, execution_id: str) -> None:
        self._executions = executions
        self._written = 0
        self.execution_id = execution_id

    async def record(self) -> ExecutionRecord:
        """Read it as it is now."""
        return await self._executions.get(self.execution_id)

    async def output(self, *, after: int = 0) -> AsyncGenerator[OutputFrame, None]:
        """Give the execution, its output after a sequence number, then exactly one exit."""
        async with aclosing(self._executions.output(self.execution_id, after=after)) as frames:
            async for frame in frames:
                yield frame

    async def wait(self) -> CommandResult:
        """Wait for its end and give what it left; cancelled, the command goes on."""
        parts: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        missing = 0
        async with aclosing(self.output()) as frames:
            async for frame in frames:
                match frame.content:
                    case OutputRecord(stream=stream, content=content):
                        parts[stream] += content
                    case OutputGap(size=size):
                        missing += size
                    case Exit() as exit_:
                        stdout, stderr = bytes(parts["stdout"]), bytes(parts["stderr"])
                        return CommandResult(stdout, stderr, exit_, missing)
        raise AssertionError("an output ends with its exit, or raises")

    async def signal(self, number: int) -> ExecutionRecord:
        """Send a signal to its process group; raises `FailedPrecondition` when it has ended."""
        return await self._executions.signal(self.execution_id, number)

    async def kill(self) -> None:
        """Send SIGKILL; one that has ended is no error."""
        try:
            await self.signal(signals.SIGKILL)
        except FailedPrecondition as error:
            if error.reason != "execution_ended":
                raise

    async def write(self, content: bytes) -> None:
        """Write to its standard input; one write after the other."""
        for start in range(0, len(content), STDIN_PIECE_BYTES):
            piece = content[start : start + STDIN_PIECE_BYTES]
            self._written = await self._executions.write_stdin(
                self.execution_id, piece, offset=self._written
            )

    async def close_stdin(self) -> None:
        """Let it read end-of-file."""
        await self._executions.write_stdin(self.execution_id, b"", offset=self._written, close=True)


class AsyncCommands:
    """Commands in one sandbox."""

    def __init__(self, *, executions: AsyncExecutions, sandbox_id: str, directory: str) -> None:
        self._executions = executions
        self._sandbox_id = sandbox_id
        self._directory = directory

    async def run(
        self,
        command: str | Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        directory: str | None = None,
        stdin: bytes | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the mesh keeps the time
        check: bool = False,
    ) -> CommandResult:
        """Run a command to its end; a string goes through `sh -c`, a sequence is run as it is.

        `directory` is relative to the workspace, by default where the launch was made; `timeout` is
        in seconds. With `check` another exit code than 0 raises `CommandFailed`. What it writes is
        all kept: a command that writes faster than it is read waits. Cancelling this kills it.
        """
        running = await self.start(
            command,
            environment=environment,
            directory=directory,
            stdin=stdin is not None,
            timeout=timeout,
            on_full="block",
        )
        feeding = asyncio.ensure_future(self._feed(running.execution_id, stdin))
        try:
            result = await running.wait()
        except asyncio.CancelledError:
            await asyncio.shield(_ended(running))
            raise
        finally:
            feeding.cancel()
            await asyncio.wait((feeding,))
        if check and result.exit_code != 0:
            name = command if isinstance(command, str) else command[0]
            raise CommandFailed(
                f"{name} ended with exit code {result.exit_code}.",
                reason="command_failed",
                fields={"exit_code": str(result.exit_code), "stderr": result.stderr_text[-2000:]},
            )
        return result

    async def start(
        self,
        command: str | Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        directory: str | None = None,
        stdin: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109 - the mesh keeps the time
        grace: float | None = None,
        on_full: str = "drop_oldest",
    ) -> AsyncRunningCommand:
        """Start a command in the background; returns once the program runs.

        With `stdin` it can be written to. `grace` is the time in seconds between SIGTERM and
        SIGKILL when the timeout has passed, 2 s by default. When the output that is kept has
        reached its bound, the oldest goes; with `on_full` = "block" the command waits until
        somebody reads it.
        """
        execution = await self._executions.start(
            self._sandbox_id,
            Command(
                arguments=_arguments(command),
                environment=dict(environment or {}),
                directory=self._directory if directory is None else directory,
                stdin=stdin,
                timeout=timeout,
                grace=grace,
                on_full=on_full,
            ),
        )
        return self.attach(execution.execution_id)

    def attach(self, execution_id: str) -> AsyncRunningCommand:
        """Take up a command that was started before, here or elsewhere."""
        return AsyncRunningCommand(executions=self._executions, execution_id=execution_id)

    async def batch(
        self,
        items: Sequence[str | Sequence[str] | Command | FileWork],
        *,
        continue_on_failure: bool = False,
        key: str = "",
    ) -> tuple[BatchOutcome, ...]:
        """Run commands and file operations one after the other in one call; one outcome for each.

        After one that fails the rest is skipped, unless `continue_on_failure`. The same `key` means
        the same batch: a call that is repeated gets its outcomes.
        """
        return await self._executions.batch(
            self._sandbox_id,
            [self._item(item) for item in items],
            continue_on_failure=continue_on_failure,
            key=key,
        )

    def _item(self, item: str | Sequence[str] | Command | FileWork) -> Command | FileWork:
        if isinstance(item, (str, Sequence)):
            return Command(arguments=_arguments(item), directory=self._directory)
        return item

    async def _feed(self, execution_id: str, stdin: bytes | None) -> None:
        if stdin is not None:
            await self._executions.feed_stdin(execution_id, _once(stdin))


async def _ended(running: AsyncRunningCommand) -> None:
    """Kill what nobody can take up again, since nobody else knows its id."""
    with suppress(FairleadError, TimeoutError):
        async with asyncio.timeout(_KILL_SECONDS):
            await running.kill()


def _arguments(command: str | Sequence[str]) -> list[str]:
    return ["sh", "-c", command] if isinstance(command, str) else list(command)


async def _once(content: bytes) -> AsyncIterator[bytes]:
    yield content
