"""The blocking client: the asynchronous one on a loop in a thread of its own, call by call."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from fairlead_sdk.commands import AsyncCommands, CommandResult
from fairlead_sdk.events import LaunchEvent
from fairlead_sdk.fairlead import AsyncFairlead, AsyncLaunch
from fairlead_sdk.launches import AsyncLaunches
from fairlead_sdk.records import LaunchRecord, Trace

if TYPE_CHECKING:
    from httpx2 import AsyncBaseTransport

    from fairlead_sdk.forwarding import LocalPort

Result = TypeVar("Result")


class LoopThread:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="fairlead-sdk", daemon=True
        )
        self._thread.start()

    def run(self, work: Coroutine[object, object, Result]) -> Result:
        """Run to the end and give the result; an interrupt cancels the work and waits for it."""
        task = asyncio.run_coroutine_threadsafe(_settled(work), self._loop)
        try:
            return task.result()
        except BaseException:
            if not task.done():
                task.cancel()
                asyncio.run_coroutine_threadsafe(_others(), self._loop).result()
            raise

    @contextmanager
    def entered(self, context: AbstractAsyncContextManager[Result]) -> Iterator[Result]:
        """Hold an asynchronous context open."""
        value = self.run(context.__aenter__())
        try:
            yield value
        except BaseException as error:
            if not self.run(context.__aexit__(type(error), error, error.__traceback__)):
                raise
        else:
            self.run(context.__aexit__(None, None, None))

    def close(self) -> None:
        """End the loop and its thread."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(_end_all(self._loop), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _settled(work: Coroutine[object, object, Result]) -> Result:
    return await work


async def _others() -> None:
    """Wait until what was cancelled has cleaned up behind itself."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    cancelled = [task for task in tasks if task is not None and task.cancelling()]
    if cancelled:
        await asyncio.wait(cancelled)


async def _end_all(loop: asyncio.AbstractEventLoop) -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()


class Commands:
    """Commands in the sandbox of one launch."""

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


class Launch:
    """A launch that holds a workspace and a sandbox."""

    def __init__(self, *, loop: LoopThread, launch: AsyncLaunch) -> None:
        self._loop = loop
        self._launch = launch
        self.commands = Commands(loop=loop, commands=launch.commands)

    @property
    def record(self) -> LaunchRecord:
        """The launch as it was last seen."""
        return self._launch.record

    @property
    def launch_id(self) -> str:
        """Id of the launch."""
        return self._launch.launch_id

    def cancel(self) -> LaunchRecord:
        """End it and release what it holds."""
        return self._loop.run(self._launch.cancel())

    def renew(self, *, lease: float | None = None) -> LaunchRecord:
        """Hold it for `lease` seconds from now, 30 minutes when absent."""
        return self._loop.run(self._launch.renew(lease=lease))

    def trace(self) -> Trace:
        """Read its trace as far as it is there."""
        return self._loop.run(self._launch.trace())

    @contextmanager
    def forward(self, *, remote_port: int, local_port: int = 0) -> Iterator[LocalPort]:
        """Lead a local port (0: a free one) to a port inside the sandbox."""
        with self._loop.entered(
            self._launch.forward(remote_port=remote_port, local_port=local_port)
        ) as local:
            yield local


class Launches:
    """The caller's launches."""

    def __init__(self, *, loop: LoopThread, launches: AsyncLaunches) -> None:
        self._loop = loop
        self._launches = launches

    def get(self, launch_id: str) -> LaunchRecord:
        """Read a launch."""
        return self._loop.run(self._launches.get(launch_id))

    def list(self, *, limit: int = 100) -> tuple[LaunchRecord, ...]:
        """List the newest launches, newest first."""
        return self._loop.run(self._launches.list(limit=limit))

    def events(self, launch_id: str, *, cursor: str = "") -> Iterator[LaunchEvent]:
        """Give a launch's events after `cursor`, until the terminal one."""
        events = self._launches.events(launch_id, cursor=cursor)
        try:
            while (event := self._loop.run(_next(events.__anext__))) is not None:
                yield event
        finally:
            self._loop.run(events.aclose())

    def cancel(self, launch_id: str) -> LaunchRecord:
        """End a launch and release what it holds."""
        return self._loop.run(self._launches.cancel(launch_id))

    def renew(self, launch_id: str, *, lease: float | None = None) -> LaunchRecord:
        """Hold what a launch has for `lease` seconds from now, 30 minutes when absent."""
        return self._loop.run(self._launches.renew(launch_id, lease=lease))


async def _next(step: Callable[[], Coroutine[object, object, LaunchEvent]]) -> LaunchEvent | None:
    try:
        return await step()
    except StopAsyncIteration:
        return None


class Fairlead:
    """A client of one mesh; use as a context manager. See `AsyncFairlead`."""

    def __init__(
        self,
        *,
        url: str = "",
        api_key: str = "",
        transport: AsyncBaseTransport | None = None,
    ) -> None:
        self._url = url
        self._api_key = api_key
        self._transport = transport

    def __enter__(self) -> Fairlead:
        self._loop = LoopThread()
        self._fairlead = AsyncFairlead(
            url=self._url, api_key=self._api_key, transport=self._transport
        )
        try:
            self._loop.run(self._fairlead.__aenter__())
        except BaseException:
            self._loop.close()
            raise
        self.launches = Launches(loop=self._loop, launches=self._fairlead.launches)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._loop.run(self._fairlead.__aexit__(kind, error, traceback))
        finally:
            self._loop.close()

    @contextmanager
    def launch(
        self,
        path: str | os.PathLike[str] = ".",
        *,
        branch: str = "",
        clean: bool = False,
        keep: bool = False,
        lease: float | None = None,
        isolation: str = "",
    ) -> Iterator[Launch]:
        """Launch the repository around `path`; see `AsyncFairlead.launch`."""
        context = self._fairlead.launch(
            path, branch=branch, clean=clean, keep=keep, lease=lease, isolation=isolation
        )
        with self._loop.entered(context) as launch:
            yield Launch(loop=self._loop, launch=launch)

    def trace(self, launch_id: str) -> Trace:
        """Read a launch's trace as far as it is there."""
        return self._loop.run(self._fairlead.trace(launch_id))
