"""Commands in the sandbox of one launch, and what they left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from fairlead_sdk.errors import CommandFailed
from fairlead_sdk.executions import AsyncExecutions
from fairlead_sdk.launches import Command
from fairlead_sdk.records import Exit, OutputRecord


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a command left: its output as bytes (and as text), and how it ended.

    `exit_code` counts as a shell does: 128 + n for signal n, 124 when the timeout passed.
    """

    stdout: bytes
    stderr: bytes
    exit: Exit

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


class AsyncCommands:
    """Commands in the sandbox of one launch."""

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
        in seconds. With `check` another exit code than 0 raises `CommandFailed`.
        """
        arguments = ["sh", "-c", command] if isinstance(command, str) else list(command)
        execution = await self._executions.start(
            self._sandbox_id,
            Command(
                arguments=arguments,
                environment=dict(environment or {}),
                directory=self._directory if directory is None else directory,
                stdin=stdin is not None,
                timeout=timeout,
            ),
        )
        feeding = asyncio.ensure_future(self._feed(execution.execution_id, stdin))
        try:
            result = await self._collect(execution.execution_id)
        finally:
            feeding.cancel()
            await asyncio.wait((feeding,))
        if check and result.exit_code != 0:
            raise CommandFailed(
                f"{arguments[0]} ended with exit code {result.exit_code}.",
                reason="command_failed",
                fields={"exit_code": str(result.exit_code), "stderr": result.stderr_text[-2000:]},
            )
        return result

    async def _feed(self, execution_id: str, stdin: bytes | None) -> None:
        if stdin is not None:
            await self._executions.feed_stdin(execution_id, _once(stdin))

    async def _collect(self, execution_id: str) -> CommandResult:
        parts: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        async with aclosing(self._executions.output(execution_id)) as frames:
            async for frame in frames:
                match frame.content:
                    case OutputRecord(stream=stream, content=content):
                        parts[stream] += content
                    case Exit() as exit_:
                        return CommandResult(bytes(parts["stdout"]), bytes(parts["stderr"]), exit_)
        raise AssertionError("an output ends with its exit, or raises")


async def _once(content: bytes) -> AsyncIterator[bytes]:
    yield content
