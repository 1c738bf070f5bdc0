"""The blocking client: the asynchronous one on a loop in a thread of its own, call by call."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING

from fairlead_sdk.blocking_commands import Commands
from fairlead_sdk.blocking_sandboxes import Sandboxes
from fairlead_sdk.blocking_sessions import Sessions
from fairlead_sdk.blocking_workspaces import Workspaces
from fairlead_sdk.events import LaunchEvent
from fairlead_sdk.fairlead import AsyncFairlead, AsyncLaunch
from fairlead_sdk.isolating import Isolating
from fairlead_sdk.launches import AsyncLaunches
from fairlead_sdk.loop_thread import LoopThread
from fairlead_sdk.records import LaunchRecord, Trace

if TYPE_CHECKING:
    from httpx2 import AsyncBaseTransport

    from fairlead_sdk.blocking_files import Files
    from fairlead_sdk.blocking_terminals import Pty
    from fairlead_sdk.forwarding import LocalPort


class Launch(Isolating):
    """A launch that holds a workspace and a sandbox."""

    def __init__(self, *, loop: LoopThread, launch: AsyncLaunch) -> None:
        self._loop = loop
        self._launch = self._isolating = launch
        self.commands = Commands(loop=loop, commands=launch.commands)

    @property
    def record(self) -> LaunchRecord:
        """The launch as it was last seen."""
        return self._launch.record

    @cached_property
    def files(self) -> Files:
        """Files in its sandbox."""
        from fairlead_sdk.blocking_files import Files

        return Files(loop=self._loop, files=self._launch.files)

    @cached_property
    def pty(self) -> Pty:
        """Terminals in its sandbox."""
        from fairlead_sdk.blocking_terminals import Pty

        return Pty(loop=self._loop, pty=self._launch.pty)

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

    def list(
        self, *, limit: int = 100, where: Callable[[LaunchRecord], bool] | None = None
    ) -> tuple[LaunchRecord, ...]:
        """List the newest launches, newest first: at most `limit` of those that `where` accepts."""
        return self._loop.run(self._launches.list(limit=limit, where=where))

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
        self.workspaces = Workspaces(loop=self._loop, workspaces=self._fairlead.workspaces)
        self.sandboxes = Sandboxes(loop=self._loop, sandboxes=self._fairlead.sandboxes)
        self.sessions = Sessions(loop=self._loop, sessions=self._fairlead.sessions)
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
        from_: str = "",
        clean: bool = False,
        submodules: bool = False,
        keep: bool = False,
        lease: float | None = None,
        isolation: str = "",
        profile: str = "",
        limits: Mapping[str, float] | None = None,
        network: str = "",
        allow: Sequence[str] = (),
        workspace_id: str = "",
    ) -> Iterator[Launch]:
        """Launch the repository around `path`; see `AsyncFairlead.launch`."""
        context = self._fairlead.launch(
            path,
            branch=branch,
            from_=from_,
            clean=clean,
            submodules=submodules,
            keep=keep,
            lease=lease,
            isolation=isolation,
            profile=profile,
            limits=limits,
            network=network,
            allow=allow,
            workspace_id=workspace_id,
        )
        with self._loop.entered(context) as launch:
            yield Launch(loop=self._loop, launch=launch)

    def trace(self, launch_id: str) -> Trace:
        """Read a launch's trace as far as it is there."""
        return self._loop.run(self._fairlead.trace(launch_id))
