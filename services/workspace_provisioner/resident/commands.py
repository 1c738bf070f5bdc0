"""Runs commands in workspaces: output told apart, signals to the whole group, nothing left behind.

There is no sandbox here: a command may do what the account may do.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process, SubprocessStreamProtocol
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from chassis.errors import FailedPrecondition, InvalidArgument
from workspace_provisioner.resident.calls import Call
from workspace_provisioner.resident.guard import STAYS

_READ_BYTES = 64 * 1024
_SHUTTING_SECONDS = 1.0
_SIGNALS = frozenset(
    {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGKILL, signal.SIGTERM}
    | {signal.SIGUSR1, signal.SIGUSR2, signal.SIGSTOP, signal.SIGCONT, signal.SIGTSTP}
)


class CommandNotFound(FailedPrecondition):
    """There is no such program on the host, or it cannot be run."""

    def __init__(self, program: str, cause: str) -> None:
        remedy = "Name a program that is on the host's path."
        if set(" |&;<>$*\n").intersection(program):
            remedy = f"Use a shell for a line of several words: sh -c {shlex.quote(program)}"
        super().__init__(
            f"The host cannot run {program!r}: {cause}.",
            reason="command_not_found",
            remedy=remedy,
            fields={"program": program},
        )


class DirectoryInvalid(InvalidArgument):
    """The directory is not one in the workspace."""

    def __init__(self) -> None:
        super().__init__(
            "The directory is not one inside the workspace.",
            reason="directory_invalid",
            remedy="Name a directory that the repository has, relative to its top.",
        )


class _Streams(SubprocessStreamProtocol):
    """Says when the command has exited: `Process.wait` waits for all who have its output open."""

    def __init__(self, limit: int, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit=limit, loop=loop)
        self.exited = asyncio.Event()

    def process_exited(self) -> None:
        """Take the exit."""
        super().process_exited()
        self.exited.set()


@dataclass(frozen=True, slots=True)
class CommandRequest:
    """A checked request to run something; `stays`: it may outlive its call and the connection."""

    arguments: Sequence[str]
    environment: Mapping[str, str]
    directory: str
    takes_input: bool
    seconds: float | None
    stays: bool


def directory_in(tree: Path, relative: str) -> Path:
    """Return a directory beneath a tree, symbolic links followed; raises DirectoryInvalid."""
    try:
        found = (tree / relative).resolve(strict=True)
        inside = found.is_relative_to(tree.resolve(strict=True))
    except (OSError, ValueError, RuntimeError):
        raise DirectoryInvalid from None
    if not inside or not found.is_dir() or relative.startswith("/"):
        raise DirectoryInvalid
    return found


async def run_command(call: Call, request: CommandRequest, *, tree: Path) -> dict[str, object]:
    """Run to the end and say how it ended: `exited` with a code, `signalled` or `timed_out`.

    Whoever stops waiting kills the command with its group, unless it stays.
    """
    directory = directory_in(tree, request.directory)
    loop = asyncio.get_running_loop()
    end = None if request.seconds is None else loop.time() + request.seconds
    process, exited, transport = await _started(request, directory)
    signalled = timed_out = False

    def signal_group(number: int) -> None:
        nonlocal signalled
        signalled = True
        _signal(process, number)

    call.signals = signal_group
    feeding = asyncio.ensure_future(_feed(process, call))
    reading = asyncio.ensure_future(_read(process, call))
    try:
        try:
            async with asyncio.timeout_at(end):
                await exited.wait()
        except TimeoutError:
            timed_out = True
            _kill(process)
            await exited.wait()
        if not request.stays:
            _kill(process)
        if request.stays or timed_out or (signalled and process.returncode):
            end = loop.time()
        await _last_output(reading, end)
    finally:
        call.signals = None
        if not request.stays:
            _kill(process)
        feeding.cancel()
        reading.cancel()
        if not request.stays:
            transport.close()  # a daemon may hold the other ends open
        await asyncio.wait((feeding, reading))
    status = process.returncode or 0
    if timed_out:
        return {"reason": "timed_out"}
    if status < 0:
        return {"reason": "signalled", "signal": -status}
    return {"reason": "exited", "code": status}


async def _started(
    request: CommandRequest, directory: Path
) -> tuple[Process, asyncio.Event, asyncio.SubprocessTransport]:
    environment = {**os.environ, **request.environment, "PWD": str(directory)}
    environment.pop("OLDPWD", None)
    environment.pop(STAYS, None)
    if request.stays:
        environment[STAYS] = "1"
    program = request.arguments[0]
    loop = asyncio.get_running_loop()
    try:
        transport, protocol = await loop.subprocess_exec(
            lambda: _Streams(limit=2 * _READ_BYTES, loop=loop),
            *request.arguments,
            cwd=directory,
            env=environment,
            stdin=PIPE if request.takes_input else DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        cause = (error.strerror or "") if isinstance(error, OSError) else str(error)
        raise CommandNotFound(program, cause or "it cannot be started") from None
    return Process(transport, protocol, loop), protocol.exited, transport


async def _feed(process: Process, call: Call) -> None:
    """Hand the client's bytes on; a command that reads no more lets the rest be dropped."""
    if process.stdin is None:
        return
    gone = False
    async for chunk in call.received():
        if gone:
            continue
        try:
            process.stdin.write(chunk)
            await process.stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            gone = True
    with suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.close()


async def _read(process: Process, call: Call) -> None:
    assert process.stdout is not None  # noqa: S101 - both are pipes
    assert process.stderr is not None  # noqa: S101
    async with asyncio.TaskGroup() as pumping:
        pumping.create_task(_pump(process.stdout, call, "stdout"))
        pumping.create_task(_pump(process.stderr, call, "stderr"))


async def _pump(source: asyncio.StreamReader, call: Call, stream: str) -> None:
    while chunk := await source.read(_READ_BYTES):
        await call.send(chunk, stream=stream)


async def _last_output(reading: asyncio.Future[None], end: float | None) -> None:
    """Wait for the end of the output; once `end` has come only a moment, since what left the
    command's group may hold it open.
    """
    if end is not None:
        end = max(end, asyncio.get_running_loop().time() + _SHUTTING_SECONDS)
    with suppress(TimeoutError):
        async with asyncio.timeout_at(end):
            await asyncio.shield(reading)


def _signal(process: Process, number: int) -> None:
    if number in _SIGNALS and process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)


def _kill(process: Process) -> None:
    """Kill what is left of the group; its number stays taken while one of it lives."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
