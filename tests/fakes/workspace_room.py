"""The workspace half of signalling over hosts in memory."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Coroutine

from chassis.clock import Clock
from signalling.launch_request import DEFAULT_LEASE
from signalling.placement import Placer
from signalling.snapshot import Source
from signalling.uploads import Uploads
from signalling.workspace import ForkOrder, Workspace, WorkspaceOrder
from signalling.workspace_keeper import WorkspaceKeeper
from tests.fakes.clock import FakeClock
from tests.fakes.faults import Faults
from tests.fakes.mesh import HOST, FakeDirectory, FakeHosts
from tests.fakes.workspaces import FakeWorkspaceDirectory, FakeWorkspaces

TENANT = "default"
COMMIT = "c" * 40
SOURCE = Source(project="p", commit=COMMIT, branch="main")


class WorkspaceRoom:
    """A front door for workspaces; `replica` makes another one over the same hosts."""

    def __init__(self, *, known: set[str] | None = None, clock: Clock | None = None) -> None:
        self.faults = Faults()
        self.clock = clock or FakeClock()
        self.hosts = FakeHosts(HOST)
        self.snapshots = FakeDirectory()
        self.directory = FakeWorkspaceDirectory(faults=self.faults)
        self.workspaces = FakeWorkspaces(faults=self.faults, known=known)
        tokens = itertools.count(1)
        self.uploads = Uploads(
            workspaces=self.workspaces,
            clock=self.clock,
            make_token=lambda: f"token-{next(tokens)}",
            timeout_seconds=120,
        )
        self.users: dict[tuple[str, str], str] = {}
        self._owned: set[asyncio.Future[None]] = set()
        self.keeper = self.replica()

    def own(self, work: Coroutine[object, object, None]) -> None:
        """Run what nobody waits for."""
        task = asyncio.ensure_future(work)
        self._owned.add(task)
        task.add_done_callback(self._owned.discard)

    async def user_of(self, tenant: str, workspace_id: str) -> str:
        """Return the launch that `users` names."""
        return self.users.get((tenant, workspace_id), "")

    async def settle(self) -> None:
        """Wait for what nobody waits for."""
        while self._owned:
            await asyncio.wait(self._owned)

    def replica(self) -> WorkspaceKeeper:
        """Return a keeper that remembers nothing yet."""
        return WorkspaceKeeper(
            workspaces=self.workspaces,
            directory=self.directory,
            placement=Placer(hosts=self.hosts, directory=self.snapshots),
            hosts=self.hosts,
            uploads=self.uploads,
            launches=self,
            own=self.own,
            id_key=b"key",
        )

    async def make(self, key: str = "one", tenant: str = TENANT, **fields: object) -> Workspace:
        """Return the workspace that an order leads to; it may not miss."""
        made = await self.keeper.materialize(tenant, order(key, **fields))
        assert isinstance(made, Workspace), made
        return made


def order(key: str = "one", **fields: object) -> WorkspaceOrder:
    """Return an order of the commit that the hosts have."""
    named: dict[str, object] = {
        "source": SOURCE,
        "branch": "",
        "lease": DEFAULT_LEASE,
        **fields,
    }
    return WorkspaceOrder(key=key, **named)  # type: ignore[arg-type]


def fork(key: str = "fork", name: str = "", branch: str = "") -> ForkOrder:
    """Return a wish for a copy."""
    return ForkOrder(key=key, lease=DEFAULT_LEASE, name=name, branch=branch)


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    """Give the pieces of a pack."""
    for part in parts:
        yield part
