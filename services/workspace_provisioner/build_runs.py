"""Workspaces that are being made: one build for each id, however many callers wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from workspace_provisioner.errors import ProvisionerStopping, WorkspaceReleased, storage_errors
from workspace_provisioner.ports import Locks
from workspace_provisioner.workspaces import Miss, Workspace

Make = Callable[[], Awaitable[Workspace | Miss]]


@dataclass(slots=True)
class Build:
    """A workspace that is being made."""

    requested: Workspace
    task: asyncio.Task[Workspace | Miss] = field(init=False)
    released: bool = False


class BuildRuns:
    """The builds of this process, `most` at the same time; each holds the lock of its workspace."""

    def __init__(self, *, locks: Locks, most: int) -> None:
        self._locks = locks
        self._slots = asyncio.Semaphore(most)
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

    def start(self, requested: Workspace, make: Make) -> Build:
        """Begin a build, which goes on when its callers leave; raises ProvisionerStopping."""
        if self._stopping:
            raise ProvisionerStopping
        build = Build(requested=requested)
        workspace_id = requested.workspace_id
        build.task = asyncio.create_task(
            self._run(workspace_id, make), name=f"build {workspace_id}"
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
        """Let the workspace's id be built again."""
        if self._builds.get(build.requested.workspace_id) is build:
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

    async def _run(self, workspace_id: str, make: Make) -> Workspace | Miss:
        async with self._slots, self._locks.hold(workspace_id):
            with storage_errors():
                return await make()

    def _ended(self, build: Build) -> None:
        if not build.task.cancelled():
            build.task.exception()  # seen here, also when every caller has left
        if not build.released:
            self.forget(build)
