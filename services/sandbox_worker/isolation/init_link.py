"""The worker's side of one init: an enclosure that starts programs, and hears of their ends."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from chassis.ids import is_id
from chassis.packet_link import LinkClosed, PacketLink, close_all
from chassis.packets import number
from sandbox_worker.errors import (
    IsolationFailed,
    SandboxLost,
    WorkspaceNotFound,
    WorkspaceNotMounted,
)
from sandbox_worker.execution import Piece, ProgramEnd
from sandbox_worker.execution_errors import (
    CommandInvalid,
    CommandNotExecutable,
    CommandNotFound,
    DirectoryNotFound,
    DirectoryOutside,
    ProcessesExhausted,
)
from sandbox_worker.isolation.pipes import Pipes
from sandbox_worker.ports import ProgramOrder, Tree
from sandbox_worker.sandbox import Limits

_PATIENCE = 5.0
"""Seconds that an init gets to kill what is below it before it is killed itself."""

Answer = tuple[list[bytes], list[int]]


class InitProgram:
    """One program below an init."""

    def __init__(self, *, execution_id: str, pipes: Pipes, link: PacketLink) -> None:
        self._execution_id = execution_id.encode()
        self._pipes = pipes
        self._link = link
        self._end: ProgramEnd | None = None

    @property
    def end(self) -> ProgramEnd | None:
        return self._end

    async def read(self) -> Sequence[Piece]:
        return await self._pipes.read()

    async def write(self, content: bytes) -> int:
        return await self._pipes.write(content)

    def close_stdin(self) -> None:
        self._pipes.close_stdin()

    async def signal(self, number_: int) -> None:
        await self._send(b"signal", number_)

    async def expire(self, number_: int) -> None:
        await self._send(b"expire", number_)

    def close(self) -> None:
        self._pipes.close()

    def on_end(self, end: ProgramEnd) -> None:
        """Take the first of: its wait status, the loss of its init."""
        if self._end is None:
            self._end = end
            self._pipes.end()

    async def _send(self, verb: bytes, which: int) -> None:
        with suppress(LinkClosed):
            await self._link.send(verb, self._execution_id, number(which))


class InitEnclosure:
    """All that the worker knows about one init and what runs below it."""

    def __init__(
        self,
        *,
        sandbox_id: str,
        link: socket.socket,
        limits: Limits,
        environment: Mapping[str, str],
        home: Path,
        kill: Callable[[str], Awaitable[None]],
        clear: Callable[[], Awaitable[None]],
    ) -> None:
        self._sandbox_id = sandbox_id
        self._limits = limits
        self._environment = environment
        self._directory = home
        self._kill = kill
        self._clear = clear
        self._loop = asyncio.get_running_loop()
        self._answers: dict[bytes, asyncio.Future[Answer]] = {}
        self._programs: dict[bytes, InitProgram] = {}
        self._requests = itertools.count(1)
        self._gone = asyncio.Event()
        self._cut = asyncio.Event()
        self._spawner_lost = False
        self._pid = 0
        self._answers[b"ready"] = self._loop.create_future()
        self._link = PacketLink(link=link, arrived=self._on_packet, ended=self._on_cut)

    @property
    def limits(self) -> Limits:
        return self._limits

    @property
    def pid(self) -> int:
        """The process id of the init; 0 before it is ready."""
        return self._pid

    async def ready(self) -> None:
        """Wait for the init; raises IsolationFailed."""
        fields, _ = await self._answer(b"ready", IsolationFailed("its first process ended"))
        self._pid = int(fields[1])

    async def bind(self, workspace: Tree) -> None:
        layers = workspace.layers
        if layers is not None:
            request = b"m%d" % next(self._requests)
            self._answers[request] = self._loop.create_future()
            paths = (workspace.path, layers.upper, layers.work, *layers.lower)
            await self._request(request, b"mount", request, *(os.fsencode(path) for path in paths))
            fields, _ = await self._answer(request, SandboxLost(self._sandbox_id))
            if fields[0] == b"unmounted":
                raise WorkspaceNotMounted(os.strerror(int(fields[2])))
        self._directory = workspace.path

    async def start(self, order: ProgramOrder) -> InitProgram:
        try:
            pipes = Pipes(stdin=order.stdin)
        except OSError as error:
            raise ProcessesExhausted from error
        program = InitProgram(execution_id=order.execution_id, pipes=pipes, link=self._link)
        try:
            await self._start(order, program, pipes)
        except BaseException:
            pipes.close()
            raise
        return program

    async def connect(self, port: int) -> socket.socket | None:
        request = b"c%d" % next(self._requests)
        self._answers[request] = self._loop.create_future()
        await self._request(request, b"connect", request, number(port))
        _, descriptors = await self._answer(request, SandboxLost(self._sandbox_id))
        return socket.socket(fileno=descriptors[0]) if descriptors else None

    async def gone(self) -> None:
        await self._gone.wait()

    async def destroy(self) -> None:
        with suppress(LinkClosed):
            await self._link.send(b"release")
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._gone.wait()
        except TimeoutError:
            await self._kill(self._sandbox_id)
            await self._gone.wait()
        await self._clear()

    def on_gone(self) -> None:
        """Take note that the init is reaped and nothing below it is left."""
        # Its last words may still lie in the socket.
        self._link.drain()
        self._link.close()
        self._gone.set()
        for program in list(self._programs.values()):
            program.on_end(ProgramEnd())
        self._programs.clear()

    def on_spawner_lost(self) -> None:
        """Take note that nobody will report the end of the init: its end-of-file has to do."""
        self._spawner_lost = True
        if self._cut.is_set():
            self.on_gone()

    def _on_cut(self) -> None:
        self._cut.set()
        for answer in self._answers.values():
            if not answer.done():
                answer.cancel()
        if self._spawner_lost:
            self.on_gone()

    async def _start(self, order: ProgramOrder, program: InitProgram, pipes: Pipes) -> None:
        execution = order.execution_id.encode()
        variables = {**self._environment, **order.environment}
        variables["FAIRLEAD_SANDBOX_ID"] = self._sandbox_id
        environment = [os.fsencode(f"{name}={value}") for name, value in variables.items()]
        arguments = [os.fsencode(argument) for argument in order.arguments]
        self._answers[execution] = self._loop.create_future()
        self._programs[execution] = program
        try:
            try:
                await self._request(
                    execution,
                    b"start",
                    execution,
                    os.fsencode(self._directory),
                    os.fsencode(order.directory),
                    os.fsencode(variables["PATH"]),
                    number(len(arguments)),
                    *arguments,
                    *environment,
                    descriptors=pipes.far.descriptors,
                )
            finally:
                pipes.far.close()
            fields, _ = await self._answer(execution, SandboxLost(self._sandbox_id))
        except BaseException:
            self._programs.pop(execution, None)
            raise
        if fields[0] == b"unstarted":
            self._programs.pop(execution, None)
            raise _start_error(order, fields[2], int(fields[3]), self._directory)

    async def _request(
        self, request: bytes, *fields: bytes, descriptors: Sequence[int] = ()
    ) -> None:
        try:
            await self._link.send(*fields, descriptors=descriptors)
        except BaseException as error:
            self._answers.pop(request, None)
            if isinstance(error, LinkClosed):
                raise SandboxLost(self._sandbox_id) from None
            raise

    async def _answer(self, request: bytes, lost: Exception) -> Answer:
        """Wait for the answer to a request; raises `lost` when the init ended first."""
        answer = self._answers[request]
        try:
            await asyncio.wait([answer])
            if answer.cancelled():
                raise lost
            return answer.result()
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled():
                close_all(answer.result()[1])
            raise
        finally:
            self._answers.pop(request, None)

    def _on_packet(self, fields: list[bytes], descriptors: list[int]) -> None:
        verb = fields[0]
        if verb == b"exit":
            program = self._programs.pop(fields[1], None)
            if program is not None:
                program.on_end(_program_end(int(fields[2])))
            return
        answer = self._answers.get(verb if verb == b"ready" else fields[1])
        if answer is None or answer.done():
            close_all(descriptors)
        else:
            answer.set_result((fields, descriptors))


def _program_end(status: int) -> ProgramEnd:
    if os.WIFSIGNALED(status):
        return ProgramEnd(signal=os.WTERMSIG(status))
    return ProgramEnd(code=os.WEXITSTATUS(status))


def _start_error(order: ProgramOrder, step: bytes, cause: int, root: Path) -> Exception:
    if step == b"directory":
        if is_id("wsp", root.name) and not root.is_dir():
            return WorkspaceNotFound(root.name)  # it was given back by force, or its lease ended
        if cause == errno.EXDEV:
            return DirectoryOutside(order.directory)
        return DirectoryNotFound(order.directory)
    match cause:
        case errno.ENOENT | errno.ENOTDIR | errno.ENAMETOOLONG | errno.ELOOP:
            return CommandNotFound(order.arguments[0])
        case errno.EAGAIN | errno.ENOMEM | errno.EMFILE | errno.ENFILE:
            return ProcessesExhausted()
        case errno.E2BIG:
            return CommandInvalid("The arguments and the environment are too long for the kernel.")
        case _:
            return CommandNotExecutable(order.arguments[0])
