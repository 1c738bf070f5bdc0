"""The asynchronous client: find the mesh, launch a repository, run commands in it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING

from fairlead_sdk.client import FrontDoor, make_idempotency_key
from fairlead_sdk.commands import AsyncCommands
from fairlead_sdk.discovery import find_mesh
from fairlead_sdk.errors import FairleadError, LaunchCancelled, LaunchFailed, MeshUnavailable
from fairlead_sdk.events import (
    LaunchProvisioned,
    LaunchSnapshot,
    LaunchStopped,
    LaunchWithdrawn,
)
from fairlead_sdk.executions import AsyncExecutions
from fairlead_sdk.isolating import AsyncIsolating
from fairlead_sdk.launches import AsyncLaunches, LaunchRequest
from fairlead_sdk.records import Failure, LaunchRecord, Trace
from fairlead_sdk.repository import Repository, read_repository
from fairlead_sdk.scratch import Scratch
from fairlead_sdk.sessions import AsyncSessions

if TYPE_CHECKING:
    from httpx2 import AsyncBaseTransport

    from fairlead_sdk.files import AsyncFiles
    from fairlead_sdk.forwarding import LocalPort
    from fairlead_sdk.sandboxes import AsyncSandboxes
    from fairlead_sdk.terminals import AsyncPty
    from fairlead_sdk.uploads import Histories
    from fairlead_sdk.workspaces import AsyncWorkspaces

RELEASE_SECONDS = 30.0


class AsyncLaunch(AsyncIsolating):
    """A launch that holds a workspace and a sandbox."""

    def __init__(
        self,
        *,
        record: LaunchRecord,
        launches: AsyncLaunches,
        executions: AsyncExecutions,
        sessions: AsyncSessions,
        door: FrontDoor,
        directory: str,
    ) -> None:
        self.record: LaunchRecord = record
        self.commands = AsyncCommands(
            executions=executions, sandbox_id=record.sandbox_id, directory=directory
        )
        self._launches = launches
        self._sessions = sessions
        self._door = door
        self._directory = directory

    @cached_property
    def files(self) -> AsyncFiles:
        """Files in its sandbox."""
        from fairlead_sdk.files import AsyncFiles

        return AsyncFiles(door=self._door, sandbox_id=self.record.sandbox_id)

    @cached_property
    def pty(self) -> AsyncPty:
        """Terminals in its sandbox."""
        from fairlead_sdk.terminals import AsyncPty

        return AsyncPty(
            door=self._door, sandbox_id=self.record.sandbox_id, directory=self._directory
        )

    @property
    def launch_id(self) -> str:
        """Id of the launch."""
        return self.record.launch_id

    async def cancel(self) -> LaunchRecord:
        """End it and release what it holds."""
        self.record = await self._launches.cancel(self.launch_id)
        return self.record

    async def renew(self, *, lease: float | None = None) -> LaunchRecord:
        """Hold it for `lease` seconds from now, 30 minutes when absent."""
        self.record = await self._launches.renew(self.launch_id, lease=lease)
        return self.record

    async def trace(self) -> Trace:
        """Read its trace as far as it is there."""
        return await self._launches.trace(self.launch_id)

    def forward(
        self, *, remote_port: int, local_port: int = 0
    ) -> AbstractAsyncContextManager[LocalPort]:
        """Lead a local port (0: a free one) to a port inside the sandbox."""
        from fairlead_sdk.forwarding import forward

        return forward(self._sessions, self.launch_id, remote_port, local_port)


class AsyncFairlead:
    """A client of one mesh. Use as an async context manager.

    Without `url` the mesh is found as the command line finds it; see `discovery`. `transport`
    replaces the HTTP library's own. A `door` that is open already takes the place of all three and
    stays open; `histories` are those that others send by it, too.
    """

    def __init__(
        self,
        *,
        url: str = "",
        api_key: str = "",
        transport: AsyncBaseTransport | None = None,
        door: FrontDoor | None = None,
        histories: Histories | None = None,
    ) -> None:
        self._given = door
        self._histories = histories
        self._url = url
        self._api_key = api_key
        self._transport = transport
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> AsyncFairlead:
        self.door = door = self._given or await self._opened()
        self.launches = AsyncLaunches(door=door, histories=self._histories)
        self.executions = AsyncExecutions(door=door)
        self.sessions = AsyncSessions(door=door)
        return self

    async def _opened(self) -> FrontDoor:
        url, api_key = self._url, self._api_key
        if not url:
            mesh = find_mesh()
            url, api_key = mesh.url, api_key or mesh.api_key
        api_key = api_key or os.environ.get("FAIRLEAD_API_KEY", "")
        return await self._stack.enter_async_context(
            FrontDoor(url=url, api_key=api_key, transport=self._transport)
        )

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.launches.histories.settle(wait=False)
        await self._stack.aclose()

    @cached_property
    def workspaces(self) -> AsyncWorkspaces:
        """The caller's workspaces, with or without a launch."""
        from fairlead_sdk.workspaces import AsyncWorkspaces

        return AsyncWorkspaces(door=self.door)

    @cached_property
    def sandboxes(self) -> AsyncSandboxes:
        """The caller's sandboxes, with or without a launch."""
        from fairlead_sdk.sandboxes import AsyncSandboxes

        return AsyncSandboxes(door=self.door)

    @asynccontextmanager
    async def launch(
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
    ) -> AsyncIterator[AsyncLaunch]:
        """Launch the repository around `path`, uncommitted changes included unless `clean`.

        With `from_` = "trunk" it is the tip of the origin's default branch, without changes;
        `launch.record.commit` says which. With `workspace_id` no repository is read: the launch
        works in that workspace, and leaves it where it is. `isolation`, `profile`, `limits`,
        `network` and `allow` are as in `SandboxRequest`. The launch is cancelled at the end of the
        block unless `keep`. Raises `RepositoryError`, `LaunchFailed`, `LaunchCancelled` and what
        the front door refuses.
        """
        from fairlead_sdk.sandbox_records import SandboxRequest

        request = LaunchRequest(
            branch=branch,
            keep=keep,
            lease=lease,
            isolation=isolation,
            from_=from_,
            submodules=submodules,
            sandbox=SandboxRequest(
                profile=profile, limits=limits or {}, network=network, allow=allow
            ),
            workspace_id=workspace_id,
        )
        scratch = Scratch()
        repository: Repository | None = None
        try:
            if not workspace_id:
                repository = await asyncio.to_thread(
                    read_repository,
                    path,
                    clean=clean or bool(from_),
                    submodules=submodules,
                    scratch=scratch,
                )
            record = await self._provisioned(repository, request)
        finally:
            await asyncio.to_thread(scratch.close)
        launch = AsyncLaunch(
            record=record,
            launches=self.launches,
            executions=self.executions,
            sessions=self.sessions,
            door=self.door,
            directory="" if repository is None else repository.directory,
        )
        try:
            yield launch
        finally:
            await launch._close_objects()
            if keep:
                await self.launches.histories.settle(wait=True)
            else:
                await self._release(self.launches.cancel(record.launch_id))

    async def trace(self, launch_id: str) -> Trace:
        """Read a launch's trace as far as it is there."""
        return await self.launches.trace(launch_id)

    async def _provisioned(
        self, repository: Repository | None, request: LaunchRequest
    ) -> LaunchRecord:
        launch_id = ""
        key = make_idempotency_key()
        body = await self.launches.describe(repository, request)
        try:
            async with aclosing(self.launches.start(repository, body, key=key)) as events:
                async for event in events:
                    match event.happening:
                        case LaunchSnapshot(launch):
                            launch_id = launch.launch_id
                        case LaunchProvisioned(launch):
                            return launch
                        case LaunchStopped(failure):
                            raise launch_failed(failure, launch_id)
                        case LaunchWithdrawn(reason):
                            raise launch_cancelled(reason, launch_id)
        except FairleadError as error:
            if launch_id:
                await self._release(self.launches.cancel(launch_id))
            elif isinstance(error, MeshUnavailable):  # it may be there, its answer was lost
                await self._release(self.launches.withdraw(body, key=key))
            raise
        except BaseException:
            await self._release(
                self.launches.cancel(launch_id)
                if launch_id
                else self.launches.withdraw(body, key=key)
            )
            raise
        raise AssertionError("the events of a launch end with a terminal one, or raise")

    async def _release(self, cancelling: Coroutine[object, object, object]) -> None:
        """Cancel, even while we are being cancelled; what fails here the lease will reclaim."""
        with contextlib.suppress(FairleadError, TimeoutError):
            await asyncio.shield(_in_time(cancelling))


def launch_failed(failure: Failure, launch_id: str) -> LaunchFailed:
    """Make the error of a launch that ended in `failed`."""
    return LaunchFailed(
        failure.message or "The launch failed.",
        reason=failure.reason or "internal",
        remedy=failure.remedy,
        step=failure.step,
        launch_id=launch_id,
    )


def launch_cancelled(reason: str, launch_id: str) -> LaunchCancelled:
    """Make the error of a launch that ended in `cancelled`."""
    expired = reason == "lease_expired"
    return LaunchCancelled(
        "The launch's lease ran out." if expired else "The launch was cancelled.",
        reason="lease_expired" if expired else "launch_cancelled",
        remedy="Ask for a longer lease, or renew it." if expired else "",
        fields={"launch_id": launch_id},
    )


async def _in_time(work: Coroutine[object, object, object]) -> None:
    async with asyncio.timeout(RELEASE_SECONDS):
        await work
