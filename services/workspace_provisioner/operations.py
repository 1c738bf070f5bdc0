"""What the API needs from the use cases."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Protocol

from workspace_provisioner.sources import Source, Tip
from workspace_provisioner.workspaces import Miss, Snapshot, Workspace


class WorkspaceOperations(Protocol):
    """What the API does with workspaces; see Provisioner."""

    async def materialize(
        self,
        *,
        idempotency_key: str,
        source: Source,
        branch: str,
        lease: timedelta,
        name: str = "",
        claims_branch: bool = False,
        overlay: bool = False,
    ) -> Workspace | Miss: ...

    async def fork(
        self,
        tenant: str,
        workspace_id: str,
        *,
        idempotency_key: str,
        name: str,
        branch: str,
        lease: timedelta,
        overlay: bool,
    ) -> Workspace: ...

    async def rename(self, tenant: str, workspace_id: str, name: str) -> Workspace: ...

    async def get(self, tenant: str, workspace_id: str) -> Workspace: ...

    async def count_changes(self, workspace: Workspace) -> int | None: ...

    async def list(self, tenant: str, *, size: int, after: str) -> tuple[list[Workspace], str]: ...

    async def renew(self, tenant: str, workspace_id: str, lease: timedelta) -> Workspace: ...

    async def release(
        self,
        tenant: str,
        *,
        workspace_id: str = "",
        idempotency_key: str = "",
        checked: bool = False,
    ) -> bool: ...


class SnapshotOperations(Protocol):
    """What the API does with uploads; see Importer."""

    async def receive(
        self,
        source: Source,
        tips: tuple[Tip, ...],
        chunks: AsyncIterator[bytes],
        *,
        tips_only: bool = False,
    ) -> Snapshot: ...
