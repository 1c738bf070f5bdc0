"""What the use cases need of a host's provisioner. Every call raises FairleadError for what a
neighbour refuses.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Protocol

from signalling.host import Host
from signalling.snapshot import Miss, Source, Tip
from signalling.workspace import ForkOrder, Imported, Workspace, WorkspaceOrder


class Workspaces(Protocol):
    """The workspace-provisioner of a host."""

    async def materialize(
        self, host: Host, *, tenant: str, order: WorkspaceOrder
    ) -> Workspace | Miss:
        """Check a source out, or say what the host lacks; the same key gives the same workspace."""
        ...

    async def import_snapshot(
        self,
        host: Host,
        *,
        tenant: str,
        source: Source,
        tips: Sequence[Tip],
        chunks: AsyncIterator[bytes],
        tips_only: bool,
        order: WorkspaceOrder | None,
    ) -> Imported:
        """Stream a thin pack to the host, one chunk at a time, and materialize `order` from it."""
        ...

    async def get(
        self, host: Host, *, tenant: str, workspace_id: str, count_changes: bool = False
    ) -> Workspace:
        """Return a workspace, also one that was released a short while ago."""
        ...

    async def list(
        self, host: Host, *, tenant: str, size: int, after: str
    ) -> tuple[Sequence[Workspace], bool]:
        """Return up to `size` workspaces after an id, by id, and whether there are more."""
        ...

    async def renew(
        self, host: Host, *, tenant: str, workspace_id: str, lease: timedelta
    ) -> Workspace:
        """Move the end of the lease."""
        ...

    async def rename(self, host: Host, *, tenant: str, workspace_id: str, name: str) -> Workspace:
        """Give it another name, or none."""
        ...

    async def fork(
        self, host: Host, *, tenant: str, workspace_id: str, order: ForkOrder
    ) -> Workspace:
        """Make a copy with everything in it; the same key gives the same one."""
        ...

    async def release(
        self,
        host: Host,
        *,
        tenant: str,
        key: str = "",
        workspace_id: str = "",
        checked: bool = False,
    ) -> bool:
        """Give back what `key` made or is making, or a workspace by its id; say whether there was
        something. With `checked` it refuses to lose work.
        """
        ...


class WorkspaceUsers(Protocol):
    """The launches, as far as workspaces care."""

    async def user_of(self, tenant: str, workspace_id: str) -> str:
        """Return the id of the launch that works in a workspace; empty when there is none."""
        ...
