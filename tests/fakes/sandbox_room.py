"""The sandbox half of signalling over hosts in memory."""

from __future__ import annotations

from signalling.placement import Placer
from signalling.sandbox import Sandbox, SandboxOrder
from signalling.sandbox_keeper import SandboxKeeper
from tests.fakes.mesh import FakeChannels
from tests.fakes.worker import FakeWorker
from tests.fakes.workspace_room import TENANT, WorkspaceRoom
from tests.fakes.workspaces import FakeWorkspaceDirectory


class SandboxRoom:
    """A front door for sandboxes, beside one for workspaces; `replica` makes another one over the
    same hosts.
    """

    def __init__(self, *, workspaces: WorkspaceRoom) -> None:
        self.workspaces = workspaces
        self.faults = workspaces.faults
        self.hosts = workspaces.hosts
        self.directory = FakeWorkspaceDirectory(faults=self.faults)
        self.worker = FakeWorker(faults=self.faults, clock=workspaces.clock)
        self.channels = FakeChannels(faults=self.faults)
        self.keeper = self.replica()

    def replica(self) -> SandboxKeeper:
        """Return a keeper that remembers nothing yet."""
        return SandboxKeeper(
            sandboxes=self.worker,
            workspaces=self.workspaces.keeper,
            directory=self.directory,
            placement=Placer(hosts=self.hosts, directory=self.workspaces.snapshots),
            hosts=self.hosts,
            channels=self.channels,
            own=self.workspaces.own,
            id_key=b"key",
        )

    async def make(self, key: str = "one", tenant: str = TENANT, **fields: object) -> Sandbox:
        """Return the sandbox that an order leads to."""
        order = SandboxOrder(key=key, **fields)  # type: ignore[arg-type]
        return await self.keeper.create(tenant, order)
