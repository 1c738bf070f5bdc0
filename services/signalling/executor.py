"""Executions from the caller's side, in any sandbox of the caller's launches: start, get, watch,
stdin, signal.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, contextmanager, nullcontext
from typing import TypeVar

from chassis.errors import (
    DeadlineExceeded,
    FairleadError,
    Internal,
    NotFound,
    Unavailable,
)
from chassis.ids import derived_id, is_id, random_id
from chassis.limits import check_size
from fairlead_limits import table
from signalling.batch import Batch, BatchOutcome
from signalling.execution import (
    Command,
    Execution,
    Exit,
    OutputFrame,
    OutputGap,
    OutputRecord,
    TerminalSize,
)
from signalling.host import Host
from signalling.launch_errors import (
    Draining,
    ExecutionNotFound,
    HostLost,
    SandboxLost,
    SandboxNotFound,
)
from signalling.launch_output import last_of
from signalling.launch_record import ExecutionPlace, LaunchTimings
from signalling.launch_request import check_command, check_key, check_terminal
from signalling.launches import Launches
from signalling.ports import Executions, Hosts, Locations, SandboxPlaces
from signalling.terminal import TerminalFrame, TerminalInput, TerminalOpening, Typed
from signalling.workspace_errors import PageTokenInvalid

_log = logging.getLogger(__name__)
_REMEMBERED = 4096

Item = TypeVar("Item")


class Executor:
    """Every call raises FairleadError; foreign sandboxes and executions are not found."""

    def __init__(
        self,
        *,
        launches: Launches,
        locations: Locations,
        hosts: Hosts,
        executions: Executions,
        sandboxes: SandboxPlaces,
        timings: LaunchTimings,
    ) -> None:
        self._launches = launches
        self._locations = locations
        self._hosts = hosts
        self._executions = executions
        self._sandboxes = sandboxes
        self._timings = timings
        self._places: OrderedDict[str, ExecutionPlace] = OrderedDict()
        self._draining = asyncio.Event()

    def drain(self) -> None:
        """End every stream with Draining."""
        self._draining.set()

    async def start(
        self, tenant: str, sandbox_id: str, command: Command, key: str | None
    ) -> Execution:
        """Start a command in a sandbox; the same key there gives the same execution."""
        worker_key = _worker_key(key)
        check_command(command)
        place = await self.place_of_sandbox(tenant, sandbox_id)
        with self._naming_the_workspace(sandbox_id):
            execution = await self._executions.start(
                place.host, tenant=tenant, key=worker_key, sandbox_id=sandbox_id, command=command
            )
        await self._note(execution.execution_id, place)
        return execution

    async def run(
        self, tenant: str, sandbox_id: str, command: Command, key: str | None, after: int
    ) -> AsyncGenerator[OutputFrame, None]:
        """Start a command as `start` does and stream what `watch` does; close it when it is left
        early.
        """
        worker_key = _worker_key(key)
        check_command(command)
        _check_after(after)
        place = await self.place_of_sandbox(tenant, sandbox_id)
        running = self._executions.run(
            place.host,
            tenant=tenant,
            key=worker_key,
            sandbox_id=sandbox_id,
            command=command,
            after=after,
        )
        async with AsyncExitStack() as stack:
            with self._naming_the_workspace(sandbox_id):
                execution, frames = await stack.enter_async_context(running)
            await self._note(execution.execution_id, place)
            yield execution
            following = self._follow(place, execution.execution_id, after, frames)
            async with aclosing(following) as rest:
                async for frame in rest:
                    yield frame

    async def run_batch(
        self, tenant: str, sandbox_id: str, batch: Batch, key: str | None
    ) -> Sequence[BatchOutcome]:
        """Run a batch in a sandbox to its end; the same key there means the same batch."""
        worker_key = _worker_key(key)
        batch.check()
        place = await self.place_of_sandbox(tenant, sandbox_id)
        outcomes = await self._executions.run_batch(
            place.host,
            tenant=tenant,
            key=worker_key,
            sandbox_id=sandbox_id,
            batch=batch,
        )
        for outcome in outcomes:
            if outcome.execution is not None:
                await self._note(outcome.execution.execution_id, place)
        return outcomes

    async def get(self, tenant: str, execution_id: str) -> Execution:
        """Return an execution."""
        place = await self._execution(tenant, execution_id)
        return await self._executions.get(place.host, tenant=tenant, execution_id=execution_id)

    async def list(
        self, tenant: str, sandbox_id: str, page_size: int, page_token: str
    ) -> tuple[Sequence[Execution], str]:
        """Return executions of a sandbox by id, also some that have ended, and the token of the
        next page; page size 0 means 50. Raises SandboxNotFound, LimitBroken and PageTokenInvalid.
        """
        check_size(table.PAGE_SIZE, page_size)
        if page_token and not is_id("exe", page_token):
            raise PageTokenInvalid
        place = await self.place_of_sandbox(tenant, sandbox_id)
        found, token = await self._executions.list(
            place.host, tenant=tenant, sandbox_id=sandbox_id, size=page_size, after=page_token
        )
        for each in found:
            self._remember(each.execution_id, place)
        return found, token

    async def watch(
        self, tenant: str, execution_id: str, after: int
    ) -> AsyncGenerator[OutputFrame, None]:
        """Stream the execution, its output after a sequence number and its exit; close it when it
        is left early.

        A broken stream is taken up where it was. Raises `cursor_gone`, and HostLost when the host
        stays away.
        """
        _check_after(after)
        place = await self._execution(tenant, execution_id)
        async with aclosing(self._follow(place, execution_id, after)) as frames:
            async for frame in frames:
                yield frame

    async def _follow(
        self,
        place: ExecutionPlace,
        execution_id: str,
        after: int,
        started: AsyncIterator[OutputFrame] | None = None,
    ) -> AsyncGenerator[OutputFrame, None]:
        """Stream an execution; `started` is the rest of a stream whose beginning was told."""
        pause, away, opened = self._timings.retry_pause, 0.0, started is not None
        following = nullcontext(started) if started is not None else None
        while True:
            try:
                async with following or self._executions.watch(
                    self._current(place).host,
                    tenant=place.tenant,
                    execution_id=execution_id,
                    after=after,
                ) as frames:
                    async for frame in self.until_drained(frames):
                        pause, away = self._timings.retry_pause, 0.0
                        if isinstance(frame, Execution) and opened:
                            continue
                        opened = True
                        if isinstance(frame, OutputRecord | OutputGap):
                            if last_of(frame) <= after:
                                continue
                            after = last_of(frame)
                        yield frame
                        if isinstance(frame, Exit):
                            return
            except Draining:
                raise
            except (Unavailable, DeadlineExceeded, Internal) as broken:
                if not opened:
                    raise
                _log.debug("output stream broke", extra={"reason": broken.reason})
            following = None
            if away > self._timings.host_lost_after:
                raise HostLost
            await asyncio.sleep(pause)
            away += pause
            pause = min(pause * 2, self._timings.retry_pause_limit)

    async def write_stdin(
        self, tenant: str, execution_id: str, offset: int, content: bytes, close: bool
    ) -> int:
        """Write to standard input at an offset; return how far it has come."""
        _check_typed(offset, content)
        place = await self._execution(tenant, execution_id)
        return await self._executions.write_stdin(
            place.host,
            tenant=tenant,
            execution_id=execution_id,
            offset=offset,
            content=content,
            close=close,
        )

    async def signal(self, tenant: str, execution_id: str, signal: int) -> Execution:
        """Send a signal, 1 to 64, to the execution's process group."""
        check_size(table.SIGNAL, signal)
        place = await self._execution(tenant, execution_id)
        return await self._executions.signal(
            place.host, tenant=tenant, execution_id=execution_id, signal=signal
        )

    async def resize(self, tenant: str, execution_id: str, size: TerminalSize) -> Execution:
        """Change the size of the execution's terminal."""
        check_terminal("size", size)
        place = await self._execution(tenant, execution_id)
        return await self._executions.resize(
            place.host, tenant=tenant, execution_id=execution_id, size=size
        )

    async def attach(
        self,
        tenant: str,
        execution_id: str,
        opening: TerminalOpening,
        typed: AsyncIterator[Typed],
    ) -> AsyncGenerator[TerminalFrame, None]:
        """Type into the execution's terminal and stream what it shows; closing it lets go.

        A broken stream is not taken up again here: only who types knows what was typed.
        """
        _check_after(opening.after)
        if opening.size is not None:
            check_terminal("size", opening.size)
        place = await self._execution(tenant, execution_id)
        async with self._executions.attach(
            place.host,
            tenant=tenant,
            execution_id=execution_id,
            opening=opening,
            typed=_checked(typed),
        ) as frames:
            async for frame in self.until_drained(frames):
                yield frame

    async def place_of_sandbox(self, tenant: str, sandbox_id: str) -> ExecutionPlace:
        """Return where a sandbox is; a foreign one is not found."""
        if not is_id("sbx", sandbox_id):
            raise SandboxNotFound(sandbox_id)
        place = self._launches.place_of_sandbox(sandbox_id) or self._places.get(sandbox_id)
        if place is None:
            place = await self._locations.sandbox(sandbox_id)
        if place is None:  # One that has a lease of its own.
            host = await self._sandboxes.place(tenant, sandbox_id)
            place = ExecutionPlace(tenant, host, sandbox_id)
        if place.tenant != tenant:
            raise SandboxNotFound(sandbox_id)
        self._remember(sandbox_id, place)
        return self._current(place)

    @contextmanager
    def _naming_the_workspace(self, sandbox_id: str) -> Iterator[None]:
        """Say of a launch's sandbox that is not at its worker any more what is left of it."""
        try:
            yield
        except NotFound as gone:
            workspace_id = self._launches.workspace_of_sandbox(sandbox_id)
            if gone.reason != "sandbox_not_found" or not workspace_id:
                raise
            raise SandboxLost(sandbox_id, workspace_id) from gone

    async def _execution(self, tenant: str, execution_id: str) -> ExecutionPlace:
        if not is_id("exe", execution_id):
            raise ExecutionNotFound(execution_id)
        place = self._launches.place_of_execution(execution_id) or self._places.get(execution_id)
        if place is None:
            place = await self._locations.execution(execution_id)
        if place is None or place.tenant != tenant:
            raise ExecutionNotFound(execution_id)
        self._remember(execution_id, place)
        return self._current(place)

    def _current(self, place: ExecutionPlace) -> ExecutionPlace:
        """Return the place with the addresses that its host has now."""
        host: Host = self._hosts.find(place.host.host_id) or place.host
        return ExecutionPlace(place.tenant, host, place.sandbox_id)

    async def _note(self, execution_id: str, place: ExecutionPlace) -> None:
        """Let also the other replicas find an execution."""
        self._remember(execution_id, place)
        try:
            await self._locations.put_execution(execution_id, place)
        except FairleadError:
            _log.warning(
                "other replicas do not know an execution", extra={"execution_id": execution_id}
            )

    def _remember(self, execution_id: str, place: ExecutionPlace) -> None:
        self._places[execution_id] = place
        self._places.move_to_end(execution_id)
        while len(self._places) > _REMEMBERED:
            self._places.popitem(last=False)

    async def until_drained(self, frames: AsyncIterator[Item]) -> AsyncIterator[Item]:
        """Yield frames, and raise Draining when this replica drains."""
        drained = asyncio.ensure_future(self._draining.wait())
        following: asyncio.Future[Item | None] | None = None
        try:
            while True:
                following = asyncio.ensure_future(anext(frames, None))
                await asyncio.wait((drained, following), return_when=asyncio.FIRST_COMPLETED)
                if drained.done():
                    raise Draining
                frame = following.result()
                if frame is None:
                    return
                yield frame
        finally:
            drained.cancel()
            if following is not None:
                following.cancel()
            await asyncio.gather(drained, *filter(None, (following,)), return_exceptions=True)


def _check_typed(offset: int, content: bytes) -> None:
    check_size(table.STDIN_BYTES, len(content))
    check_size(table.POSITION, offset)


def _check_after(after: int) -> None:
    check_size(table.POSITION, after, "after_sequence")


def _worker_key(key: str | None) -> str:
    """Return the worker's key for a client's: a launch's own is its id, so that no client's is."""
    if not key:
        return random_id("key")
    check_key(key)
    return derived_id("key", key, key=b"")


async def _checked(typed: AsyncIterator[Typed]) -> AsyncGenerator[Typed, None]:
    async for piece in typed:
        match piece:
            case TerminalSize():
                check_terminal("resize", piece)
            case TerminalInput(offset, content):
                _check_typed(offset, content)
        yield piece
