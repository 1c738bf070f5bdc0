"""The worker's side of one init: an enclosure that starts programs, and hears of their ends."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from chassis.packet_link import LinkClosed, PacketLink, close_all
from chassis.packets import number, pack
from sandbox_worker.errors import (
    FenceStale,
    IsolationFailed,
    SandboxLost,
    SandboxSealed,
    WorkspaceNotFound,
    WorkspaceNotMounted,
)
from sandbox_worker.execution import ProgramEnd
from sandbox_worker.execution_errors import ProcessesExhausted
from sandbox_worker.isolation.cgroups import Cgroup
from sandbox_worker.isolation.held_limits import HeldLimits
from sandbox_worker.isolation.init_program import InitProgram, program_end
from sandbox_worker.isolation.lending import Lender, bound, fields_of
from sandbox_worker.isolation.mount_order import Bound
from sandbox_worker.isolation.pipes import Pipes
from sandbox_worker.isolation.proxy_variables import proxy_variables
from sandbox_worker.isolation.start_errors import is_given_back, start_error
from sandbox_worker.isolation.terminal_pipes import DEFAULT_TERM, TerminalPipes
from sandbox_worker.ports import FileAgent, ProgramOrder, Tree
from sandbox_worker.sandbox import Fence, Hold, Limits, Wall

_PATIENCE = 0.5
"""Seconds that an init gets to kill what is below it before it is killed itself. What it starts can
stop it, in a namespace of its own too: until it executes, a vforked program holds it up.
"""

_BRIEFLY = 0.05

Answer = tuple[list[bytes], list[int]]


def announce(
    link: socket.socket, held: HeldLimits, workspace: Tree | None, hold: Hold | None
) -> None:
    """Tell an init what it is to become and who holds it, before its enclosure is made: while that
    is done here, and the workspace opened, it wakes and gets ready. `take` tells what went wrong.
    """
    fields = [b"limit=" + each for each in held.fields]
    if held.file_bytes:
        fields.append(b"files=" + number(held.file_bytes))
    if hold is not None:
        fields.append(b"hold=" + b" ".join(_held(hold)))
    if workspace is not None:
        fields += fields_of(bound(workspace))
    with suppress(OSError):
        link.send(pack(b"expect", *fields))


class InitEnded(Exception):
    """The init ended before it had become a sandbox."""


class InitEnclosure:
    """All that the worker knows about one init and what runs below it.

    `view` is where the sandbox sees its workspace; None when that is where it is. `find_first`
    finds the host's number of the init, which the init tells itself without it. `lend` opens what a
    workspace needs for the init, `clear` removes what is left at the end.
    """

    def __init__(
        self,
        *,
        sandbox_id: str,
        link: socket.socket,
        walls: Sequence[Wall],
        environment: Mapping[str, str],
        home: Path,
        group: Cgroup,
        lend: Lender,
        kill: Callable[[], Awaitable[None]],
        clear: Callable[[], Awaitable[None]],
        view: Path | None = None,
        find_first: Callable[[], int] | None = None,
    ) -> None:
        self._sandbox_id = sandbox_id
        self._limits = Limits()
        self._walls = walls
        self._environment = environment
        self._directory = home
        self._group = group
        self._lend = lend
        self._kill = kill
        self._clear = clear
        self._view = view
        self._find_first = find_first
        self._first = 0
        self._tree: Path | None = None
        self._loop = asyncio.get_running_loop()
        self._answers: dict[bytes, asyncio.Future[Answer]] = {}
        self._programs: dict[bytes, InitProgram] = {}
        self._requests = itertools.count(1)
        self._gone = asyncio.Event()
        self._cut = asyncio.Event()
        self._spawner_lost = False
        self._link = PacketLink(link=link, arrived=self._on_packet, ended=self._on_cut)

    @property
    def limits(self) -> Limits:
        return self._limits

    @property
    def first_process(self) -> int:
        return self._first if self._find_first is None else self._find_first()

    @property
    def walls(self) -> Sequence[Wall]:
        return self._walls

    async def take(self, held: HeldLimits, workspace: Tree | None = None) -> None:
        """Make the init this sandbox, as `announce` has told it. Its cgroup is limited meanwhile.

        Raises InitEnded, IsolationFailed and WorkspaceNotMounted.
        """
        try:
            request = self._expect(b"r%d" % next(self._requests))
            if workspace is None:
                await self._request(request, b"take", request)
            else:
                await self._put(bound(workspace), request, b"take", request)
            self._limit(request, held.asked)
            answer = (await self._answer(request))[0]
        except SandboxLost:
            raise InitEnded from None
        if answer[0] == b"untaken":
            cause = os.strerror(int(answer[3]))
            raise (
                WorkspaceNotMounted(cause) if answer[2] == b"workspace" else IsolationFailed(cause)
            )
        self._limits = held.limits
        if workspace is not None:
            self._set_workspace(workspace)

    async def hold(self, fence: Fence, seconds: float) -> None:
        if (await self._ask(b"hold", _held(Hold(fence, seconds))))[0] == b"stale":
            raise FenceStale(self._sandbox_id)

    async def bind(self, workspace: Tree) -> None:
        answer = await self._ask(b"bind", (), workspace)
        if answer[0] == b"unbound":
            if int(answer[2]) == errno.EBUSY:
                raise SandboxSealed(self._sandbox_id)
            raise WorkspaceNotMounted(os.strerror(int(answer[2])))
        self._set_workspace(workspace)

    async def start(self, order: ProgramOrder) -> InitProgram:
        if is_given_back(self._tree):
            raise WorkspaceNotFound(self._tree.name if self._tree else "")
        try:
            pipes = TerminalPipes() if order.terminal else Pipes(stdin=order.stdin)
        except OSError as error:
            raise ProcessesExhausted from error
        mark = self._group.mark()
        program = InitProgram(
            execution_id=order.execution_id,
            pipes=pipes,
            link=self._link,
            breach=lambda end: self._group.breach(mark, end),
            kill_all=self._kill,
        )
        try:
            await self._start(order, program, pipes)
        except BaseException:
            pipes.close()
            raise
        return program

    async def connect(self, port: int) -> socket.socket | None:
        request = self._expect(b"c%d" % next(self._requests))
        await self._request(request, b"connect", request, number(port))
        _, descriptors = await self._answer(request)
        return socket.socket(fileno=descriptors[0]) if descriptors else None

    async def listen(self) -> socket.socket:
        request = self._expect(b"l%d" % next(self._requests))
        await self._request(request, b"listen", request)
        fields, descriptors = await self._answer(request)
        if not descriptors:
            cause = int(fields[2]) if fields[0] == b"unheard" else errno.EMFILE
            raise IsolationFailed(os.strerror(cause))
        listener = socket.socket(fileno=descriptors[0])
        port = listener.getsockname()[1]
        self._environment = {**self._environment, **proxy_variables(port)}
        return listener

    async def files(self) -> FileAgent:
        if is_given_back(self._tree):
            raise WorkspaceNotFound(self._tree.name if self._tree else "")
        request = self._expect(b"f%d" % next(self._requests))
        await self._request(request, b"files", request, os.fsencode(self._directory))
        _, descriptors = await self._answer(request)
        if not descriptors:
            raise ProcessesExhausted
        return FileAgent(socket.socket(fileno=descriptors[0]), lambda: self._kill_agent(request))

    async def gone(self) -> None:
        await self._gone.wait()

    async def destroy(self) -> None:
        end = self._loop.time() + _PATIENCE
        with suppress(LinkClosed, TimeoutError):
            # There is no room when it is stopped and was sent much.
            async with asyncio.timeout_at(end):
                await self._link.send(b"release")
                # One that ends by itself leaves nothing in its cgroup to be killed.
                async with asyncio.timeout(_BRIEFLY):
                    await self._gone.wait()
        await self._group.release()
        try:
            async with asyncio.timeout_at(end):
                await self._gone.wait()
        except TimeoutError:
            await self._kill()
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
                answer.set_exception(SandboxLost(self._sandbox_id))
                answer.exception()  # That nobody may wait for it is no news.
        if self._spawner_lost:
            self.on_gone()

    async def _kill_agent(self, request: bytes) -> None:
        with suppress(LinkClosed):
            await self._link.send(b"signal", request, number(signal.SIGKILL))

    def _set_workspace(self, workspace: Tree) -> None:
        self._tree = workspace.path
        self._directory = self._view or workspace.path

    async def _start(
        self, order: ProgramOrder, program: InitProgram, pipes: Pipes | TerminalPipes
    ) -> None:
        execution = self._expect(order.execution_id.encode())
        size = order.terminal
        terminal = {"TERM": DEFAULT_TERM} if size else {}
        variables = {**self._environment, **terminal, **order.environment}
        variables["FAIRLEAD_SANDBOX_ID"] = self._sandbox_id
        environment = [os.fsencode(f"{name}={value}") for name, value in variables.items()]
        arguments = [os.fsencode(argument) for argument in order.arguments]
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
                    b"%d %d" % (size.rows, size.columns) if size else b"",
                    number(len(arguments)),
                    *arguments,
                    *environment,
                    descriptors=pipes.far.descriptors,
                )
            finally:
                pipes.far.close()
            fields, descriptors = await self._answer(execution)
        except BaseException:
            self._programs.pop(execution, None)
            raise
        if fields[0] == b"unstarted":
            self._programs.pop(execution, None)
            raise start_error(order, fields[2], int(fields[3]), self._tree)
        if isinstance(pipes, TerminalPipes) and not pipes.open(descriptors):
            await program.expire(signal.SIGKILL)
            raise ProcessesExhausted

    async def _ask(
        self, verb: bytes, fields: Sequence[bytes], workspace: Tree | None = None
    ) -> list[bytes]:
        """Send a request, with what a workspace needs, and return the answer; raises SandboxLost
        and WorkspaceNotMounted.
        """
        request = self._expect(b"r%d" % next(self._requests))
        if workspace is None:
            await self._request(request, verb, request, *fields)
        else:
            named = bound(workspace)
            await self._put(named, request, verb, request, *fields, *fields_of(named))
        return (await self._answer(request))[0]

    async def _put(self, named: Bound, request: bytes, *fields: bytes) -> None:
        """Send a request with the descriptors of a workspace."""
        try:
            lent = await self._lend(named)
        except OSError as error:
            self._answers.pop(request, None)
            if self._gone.is_set():
                # Not the workspace's fault: nobody was left to map its files.
                raise SandboxLost(self._sandbox_id) from None
            raise WorkspaceNotMounted(error.strerror or "it cannot be opened") from error
        try:
            await self._request(request, *fields, descriptors=lent)
        finally:
            close_all(lent)

    def _limit(self, request: bytes, limits: Limits) -> None:
        try:
            self._group.limit(limits)
        except OSError as error:
            self._answers.pop(request, None)
            raise IsolationFailed(error.strerror or "its limits cannot be set") from error

    def _expect(self, request: bytes) -> bytes:
        self._answers[request] = self._loop.create_future()
        return request

    async def _request(
        self, request: bytes, *fields: bytes, descriptors: Sequence[int] = ()
    ) -> None:
        try:
            await self._link.send(*fields, descriptors=descriptors)
        except BaseException as error:
            self._answers.pop(request, None)
            if isinstance(error, LinkClosed):
                raise SandboxLost(self._sandbox_id) from None
            if isinstance(error, OSError) and error.errno == errno.ETOOMANYREFS:
                raise ProcessesExhausted from error
            raise

    async def _answer(self, request: bytes) -> Answer:
        """Wait for the answer to a request; raises SandboxLost when the init ended first."""
        answer = self._answers[request]
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                close_all(answer.result()[1])
            raise
        finally:
            self._answers.pop(request, None)

    def _on_packet(self, fields: list[bytes], descriptors: list[int]) -> None:
        if fields[0] == b"exit":
            close_all(descriptors)
            program = self._programs.pop(fields[1], None)
            if program is not None:
                program.on_end(program_end(*(int(each) for each in fields[2:5])))
            return
        if fields[0] == b"ready":
            self._first = int(fields[1])
        answer = self._answers.get(fields[1])
        if answer is None or answer.done():
            close_all(descriptors)
        else:
            answer.set_result((fields, descriptors))


def _held(hold: Hold) -> Sequence[bytes]:
    """Name a holder to the init, and when it ends by the boot-time clock."""
    ends_at = time.clock_gettime(time.CLOCK_BOOTTIME) + hold.seconds
    return number(hold.fence.epoch), number(hold.fence.counter), b"%f" % ends_at
