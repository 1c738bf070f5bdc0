"""Workspaces that are being made: one build for each id, however many callers wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from workspace_provisioner.errors import ProvisionerStopping, WorkspaceReleased, storage_errors
from workspace_provisioner.keyed_locks import KeyedLocks
from workspace_provisioner.lock_ports import Locks
from workspace_provisioner.workspaces import Miss, Workspace

_LOOK_SECONDS = 0.05
"""How often a build looks whether another process wants its workspace released."""

Made = TypeVar("Made")
Make = Callable[[], Awaitable[Workspace | Miss]]
MakeWarm = Callable[[], Awaitable[Workspace | Miss | None]]


@dataclass(slots=True)
class Build:
    """A workspace that is being made."""

    requested: Workspace
    task: asyncio.Task[Workspace | Miss] = field(init=False)
    released: bool = False


class BuildRuns:
    """The builds of this process; each holds the lock of its workspace. Of one tenant `most` go on
    at the same time, so that one whose origins hang holds up nobody else; what is warm waits for
    none of them.

    One whose key another process releases ends with WorkspaceReleased.
    """

    def __init__(self, *, locks: Locks, most: int) -> None:
        self._locks = locks
        self._turns = KeyedLocks(most=most)
        self._builds: dict[str, Build] = {}
        self._stopping = False

    def __len__(self) -> int:
        return len(self._builds)

    def of_tenant(self, tenant: str) -> int:
        """Count the builds of a tenant."""
        return sum(build.requested.tenant == tenant for build in self._builds.values())

    def get(self, workspace_id: str) -> Build | None:
        """Return the build of a workspace that is being made."""
        return self._builds.get(workspace_id)

    def ids(self) -> frozenset[str]:
        """Return the ids of the workspaces that are being made."""
        return frozenset(self._builds)

    def start(self, requested: Workspace, make: Make, warm: MakeWarm | None = None) -> Build:
        """Begin a build, which goes on when its callers leave; `warm` is tried first. Raises
        ProvisionerStopping.
        """
        if self._stopping:
            raise ProvisionerStopping
        build = Build(requested=requested)
        workspace_id = requested.workspace_id
        build.task = asyncio.create_task(
            self._run(requested, make, warm), name=f"build {workspace_id}"
        )
        self._builds[workspace_id] = build
        build.task.add_done_callback(lambda _: self._ended(build))
        return build

    async def outcome(self, build: Build) -> Workspace | Miss:
        """Wait for a build; raises what it raised, WorkspaceReleased or ProvisionerStopping."""
        task = build.task
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if not task.cancelled() or (caller is not None and caller.cancelling()):
                raise
            if build.released:
                raise WorkspaceReleased(build.requested.workspace_id) from None
            raise ProvisionerStopping from None

    async def stop(self, build: Build) -> None:
        """Stop a build whose workspace is released; it stays known until `forget`."""
        build.released = True
        build.task.cancel()
        await asyncio.wait({build.task})

    def forget(self, build: Build) -> None:
        """Let the workspace's id be built again, as soon as nothing of this build is left."""
        if not build.task.done():
            build.task.add_done_callback(lambda _: self.forget(build))
        elif self._builds.get(build.requested.workspace_id) is build:
            del self._builds[build.requested.workspace_id]

    async def drain(self) -> None:
        """Start no more builds and wait for those that run."""
        self._stopping = True
        tasks = [build.task for build in self._builds.values()]
        if tasks:
            await asyncio.wait(tasks)

    async def close(self) -> None:
        """Stop the builds that still run; nothing of them stays."""
        self._stopping = True
        for build in self._builds.values():
            build.task.cancel()
        await self.drain()

    async def _run(
        self, requested: Workspace, make: Make, warm: MakeWarm | None
    ) -> Workspace | Miss:
        workspace_id = requested.workspace_id
        if warm is not None:
            made = await self._held(workspace_id, warm)
            if made is not None:
                return made
        async with self._turns.hold(requested.tenant):
            return await self._held(workspace_id, make)

    async def _held(self, workspace_id: str, make: Callable[[], Awaitable[Made]]) -> Made:
        async with self._locks.hold(workspace_id):
            try:
                async with asyncio.timeout(None) as limit:
                    with self._watched(workspace_id, limit), storage_errors():
                        return await make()
            except TimeoutError:
                if limit.expired():
                    raise WorkspaceReleased(workspace_id) from None
                raise

    @contextmanager
    def _watched(self, workspace_id: str, limit: asyncio.Timeout) -> Iterator[None]:
        """Let the limit end when another process would wrest the lock of the workspace."""
        loop = asyncio.get_running_loop()
        timer = loop.call_later(_LOOK_SECONDS, lambda: look())

        def look() -> None:
            nonlocal timer
            if self._locks.is_wanted(workspace_id):
                limit.reschedule(loop.time())
            else:
                timer = loop.call_later(_LOOK_SECONDS, look)

        try:
            yield
        finally:
            timer.cancel()

    def _ended(self, build: Build) -> None:
        if not build.task.cancelled():
            build.task.exception()  # seen here, also when every caller has left
        if not build.released:
            self.forget(build)
