"""Where workspaces are listed, shown, renewed and given back: at a mesh, or on one SSH host."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol

from fairlead_sdk.cli.terminal import Terminal
from fairlead_sdk.workspace_records import WorkspaceRecord

if TYPE_CHECKING:
    from fairlead_sdk.records import LaunchRecord
    from fairlead_sdk.ssh_host import AsyncSshHost


class Workspaces(Protocol):
    """The workspaces of a place."""

    async def list(
        self, *, limit: int = 100, on_unanswered: Callable[[str], None] | None = None
    ) -> tuple[WorkspaceRecord, ...]:
        """List them, by id."""
        ...

    async def get(self, workspace_id: str, *, count_changes: bool = False) -> WorkspaceRecord:
        """Read one."""
        ...

    async def renew(self, workspace_id: str, *, lease: float | None = None) -> WorkspaceRecord:
        """Hold one for longer."""
        ...

    async def delete(self, workspace_id: str, *, force: bool = False) -> bool:
        """Give one back."""
        ...


class Launches(Protocol):
    """The launches of a place."""

    async def list(self, *, limit: int = 100) -> Sequence[LaunchRecord]:
        """List them."""
        ...


class Place(Protocol):
    """A mesh, or a host."""

    @property
    def workspaces(self) -> Workspaces:
        """Its workspaces."""
        ...

    @property
    def launches(self) -> Launches:
        """Its launches."""
        ...


class HostWorkspaces:
    """The workspaces on an SSH host."""

    def __init__(self, *, host: AsyncSshHost) -> None:
        self._host = host

    async def list(
        self, *, limit: int = 100, on_unanswered: Callable[[str], None] | None = None
    ) -> tuple[WorkspaceRecord, ...]:
        """List them, by id; a host that does not answer is an error."""
        found = await self._host.workspaces()
        return tuple(WorkspaceRecord.read(each.document) for each in found[:limit])

    async def get(self, workspace_id: str, *, count_changes: bool = False) -> WorkspaceRecord:
        """Read one."""
        found = await self._host.workspace(workspace_id, count_changes=count_changes)
        return WorkspaceRecord.read(found.document)

    async def renew(self, workspace_id: str, *, lease: float | None = None) -> WorkspaceRecord:
        """Hold one for longer."""
        return WorkspaceRecord.read((await self._host.renew(workspace_id, lease=lease)).document)

    async def delete(self, workspace_id: str, *, force: bool = False) -> bool:
        """Give one back; says whether this call did. Raises `WorkspaceNotFound`."""
        released = await self._host.release(workspace_id, checked=not force)
        if not released:  # not there, or given back before: only the former is an error
            await self._host.workspace(workspace_id)
        return released


class NoLaunches:
    """An SSH host knows of no launches."""

    async def list(self, *, limit: int = 100) -> Sequence[LaunchRecord]:
        """Give none."""
        return ()


class HostPlace:
    """An SSH host, asked like a mesh."""

    def __init__(self, *, host: AsyncSshHost) -> None:
        self.host = host
        self.workspaces = HostWorkspaces(host=host)
        self.launches = NoLaunches()


@asynccontextmanager
async def opened_place(host: str, terminal: Terminal) -> AsyncIterator[Place]:
    """Open the host at an address; the mesh of this environment when it is empty."""
    if not host:
        from fairlead_sdk.cli.connection import connect

        async with connect(terminal) as client:
            yield client
        return
    async with opened_host(host) as place:
        yield place


@asynccontextmanager
async def opened_host(address: str) -> AsyncIterator[HostPlace]:
    """Open the SSH host at an address."""
    from fairlead_sdk.ssh_address import SshAddress
    from fairlead_sdk.ssh_agent import AgentConnections
    from fairlead_sdk.ssh_host import AsyncSshHost

    async with (
        AgentConnections(address=SshAddress.read(address)) as connections,
        AsyncSshHost(address, connections=connections) as opened,
    ):
        yield HostPlace(host=opened)
